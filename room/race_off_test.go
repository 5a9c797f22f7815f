//go:build !race

package room_test

const raceEnabled = false

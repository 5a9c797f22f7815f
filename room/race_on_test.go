//go:build race

package room_test

const raceEnabled = true

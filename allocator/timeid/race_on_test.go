//go:build race

package timeid_test

// raceDetector tells that the test is built with -race, which allocates.
const raceDetector = true

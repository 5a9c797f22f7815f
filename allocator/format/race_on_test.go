//go:build race

package format_test

// raceDetector tells that the test is built with -race, which allocates.
const raceDetector = true

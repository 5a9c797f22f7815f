//go:build race

package allocator_test

// raceDetector tells that the test is built with -race, which is ten times slower.
const raceDetector = true

//go:build !race

package allocator_test

// raceDetector reports whether the test is built with -race, which is ten times slower.
const raceDetector = false

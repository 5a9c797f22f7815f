//go:build !race

package timeid_test

// raceDetector says whether the test is built with -race, which allocates.
const raceDetector = false

//go:build !race

// Package race tells tests whether they run under the race detector, which is ten times slower.
package race

// Enabled reports whether this build has the race detector.
const Enabled = false

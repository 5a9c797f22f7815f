//go:build !mutant

package console

// mutant reports whether a mistake is to be made on purpose: never, and the
// compiler leaves out what depends on it. See sim/mutants.
func mutant(string) bool { return false }

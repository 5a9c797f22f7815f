//go:build mutant

package room

import "os"

var chosen = os.Getenv("MARCH_MUTANT")

// mutant reports whether a mistake is to be made on purpose. See sim/mutants.
func mutant(name string) bool { return name == chosen }

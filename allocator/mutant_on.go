//go:build mutant

package allocator

import "os"

var chosen = os.Getenv("MARCH_MUTANT")

// mutant reports whether a mistake is to be made on purpose. See sim/mutants.
func mutant(name string) bool { return name == chosen }

// mutated returns what is wrong where a mistake is to be made on purpose.
func mutated[T any](name string, right, wrong T) T {
	if mutant(name) {
		return wrong
	}
	return right
}

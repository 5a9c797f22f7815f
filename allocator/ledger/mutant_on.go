//go:build mutant

package ledger

import (
	"os"
	"slices"
)

var chosen = os.Getenv("MARCH_MUTANT")

// mutant reports whether a mistake is to be made on purpose. See sim/mutants.
func mutant(name string) bool { return name == chosen }

// without returns conds but for the one that is left out on purpose: the one
// that stands where the mutant's name does.
func without(conds []Cond, names ...string) []Cond {
	if i := slices.Index(names, chosen); i >= 0 && chosen != "" {
		return slices.Delete(conds, i, i+1)
	}
	return conds
}

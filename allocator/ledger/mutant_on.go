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

// mutated returns what is wrong where a mistake is to be made on purpose.
func mutated[T any](name string, right, wrong T) T {
	if mutant(name) {
		return wrong
	}
	return right
}

// byOwn raises a room's mark by what the room's own instances remember.
func (r *recovery) byOwn(p pair, mark Mark) Mark {
	for _, m := range r.memories {
		if m.Room == p.room {
			mark = mark.raised(max(mark.Next, m.Marks[p.tag]))
		}
	}
	return mark
}

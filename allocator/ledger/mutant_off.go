//go:build !mutant

package ledger

// mutant reports whether a mistake is to be made on purpose: never, and the
// compiler leaves out what depends on it. See sim/mutants.
func mutant(string) bool { return false }

// without returns conds: names are of the mutants that leave one out.
func without(conds []Cond, _ ...string) []Cond { return conds }

// mutated returns what is right.
func mutated[T any](_ string, right, _ T) T { return right }

// byOwn stands for a mistake.
func (r *recovery) byOwn(pair, Mark) (none Mark) { return none }

package draw

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// RunScripts gives random transactions to both stores and wants the same
// answers. Each script has keys of its own, so both may be used for all.
func RunScripts(t *testing.T, a, b store.Store) {
	script := 0
	rapid.Check(t, func(rt *rapid.T) {
		script++
		prefix := fmt.Sprintf("s%06d/", script)
		stores := [2]store.Store{a, b}
		var base [2]int64 // the revision before the script
		mods := [2][]int64{}
		for i, s := range stores {
			answer, err := s.Txn(t.Context(), store.Txn{})
			if err != nil {
				t.Fatal(err)
			}
			base[i] = answer.Revision
		}
		for step := range rapid.IntRange(1, 8).Draw(rt, "transactions") {
			txn := drawTxn(rt, prefix, len(mods[0]))
			var results [2]string
			for i, s := range stores {
				results[i] = run(t, s, txn(mods[i]), base[i], &mods[i])
			}
			if diff := cmp.Diff(results[0], results[1]); diff != "" {
				rt.Fatalf("transaction %d %+v: %s", step, txn(mods[0]), diff)
			}
		}
	})
}

// run makes txn and renders its outcome with revisions relative to base. mods
// collects the revisions that were seen, for later conditions.
func run(t *testing.T, s store.Store, txn store.Txn, base int64, mods *[]int64) string {
	answer, err := s.Txn(t.Context(), txn)
	if err != nil {
		return fmt.Sprint("error ", allocator.KindOf(err))
	}
	*mods = append(*mods, answer.Revision)
	out := fmt.Sprintln(answer.Succeeded, answer.Revision-base, len(answer.Got))
	for _, kvs := range answer.Got {
		for _, kv := range kvs {
			out += fmt.Sprintf("%q=%q@%d ", kv.Key, kv.Value, kv.ModRevision-base)
		}
		out += "\n"
	}
	return out
}

// drawTxn draws a transaction. It is made for each store from the revisions
// that were seen of it: known of them.
func drawTxn(rt *rapid.T, prefix string, known int) func(mods []int64) store.Txn {
	key := rapid.Map(rapid.IntRange(0, 4), func(i int) string { return fmt.Sprint(prefix, i) })
	value := rapid.SampledFrom([]string{"", "u", "v"})
	type cond struct {
		key   string
		mod   int // index into mods, -1 none
		value []byte
	}
	var conds []cond
	for range rapid.IntRange(0, 3).Draw(rt, "conditions") {
		c := cond{key: key.Draw(rt, "key"), mod: rapid.IntRange(-1, known-1).Draw(rt, "mod")}
		if rapid.Bool().Draw(rt, "by value") {
			c.value = []byte(value.Draw(rt, "value"))
		}
		conds = append(conds, c)
	}
	ops := func() (out []store.Op) {
		for range rapid.IntRange(0, 4).Draw(rt, "operations") {
			switch rapid.IntRange(0, 3).Draw(rt, "operation") {
			case 0:
				out = append(out, store.Op{Delete: key.Draw(rt, "key")})
			case 1:
				g := store.Get{
					Interval: store.Interval{Key: key.Draw(rt, "key")}, Limit: rapid.Int64Range(0, 3).Draw(rt, "limit"),
					Descending: rapid.Bool().Draw(rt, "descending"), KeysOnly: rapid.Bool().Draw(rt, "keys only"),
				}
				if rapid.Bool().Draw(rt, "range") {
					g.End = key.Draw(rt, "end")
				}
				out = append(out, store.Op{Get: &g})
			default:
				put := store.Put{Key: key.Draw(rt, "key"), Value: []byte(value.Draw(rt, "value"))}
				out = append(out, store.Op{Put: &put})
			}
		}
		return out
	}
	then, otherwise := ops(), ops()
	return func(mods []int64) store.Txn {
		txn := store.Txn{Then: then, Else: otherwise}
		for _, c := range conds {
			made := store.Cond{Key: c.key, Value: c.value}
			if c.mod >= 0 {
				made.ModRevision = mods[c.mod]
			}
			txn.If = append(txn.If, made)
		}
		return txn
	}
}

package verify

import (
	"context"
	"slices"
	"strings"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// strays checks that the prefix has only keys of a cluster, and no marks of unknown
// rooms. It reads the intervals between the known keys, which should be empty. It
// is the last check, so that it knows the rooms that were added meanwhile.
func (v *verification) strays(ctx context.Context) error {
	k := v.cluster.Keys
	known := k.Known()
	all := gaps(string(k), known, func(first string) error {
		if _, err := k.Parse(first); err != nil {
			v.unreadable(first, err)
		}
		return nil
	})
	known = known[:0]
	for _, room := range v.checker.ever {
		known = append(known, k.Marks(room))
	}
	all = append(all, gaps(k.Marks(""), known, func(first string) error { return v.strange(ctx, first) })...)
	for some := range slices.Chunk(all, store.MaxOps) {
		if err := v.between(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// strange reports a mark of an unknown room. An instance that a recover went on
// without may have raised such a mark, of a room that the store has forgotten.
func (v *verification) strange(ctx context.Context, first string) error {
	key, err := v.cluster.Keys.Parse(first)
	if err != nil {
		v.unreadable(first, err)
		return nil
	}
	answer, err := v.cluster.Gets(ctx, store.OpGet(first))
	if err != nil {
		return err
	}
	kv, ok := answer.One(0)
	mark, bad := record.DecodeMark(kv)
	if !ok || bad == nil && len(mark.Eras) == 0 {
		return nil
	}
	if err := v.history(ctx); err != nil { // read the history after the mark: the room may be new
		return err
	}
	if !slices.Contains(v.checker.ever, key.Room) {
		v.add("there are marks of room %s, which never was, the first is %s", key.Room, first)
	}
	return nil
}

// gap is an interval without keys: the part after prefix, from a key up to another.
type gap struct {
	prefix, from, end string
	use               func(first string) error
}

func (g gap) first() store.Op {
	return store.Op{Get: &store.Get{Interval: store.Interval{Key: g.from, End: g.end}, Limit: 1, KeysOnly: true}}
}

// gaps returns the intervals between known names that follow prefix: keys, or
// prefixes that end in a slash.
func gaps(prefix string, known []string, use func(first string) error) (all []gap) {
	from := prefix
	slices.Sort(known)
	for _, next := range append(known, store.PrefixEnd(prefix)) {
		if from < next {
			all = append(all, gap{prefix, from, next, use})
		}
		if from = next + "\x00"; strings.HasSuffix(next, "/") {
			from = store.PrefixEnd(next)
		}
	}
	return all
}

// between calls use with the first key of each name in gaps, up to the next slash. It
// reads only the gaps, because etcd counts all keys of an interval, whatever the
// limit is.
func (v *verification) between(ctx context.Context, gaps []gap) error {
	for n := 0; len(gaps) > 0 && n < MaxProblems; n++ {
		ops := make([]store.Op, 0, len(gaps))
		for _, g := range gaps {
			ops = append(ops, g.first())
		}
		answer, err := v.cluster.Gets(ctx, ops...)
		if err != nil {
			return err
		}
		var rest []gap
		for i, g := range gaps {
			if len(answer.Got[i]) == 0 {
				continue
			}
			first := answer.Got[i][0].Key
			name, _, nested := strings.Cut(first[len(g.prefix):], "/")
			if err := g.use(first); err != nil {
				return err
			}
			if g.from = first + "\x00"; nested {
				g.from = g.prefix + name + "0" // the byte after '/'
			}
			if g.from < g.end {
				rest = append(rest, g)
			}
		}
		gaps = rest
	}
	return nil
}

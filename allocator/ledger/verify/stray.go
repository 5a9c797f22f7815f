package verify

import (
	"context"
	"slices"
	"strings"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// strays checks that the prefix has only keys of a cluster, and no marks of unknown
// rooms. It reads the intervals between the known keys, which should be empty.
func (v *verification) strays(ctx context.Context) error {
	k := v.cluster.Keys
	known := k.Known()
	all := gaps(string(k), known, func(first store.KV) {
		if _, err := k.Parse(first.Key); err != nil {
			v.unreadable(first.Key, err)
		}
	})
	known = known[:0]
	for _, room := range v.checker.ever {
		known = append(known, k.In(room, record.Marks))
	}
	all = append(all, gaps(k.All(record.Marks), known, v.strange)...)
	for some := range slices.Chunk(all, store.MaxOps) {
		if err := v.between(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// strange reports a mark of an unknown room. An instance that a recover went on
// without may have raised such a mark, of a room that the store has forgotten.
func (v *verification) strange(first store.KV) {
	key, err := v.cluster.Keys.Parse(first.Key)
	if err != nil {
		v.unreadable(first.Key, err)
		return
	}
	if mark, err := record.DecodeMark(first); err != nil || len(mark.Eras) > 0 {
		v.add("there are marks of room %s, which never was, the first is %s", key.Room, first.Key)
	}
}

// gap is an interval without keys: the part after prefix, from a key up to another.
type gap struct {
	prefix, from, end string
	use               func(first store.KV)
}

func (g gap) first() store.Op {
	return store.Op{Get: &store.Get{Interval: store.Interval{Key: g.from, End: g.end}, Limit: 1}}
}

// gaps returns the intervals between known names that follow prefix: keys, or
// prefixes that end in a slash.
func gaps(prefix string, known []string, use func(first store.KV)) (all []gap) {
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
		answer, err := v.gets(ctx, ops...)
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
			g.use(answer.Got[i][0])
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

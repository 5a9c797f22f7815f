package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// SkewsAtOnce is how many tags one call of Skews can read.
func SkewsAtOnce(i *Instance) int {
	stored, _ := i.ledger.Layout()
	return max(keysAtOnce/(1+len(stored.Ever)), 1)
}

// Skew says what a tag's max_skew allows. The end of the present period counts as each mark at most.
type Skew struct {
	Least int64 // the least ID by the marks of the other rooms
	Mark  int64 // of the instance's own room
	Max   int64 // the max_skew
}

// Skews reads some tags and the marks that all rooms have of them, at one moment, and returns what the max_skew of each
// allows. A tag that is not there, or has no max_skew, is missing.
func Skews(ctx context.Context, i *Instance, names []allocator.Tag) (map[allocator.Tag]Skew, error) {
	l := i.ledger
	state, err := l.LeasableState(ctx)
	if err != nil {
		return nil, err
	}
	var ops []store.Op
	for _, name := range names {
		ops = append(append(ops, store.OpGet(l.keys.Tag(name))), l.marksOf(state, name)...)
	}
	answer, err := l.Try(ctx, store.Txn{If: l.Holds(state), Then: ops})
	if err != nil || !answer.Succeeded {
		return nil, changedMeanwhile(err)
	}
	skews, each := make(map[allocator.Tag]Skew), 1+len(state.layout.Ever)
	for k, name := range names {
		if skew, has := skewOf(i, state, answer.Got[k*each:(k+1)*each]); has {
			skews[name] = skew
		}
	}
	return skews, nil
}

// skewOf returns the Skew of a tag by its key and the marks of all rooms: zero where max_jump keeps rooms from going on
// above the furthest one, or something cannot be read: leases fail then, and say why.
func skewOf(i *Instance, state *State, shown [][]store.KV) (s Skew, has bool) {
	if len(shown[0]) == 0 {
		return s, false
	}
	t, err := i.ledger.keys.DecodeTag(shown[0][0])
	if err != nil || t.MaxSkew == 0 {
		return s, err != nil
	}
	terms, present := t.Terms().At(i.Now())
	marks, err := state.decodeMarks(shown[1:])
	if err != nil {
		return s, true
	}
	for room, mark := range marks {
		next := mark.Next
		if present.End > 0 {
			next = min(next, present.End)
		}
		if room == i.room {
			s.Mark = next
		} else {
			s.Least = max(s.Least, next-terms.MaxSkew)
		}
	}
	s.Max = terms.MaxSkew
	if f := state.layout.Floor(i.room, state.margins, terms, marks); f.Jump > terms.MaxJump && !f.Alone {
		return Skew{}, true
	}
	return s, true
}

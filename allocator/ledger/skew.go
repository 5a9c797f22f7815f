package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Skew says what the max_skew of a tag allows, by the marks of all rooms.
type Skew struct {
	Least int64 // the furthest mark less max_skew
	Renew int64 // what is held below is to be leased anew: the largest boundary below Least
	Few   int64 // how many IDs an instance without callers leases then; 0 for none
}

// skewed returns the least ID that a tag's max_skew allows, 0 where it allows all, or where max_jump keeps all rooms
// from going on above the furthest one. The end of the present period counts as the furthest mark at most.
func (f *floor) skewed(terms record.Terms, end int64) int64 {
	if f == nil || terms.MaxSkew == 0 || f.Jump > terms.MaxJump && !f.Alone {
		return 0
	}
	most := f.Most
	if end > 0 {
		most = min(most, end)
	}
	return max(most-terms.MaxSkew, 0)
}

// SkewsAtOnce is how many tags one call of Skews can read.
func SkewsAtOnce(i *Instance) int {
	stored, _ := i.ledger.Layout()
	return max((keysAtOnce-1)/(1+len(stored.Ever)), 1)
}

// Skews reads some tags, the marks that all rooms have of them, and the registrations of an instance's room, at one
// moment. A tag that is not there, cannot be read or has no max_skew is missing.
func Skews(ctx context.Context, i *Instance, names []allocator.Tag) (map[allocator.Tag]Skew, error) {
	l := i.ledger
	state, err := l.LeasableState(ctx)
	if err != nil {
		return nil, err
	}
	ops := []store.Op{store.OpGetPrefix(l.keys.Registration(i.room, ""))}
	for _, name := range names {
		ops = append(ops, store.OpGet(l.keys.Tag(name)))
		for _, room := range state.layout.Ever {
			ops = append(ops, store.OpGet(l.keys.Mark(room, name)))
		}
	}
	answer, err := l.Try(ctx, store.Txn{If: l.Holds(state), Then: ops})
	if err != nil || !answer.Succeeded {
		return nil, changedMeanwhile(err)
	}
	skews, each := make(map[allocator.Tag]Skew), 1+len(state.layout.Ever)
	for k, name := range names {
		shown := answer.Got[1+k*each : 1+(k+1)*each]
		if skew := skewOf(i, state, shown, int64(len(answer.Got[0]))); skew.Least > 0 {
			skews[name] = skew
		}
	}
	return skews, nil
}

// skewOf returns the Skew of a tag by its key and the marks of all rooms, in a room of so many instances; zero without
// a max_skew. A tag that cannot be read has none: its leases fail, and say why.
func skewOf(i *Instance, state *State, shown [][]store.KV, instances int64) (s Skew) {
	if len(shown[0]) == 0 {
		return s
	}
	t, err := i.ledger.keys.DecodeTag(shown[0][0])
	if err != nil || t.MaxSkew == 0 {
		return s
	}
	marks := make(map[allocator.Room]record.Mark)
	for k, room := range state.layout.Ever {
		if kv := shown[1+k]; len(kv) > 0 {
			if marks[room], err = record.DecodeMark(kv[0]); err != nil {
				return s
			}
		}
	}
	terms, present := t.Terms().At(i.Now())
	f := floor{Floor: state.layout.Floor(i.room, state.margins, terms, marks)}
	least, layout := f.skewed(terms, present.End), state.layout.Layout
	few := float64(terms.MaxSkew) * float64(layout.Ranges[i.room].Width()) /
		(2 * float64(layout.Boundary) * float64(max(instances, 1)))
	return Skew{Least: max(least, 1), Renew: max(least-state.layout.LargestBoundary, 0), Few: int64(few)}
}

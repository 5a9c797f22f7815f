package ledger

import (
	"context"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Skew is what an instance may still issue of a tag whose max_skew bounds its IDs: see section 4 of the design.
type Skew struct {
	Least    int64 // the furthest room's mark less max_skew: no ID below it is issued any more
	Settings record.TagSettings
}

// Skews reads how far the rooms have come with some tags, and returns the Skew of each that has a max_skew. A tag of
// which something cannot be read, or whose furthest mark may be a mistake (max_jump), has none: nothing else could be
// leased of it. With an error it returns those that it read before.
func (i *Instance) Skews(ctx context.Context, tags []allocator.Tag) (map[allocator.Tag]Skew, error) {
	l, skews := i.ledger, make(map[allocator.Tag]Skew)
	s, err := l.LeasableState(ctx)
	if err != nil {
		return nil, err // nothing can be leased: neither here, nor what could be far ahead
	}
	ever := s.layout.Ever
	for page := range slices.Chunk(tags, max(1, enterPage/(len(ever)+1))) {
		var ops []store.Op
		for _, tag := range page {
			ops = append(ops, store.OpGet(l.keys.Tag(tag)))
			for _, room := range ever {
				ops = append(ops, store.OpGet(l.keys.Mark(room, tag)))
			}
		}
		answer, err := l.Read(ctx, store.Txn{If: l.Holds(s), Then: ops})
		if err != nil || !answer.Succeeded {
			return skews, changedMeanwhile(err)
		}
		for k, tag := range page {
			at := k * (len(ever) + 1)
			if skew, ok := i.skewOf(s, tag, answer.Got[at], answer.Got[at+1:at+1+len(ever)]); ok {
				skews[tag] = skew
			}
		}
	}
	return skews, nil
}

// skewOf returns the Skew of a tag by its key and the marks of all rooms that ever were.
func (i *Instance) skewOf(s *State, tag allocator.Tag, key []store.KV, marks [][]store.KV) (Skew, bool) {
	if len(key) == 0 {
		return Skew{}, false
	}
	t, err := i.ledger.keys.DecodeTag(key[0])
	if err != nil || t.Time != nil || t.MaxSkew == 0 {
		return Skew{}, false
	}
	found := make(map[allocator.Room]record.Mark)
	for k, room := range s.layout.Ever {
		if len(marks[k]) == 0 {
			continue
		}
		if found[room], err = record.DecodeMark(marks[k][0]); err != nil {
			return Skew{}, false
		}
	}
	terms, _ := t.Terms().At(i.Now())
	source := &tagSource{instance: i, name: tag, terms: terms,
		floor: &floor{Floor: s.layout.Floor(i.room, s.margins, terms, found)}}
	least, err := source.raise(0, source.floor.Most-t.MaxSkew)
	return Skew{least, t.TagSettings}, err == nil
}

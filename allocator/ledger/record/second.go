package record

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
)

// The lives of a name: section 3.5 of the design.

// Buried returns the tombstone of a tag that is deleted at a time.
func (t Tag) Buried(at time.Time) Tag {
	t.Least, t.Deleted = t.LeastEver(), Recorded(at)
	return t
}

// LeastEver returns the largest start and skip that the name ever had.
func (t Tag) LeastEver() int64 {
	least := max(t.Least, t.Start, t.Skip)
	for _, to := range t.Skips {
		least = max(least, to)
	}
	return least
}

// Life returns what the next life of the name must know of the tag besides LargestStep and Least:
// a tombstone's value that tags with equal settings share. See Lost.
func (t Tag) Life() string {
	t.Start, t.Skip, t.Skips, t.Prescale, t.PrescaleUntil = 0, 0, nil, 0, time.Time{}
	t.LargestStep, t.BaseTotal, t.Least = 0, 0, 0
	t.Created, t.Deleted = time.Time{}, time.Unix(0, 0).UTC()
	return string(t.Encode(""))
}

// Lost returns the tombstone of a tag of which a store has forgotten the key, of a Life and its
// largest numbers. at is the time at which that is written. Its error is a KeyError.
func (k Keys) Lost(name allocator.Tag, life string, step, least int64, at time.Time) (Tag, error) {
	t, err := ReadAs[Tag](k, store.KV{Key: k.Tag(name), Value: []byte(life)})
	t.LargestStep, t.Least = max(t.LargestStep, step), least
	t.Deleted = Recorded(at)
	return t, err
}

// Unused reports whether no ID of a counter was ever leased, in no history that was lost either,
// under an epoch with a margin total. marks are those of all rooms that ever were.
func (t Tag) Unused(total int64, marks map[allocator.Room]Mark) bool {
	return t.Time == nil && len(marks) == 0 && t.BaseTotal == total
}

// After returns t as the next life of a deleted tag. end is the end of the old life's IDs, by its
// own settings. now decides which period is the present one. risk is why IDs, or texts of them,
// may come again; nil if they do not.
func (t Tag) After(dead Tag, end int64, now time.Time) (next Tag, risk error) {
	t.LargestStep = max(t.LargestStep, dead.LargestStep)
	t.BaseTotal, t.Least = dead.BaseTotal, dead.Least
	deleted := dead.Deleted.UTC().Format(time.RFC3339)
	if err := dead.sameIDs(t.TagSettings); err != nil {
		return t, allocator.Errorf(allocator.Refused,
			"tag %s was another one until it was deleted at %s (%w): IDs of it, or their texts, may come again",
			t.Name, deleted, err)
	}
	if t.Time != nil || t.Period == dead.Period {
		return t, nil
	}
	limit := t.Limit
	if t.Period != (period.Period{}) {
		limit = min(limit, t.Period.At(now).End)
	}
	if end >= limit {
		return t, allocator.Errorf(allocator.Refused,
			"tag %s had the period %v until it was deleted at %s, and its IDs may reach up to %d, where those of the "+
				"new tag end at present: they may come again", t.Name, dead.Period, deleted, end)
	}
	t.Start = max(t.Start, end)
	return t, nil
}

// Unknown returns why IDs, or texts of them, may come again if t is created where rooms have
// marks of an earlier life, of which nothing else is known; nil if they do not. marks are those
// of the rooms that ever were.
func (t Tag) Unknown(total int64, ever []allocator.Room, marks map[allocator.Room]Mark) error {
	if t.Time != nil || t.Format != "" {
		return allocator.Errorf(allocator.Refused, "rooms have marks of an earlier tag %s, which was a counter: "+
			"if it had texts, or IDs as large as these, they may come again", t.Name)
	}
	if t.StrictOrder != "" {
		return allocator.Errorf(allocator.Refused, "rooms have marks of an earlier tag %s, of which it is not known "+
			"whether it had a strict order: where its deletion was not seen, IDs are still issued without one", t.Name)
	}
	for _, room := range ever {
		if marks[room].Total < total {
			return allocator.Errorf(allocator.Refused, "rooms have marks of an earlier tag %s, and `march recover` went "+
				"on without instances since room %s leased of it: if it had a larger max_step, start or skip, or a "+
				"period, then IDs that they leased may come again", t.Name, room)
		}
	}
	return nil
}

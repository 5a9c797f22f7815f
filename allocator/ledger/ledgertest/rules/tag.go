package rules

import (
	"github.com/march-id/march/allocator/ledger/store"
)

// tag checks that what margins follow from outlives a tag: its largest step never shrinks, and its
// base total never grows; a deletion keeps them, with the least ID that leases of the name had.
func (t *transaction) tag(w Write, kv store.KV) {
	before, _ := t.keys.Entry(kv)
	was, now := before.Stored, w.Stored
	switch {
	case was != nil && w.ModRevision == 0:
		if t.Layout().Upgraded() && (was.Time != nil || t.leasedOf(w)) {
			t.breaks("tombstone", "tag %s is deleted and leaves none", w.Tag)
		}
		return
	case was == nil:
		was = before.Tombstone
	}
	least := int64(0)
	if now == nil {
		now = w.Tombstone
		if was != nil {
			least = max(was.Start, was.Skip)
			for _, to := range was.Skips {
				least = max(least, to)
			}
		}
	}
	if was == nil || now == nil || was.Time != nil || now.Time != nil {
		return
	}
	if now.LargestStep < was.LargestStep || now.BaseTotal > was.BaseTotal || now.Least < max(was.Least, least) {
		t.breaks("second life", "tag %s: largest step %d, base total %d, least %d; they were %d, %d, %d", w.Tag,
			now.LargestStep, now.BaseTotal, now.Least, was.LargestStep, was.BaseTotal, max(was.Least, least))
	}
}

// leasedOf reports whether a room has a mark of a write's tag.
func (t *transaction) leasedOf(w Write) bool {
	for _, room := range t.Layout().Ever {
		if t.Mark(room, w.Tag).Next > 0 {
			return true
		}
	}
	return false
}

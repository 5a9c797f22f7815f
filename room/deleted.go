package room

import (
	"context"
	"sync"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
)

// deletedTimes are the deleted tags of time-ordered IDs, of which a room that creates tags
// makes no counters. They are for clusters before `march cluster upgrade`: later a tombstone
// refuses that.
type deletedTimes struct {
	mu struct {
		sync.Mutex
		deletions int64                  // that this instance heard of
		read      int64                  // deletions + 1 as it was when tags was read, 0 for never
		tags      map[allocator.Tag]bool // not changed once it is here
	}
}

// changed notes that a tag was deleted.
func (d *deletedTimes) changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.deletions++
}

// has reports whether a tag that does not exist was one of time-ordered IDs. Its error is
// that etcd cannot be read.
func (d *deletedTimes) has(ctx context.Context, a *admin.Admin, tag allocator.Tag) (bool, error) {
	if stored, _ := a.Ledger.Layout(); stored.Upgraded() {
		return false, nil
	}
	d.mu.Lock()
	tags, read, now := d.mu.tags, d.mu.read, d.mu.deletions+1
	d.mu.Unlock()
	if read == now {
		return tags[tag], nil
	}
	tags, err := a.DeletedTimeTags(ctx)
	if err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if now > d.mu.read {
		d.mu.tags, d.mu.read = tags, now
	}
	return tags[tag], nil
}

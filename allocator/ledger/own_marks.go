package ledger

import (
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

const (
	// comparePage is how many marks compareOwn compares at once, and compareEvery how
	// far apart its pages are: 5,000 marks a second.
	comparePage  = 100
	compareEvery = 20 * time.Millisecond
)

// compareOwn compares the marks that the instance remembers at its start, which are
// its journal's, with those in etcd, once. A mark in etcd that is below one of them
// is evidence, even if no caller asks for its tag again. compareOwn works in pages,
// at a bounded rate, until ctx ends.
func (i *Instance) compareOwn(ctx context.Context) {
	tags := i.unshown()
	for len(tags) > 0 {
		page, wait := tags[:min(comparePage, len(tags))], compareEvery
		if i.ledger.Check(ctx) == nil && i.compareMarks(ctx, page) {
			tags = tags[len(page):]
		} else {
			wait = comparePause // Check confirms a suspicion, or clears it up
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// unshown returns the tags of marks that no answer showed so far as they are remembered, sorted.
func (i *Instance) unshown() []allocator.Tag {
	i.mu.Lock()
	defer i.mu.Unlock()
	tags := make([]allocator.Tag, 0, len(i.memory.marks))
	for tag, own := range i.memory.marks {
		if !own.shown {
			tags = append(tags, tag)
		}
	}
	slices.Sort(tags)
	return tags
}

// comparePause is the pause before another try.
const comparePause = 5 * time.Second

// compareMarks reads the marks of some tags, and compares them with what the instance
// remembers. It returns false if a mark has to be read again.
func (i *Instance) compareMarks(ctx context.Context, tags []allocator.Tag) bool {
	ops := make([]store.Op, len(tags))
	for k, tag := range tags {
		ops[k] = store.OpGet(i.ledger.keys.Mark(i.room, tag))
	}
	before := i.ledger.before()
	answer, err := i.ledger.Gets(ctx, ops...)
	if err != nil {
		return false
	}
	all := true
	for k, tag := range tags {
		next := i.ledger.nextOf(answer.Got[k])
		if next == allocator.MaxID {
			continue // it cannot be read, or is at its end, so no IDs of it are leased
		}
		all = i.compareMark(before, answer, tag, next) && all
	}
	return all
}

package room

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/internal/serve"
)

// maxUnknownTags is the name of the room's limit, as flags and metrics have it.
const maxUnknownTags = "unknown-tags"

// unknown remembers tags that do not exist, and how many of them each caller
// asked for. Such a tag costs a read of etcd when it is first asked for, and none
// for a while after it; a new tag is read at once all the same, because the
// ledger's watch reports it.
//
// A caller may have so many names read a minute, and all callers together ten
// times as many. Beyond that a tag that is not in memory is not read. The limit of
// all callers does not apply to a caller that has recently asked for no unknown
// tag: it gets its cold tags, however many names others guess.
//
// Refused calls, and calls for a name that a caller asks for again and again, are
// answered slowly: they would otherwise cost as much as good calls.
type unknown struct {
	limit *serve.Limit
	rand  func() float64 // see Config.Rand
	mu    struct {
		sync.Mutex
		// until when the tag counts as unknown; zero if it has changed and may exist
		tags    map[allocator.Tag]time.Time
		changes int // the number of changes of tags so far
		callers map[netip.Addr]*window
		all     window
	}
}

// window counts names that do not exist, over a minute.
type window struct {
	began   time.Time
	reads   int64 // of etcd
	answers int64
}

const (
	unknownFor    = 10 * time.Second
	unknownWindow = time.Minute
	// slowly is how late answers come on average, and when a refused caller may ask again: its tag may be there then,
	// long before the minute is over.
	slowly = 2 * time.Second
	// The memory is bounded, too. When it is full, it is cleared.
	maxUnknown        = 10_000
	maxUnknownCallers = 10_000
	// All callers together may have so many times as many names read as one caller.
	unknownOfAll = 10
)

func (u *unknown) init(limit *serve.Limit, rand func() float64) {
	u.limit, u.rand = limit, rand
	u.mu.tags = make(map[allocator.Tag]time.Time)
	u.mu.callers = make(map[netip.Addr]*window)
}

// at begins a new window if the present one has ended.
func (w *window) at(now time.Time) *window {
	if now.Sub(w.began) >= unknownWindow {
		*w = window{began: now}
	}
	return w
}

// ask returns nil if a caller may have a tag read, NotFound if the tag is known not
// to exist, and TooMany if the caller asked for too many such tags.
func (u *unknown) ask(ctx context.Context, tag allocator.Tag) error {
	late, err := u.check(serve.Caller(ctx), tag, time.Now())
	if !late {
		return err
	}
	select {
	case <-ctx.Done():
	// Callers that were refused together must not come back together.
	case <-time.After(time.Duration((0.5 + u.rand()) * float64(slowly))):
	}
	if u.hasChanged(tag) {
		return nil
	}
	return err
}

// check is ask without the delay; late says that the answer must be delayed.
func (u *unknown) check(caller netip.Addr, tag allocator.Tag, now time.Time) (late bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	until, known := u.mu.tags[tag]
	if known && until.IsZero() {
		return false, nil
	}
	own, most := u.window(caller, now), u.limit.Most()
	switch {
	case known && now.Before(until):
		own.answers++
		return own.answers > most, ledger.UnknownTag(tag)
	case own.reads >= most:
		return true, u.limit.Refuse("tags that do not exist were asked for by one caller in a minute", slowly)
	case own.reads > 0 && u.mu.all.at(now).reads >= unknownOfAll*most:
		return true, u.limit.Refuse("tags that do not exist were asked for by all callers in a minute", slowly)
	}
	return false, nil
}

// window returns a caller's window. The lock is held.
func (u *unknown) window(caller netip.Addr, now time.Time) *window {
	w := u.mu.callers[caller]
	if w == nil {
		if len(u.mu.callers) >= maxUnknownCallers {
			clear(u.mu.callers)
		}
		w = &window{}
		u.mu.callers[caller] = w
	}
	return w.at(now)
}

// hasChanged reports whether a tag may exist by now.
func (u *unknown) hasChanged(tag allocator.Tag) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	until, known := u.mu.tags[tag]
	return known && until.IsZero()
}

// add remembers that a tag does not exist, after a caller had it read. changes is their
// number before the read. If there are more now, add remembers nothing: the tag may have
// been created meanwhile.
func (u *unknown) add(caller netip.Addr, tag allocator.Tag, now time.Time, changes int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	own := u.window(caller, now)
	own.reads++
	own.answers++
	u.mu.all.at(now).reads++
	if u.mu.changes == changes {
		u.set(tag, now.Add(unknownFor))
	}
}

// set remembers a tag. The lock is held.
func (u *unknown) set(tag allocator.Tag, until time.Time) {
	if len(u.mu.tags) >= maxUnknown {
		clear(u.mu.tags)
	}
	u.mu.tags[tag] = until
}

// changes returns the number of changes of tags so far.
func (u *unknown) changes() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.changes
}

// changed notes that a tag was created, changed or deleted.
func (u *unknown) changed(tag allocator.Tag) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.set(tag, time.Time{})
	u.mu.changes++
}

// found forgets a tag that is in memory now.
func (u *unknown) found(tag allocator.Tag) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.mu.tags, tag)
}

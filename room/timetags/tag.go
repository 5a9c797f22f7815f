package timetags

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/allocator/timeid"
)

// Tag is a tag in memory.
type Tag struct {
	name  allocator.Tag
	bits  timeid.Layout // never changes
	wide  bool          // bits is timeid.Wide
	text  *texts.Text   // nil for a tag without a format; never changes
	pool  *pool
	asked atomic.Int64 // requests, failed ones included
	given atomic.Int64 // IDs

	idle struct { // of DropIdle alone
		asked int64     // at its last look
		since time.Time // when asked was seen to change
	}

	generator atomic.Pointer[timeid.Generator] // nil while there is no worker
	fault     atomic.Pointer[fault]            // of the last request that failed; nil before the first

	settings atomic.Pointer[record.TimeTag] // never nil; changed under the pool's lock
	gone     bool                           // from memory; guarded by the pool's lock

	counts struct {
		sync.Mutex
		past timeid.Stats // of the generators before
	}
}

// Settings returns the tag's settings.
func (t *Tag) Settings() record.TimeTag { return *t.settings.Load() }

// Text returns how the tag's IDs are texts, nil where it has no format.
func (t *Tag) Text() *texts.Text { return t.text }

// Name returns the tag's name.
func (t *Tag) Name() allocator.Tag { return t.name }

// Asked returns how many requests there were, and IDs.
func (t *Tag) Asked() (requests, ids int64) { return t.asked.Load(), t.given.Load() }

// Next returns the next ID. Its errors are those of timeid.Generator.Next, of
// worker.Workers.Take if there is no worker, and Refused where the tag is Wide.
func (t *Tag) Next(ctx context.Context) (id int64, err error) {
	t.asked.Add(1)
	if t.Wide() {
		return 0, t.NoNumber()
	}
	g := t.generator.Load()
	if g != nil {
		if id, ok := g.TryNext(); ok {
			t.given.Add(1)
			return id, nil
		}
	}
	err = t.with(ctx, g, func(g *timeid.Generator) error {
		id, err = g.Next(ctx)
		return err
	})
	t.note(ctx, 1, err)
	return id, err
}

// fault is why the last request of a tag that failed did so.
type fault struct {
	last  time.Time
	given int64 // IDs before it: while they are not more, no request has succeeded since
	err   error
}

// note counts n IDs, or notes why they were not issued. What the caller's own deadline ends shows nothing.
func (t *Tag) note(ctx context.Context, n int64, err error) {
	switch {
	case err == nil:
		t.given.Add(n)
	case ctx.Err() == nil && allocator.KindOf(err) != allocator.Invalid && !errors.Is(err, error(timeid.ErrClosed)):
		t.fault.Store(&fault{last: time.Now(), given: t.given.Load(), err: err})
	}
}

// longFault is how long a fault counts while no caller asks for the tag.
const longFault = time.Minute

// current reports whether f is why requests fail now.
func (f *fault) current(t *Tag, now time.Time) bool {
	return f != nil && f.given == t.given.Load() && now.Sub(f.last) < longFault
}

// trouble returns why the tag issues no IDs now, or nil.
func (t *Tag) trouble(now time.Time) error {
	if f := t.fault.Load(); f.current(t, now) {
		return f.err
	}
	return nil
}

// NextN appends n IDs to dst, as timeid.Generator.NextN does. Runs that it appended
// before an error are lost, a gap.
func (t *Tag) NextN(ctx context.Context, n int64, dst []allocator.Run) (runs []allocator.Run, err error) {
	t.asked.Add(1)
	if t.Wide() {
		return dst, t.NoNumber()
	}
	err = t.with(ctx, t.generator.Load(), func(g *timeid.Generator) error {
		runs, err = g.NextN(ctx, n, dst)
		return err
	})
	t.note(ctx, n, err)
	return runs, err
}

// Wide reports whether the tag's IDs exist only as texts: NextTexts issues them.
func (t *Tag) Wide() bool { return t.wide }

// NoNumber returns why a tag that is Wide issues no numbers. Its Kind is Refused.
func (t *Tag) NoNumber() error {
	return allocator.Errorf(texts.ErrNoNumber.Kind, "tag %s: %w", t.name, texts.ErrNoNumber)
}

// NextTexts returns the texts of n IDs of a tag that is Wide. Its errors are NextN's. If the
// texts cannot be written, it takes no ID.
func (t *Tag) NextTexts(ctx context.Context, n int64) (all []string, err error) {
	t.asked.Add(1)
	if err := t.text.Usable(); err != nil {
		return nil, allocator.Errorf(allocator.KindOf(err), "tag %s: %w", t.name, err)
	}
	var runs []allocator.Run
	err = t.with(ctx, t.generator.Load(), func(g *timeid.Generator) error {
		if runs, err = g.NextN(ctx, n, runs[:0]); err == nil {
			all, err = t.text.OfParts(g, runs)
		}
		return err
	})
	t.note(ctx, n, err)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// with calls use with the tag's generator. If that was closed in between, it calls use
// again with the next one. It waits for a generator's first tick.
func (t *Tag) with(ctx context.Context, g *timeid.Generator, use func(*timeid.Generator) error) error {
	for waited := time.Duration(0); ; {
		var err error = timeid.ErrClosed
		if g != nil {
			err = use(g)
		}
		if errors.Is(err, error(timeid.ErrClosed)) {
			if err = t.pool.open(ctx, t, g); err == nil {
				g = t.generator.Load()
				continue
			}
		}
		var outside *timeid.WindowError
		if !errors.As(err, &outside) {
			return err
		}
		t.pool.tags.look()
		d, waits := begins(outside)
		if !waits || waited+d > 2*longestTick || !await(ctx, d) {
			return err
		}
		waited += d
	}
}

// longestTick is the longest unit of a tag.
const longestTick = time.Second

// begins returns for how long a caller waits for the first tick of its generator. A
// generator begins within a tick if its tag joins a worker that was taken for tags of a
// shorter unit, or follows a generator of a longer one. So it is a tick at most. False says
// that the clock is further behind.
func begins(e *timeid.WindowError) (time.Duration, bool) {
	ms := e.First - e.Now
	if !e.Early || ms > longestTick.Milliseconds() {
		return 0, false
	}
	return max(time.Duration(ms)*time.Millisecond, renewal), true
}

// renewal is a moment in which a window that is too short for a tick may be renewed.
const renewal = 10 * time.Millisecond

// await waits, and returns false when ctx ended first.
func await(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Stats returns the counts of the tag's generators so far.
func (t *Tag) Stats() timeid.Stats {
	t.counts.Lock()
	defer t.counts.Unlock()
	if g := t.generator.Load(); g != nil {
		return plus(t.counts.past, g.Stats())
	}
	last := t.counts.past
	last.Ahead = 0
	return last
}

// shut closes the tag's generator, if it has one, and returns the end of the last tick
// that it may have used, in Unix ms; 0 where it has none.
func (t *Tag) shut() (used int64) {
	t.counts.Lock()
	defer t.counts.Unlock()
	g := t.generator.Swap(nil)
	if g == nil {
		return 0
	}
	used = g.Close()
	t.counts.past = plus(t.counts.past, g.Stats())
	return used
}

// PerSecond returns how many IDs the tag has in a second at most.
func (t *Tag) PerSecond() int64 { return t.bits.PerSecond() }

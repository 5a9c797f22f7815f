package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/internal/pending"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A clock that is an hour ahead makes IDs that sort an hour ahead for ever. So an instance
// compares its clock with the median of the heartbeats' clocks before it leases a window. A
// median needs three clocks; the instance's own counts, too.
//
// A heartbeat stays in etcd after its instance is gone, and has an old time then. So an
// instance that is ahead of the median of all heartbeats is refused only once it is also ahead
// of the median of those that changed since its first look: these come from running instances.
// Until then a heartbeat that is old by etcd's own clock does not count either, so that no process waits for
// instances that ended without a sign. In the same way a clock is behind only if it is behind those that changed. It
// takes windows, as IDs that sort too early harm no other instance's; but the instance says so.

// clocks is an instance's knowledge of other instances' clocks.
type clocks struct {
	ahead atomic.Int64 // of the median of the running instances' heartbeats when last compared
	off   atomic.Int64 // the same, if it is more than is allowed, certain, neither refused nor agreed to; otherwise 0

	mu struct {
		sync.Mutex
		// mod revisions of the heartbeats when the clock was first found ahead; nil while it is not ahead
		first  map[string]int64
		looked time.Duration // when that was, by Config.Elapsed
		warned bool

		checked time.Duration // when CheckClock last read heartbeats, by Config.Elapsed; 0 for never
		began   time.Time     // when the process began, by the clock that was checked
		err     error         // the result of that
	}
}

// ClockError says that the clock is ahead of the other instances' clocks. Its Kind is Refused,
// or Unavailable while that is not certain.
type ClockError struct {
	Ahead   time.Duration // of the median
	Allowed time.Duration
	Clocks  int  // compared clocks, the own one included
	Certain bool // the clocks are from running instances
}

func (e *ClockError) Error() string {
	if !e.Certain {
		return fmt.Sprintf("the clock is %v ahead of the median of %d heartbeats, some of which may be old: "+
			"looking again", e.Ahead, e.Clocks)
	}
	return fmt.Sprintf("the clock is %v ahead of the median of %d instances, more than %v: no worker is taken, "+
		"as its IDs would always sort too late; set the clock, or start the instance with --agree-clock",
		e.Ahead, e.Clocks, e.Allowed)
}

// Unwrap returns the Kind.
func (e *ClockError) Unwrap() error {
	if e.Certain {
		return allocator.Refused
	}
	return allocator.Unavailable
}

// ClockAhead returns how far the clock was ahead of the median of the heartbeats' clocks, the own
// one included, when a window was last taken or renewed: at least, as heartbeats are up to an
// interval old. It is negative if the clock was behind.
func (w *Workers) ClockAhead() time.Duration { return time.Duration(w.clocks.ahead.Load()) }

// ClockOff returns how far the clock was ahead of the running instances' clocks, negative if it was behind, when it was
// last compared: 0 if that is within what heartbeats allow, is not certain, is a *ClockError, or an operator has agreed
// to it.
func (w *Workers) ClockOff() time.Duration { return time.Duration(w.clocks.off.Load()) }

// CheckClock compares now, a time of the clock by which something is about to be done, with the other instances'
// clocks, as Take does. It reads the heartbeats once per interval, and again where the clock was set since. Its errors
// are a *ClockError and Unavailable.
func (w *Workers) CheckClock(ctx context.Context, now time.Time) error {
	c := &w.clocks
	began := now.Add(-w.cfg.Elapsed())
	c.mu.Lock()
	known, err := c.mu.checked > 0 && w.cfg.Elapsed()-c.mu.checked < ledger.HeartbeatInterval(0) &&
		began.Sub(c.mu.began).Abs() < clockSet, c.mu.err
	c.mu.Unlock()
	if known {
		return err
	}
	for range attempts {
		f, err := w.instance.Footing(ctx)
		if err != nil {
			return err
		}
		n, ok, err := w.instance.ReadWorkers(ctx, f, 0, allocator.Range{Upper: 1}, 1, beatsRead)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		err = c.check(ctx, w.cfg, w.instance, now, n.Heartbeats)
		c.mu.Lock()
		c.mu.checked, c.mu.began, c.mu.err = max(w.cfg.Elapsed(), 1), began, err
		c.mu.Unlock()
		return err
	}
	return allocator.Errorf(allocator.Unavailable, "the layout changed again and again while heartbeats were read")
}

// clockSet is by how much a clock differs from the monotonic one where it was set, and not only slewed.
const clockSet = time.Second

// check compares now, a time of the clock, with heartbeats. Its error is a *ClockError.
func (c *clocks) check(ctx context.Context, cfg Config, i Instance, now time.Time, beats []store.KV) error {
	at := cfg.Elapsed()
	interval := ledger.HeartbeatInterval(len(beats))
	allowed := record.MaxAhead + 2*interval
	all := map[string]time.Time{}
	revisions := make(map[string]int64, len(beats))
	for _, kv := range beats {
		var v record.Heartbeat
		if record.Decode(kv, &v) == nil && v.Incarnation != i.Incarnation() {
			all[kv.Key], revisions[kv.Key] = v.Time, kv.ModRevision
		}
	}
	ahead := now.Sub(median(now, all))
	if ahead.Abs() <= allowed {
		c.note(ahead, interval)
		c.right()
		return nil
	}
	first, certain := c.look(revisions, at, 2*interval)
	gone := func(key string, _ time.Time) bool { return first[key] == revisions[key] }
	if !certain {
		etcd, unsure, err := i.EtcdTime(ctx)
		gone = func(_ string, beat time.Time) bool { return err == nil && etcd.Sub(beat) > allowed+unsure }
	}
	maps.DeleteFunc(all, gone)
	ahead = now.Sub(median(now, all))
	if certain || ahead <= allowed {
		c.note(ahead, interval)
	}
	c.off.Store(0)
	switch {
	case ahead < -allowed:
		if certain {
			c.off.Store(int64(ahead.Round(time.Second)))
			c.warn(cfg, "the clock is behind the other instances': IDs sort as far behind", "behind",
				(-ahead).Round(time.Millisecond), "clocks", len(all)+1)
		}
	case ahead <= allowed:
		c.warn(cfg, "the clock is ahead of heartbeats that are old by now: it is not compared", "clocks", len(all)+1)
	case len(all)+1 < 3 || cfg.AgreeClock:
		if certain {
			if !cfg.AgreeClock {
				c.off.Store(int64(ahead.Round(time.Second)))
			}
			c.warn(cfg, "the clock is ahead of the other instances': IDs sort as far ahead", "ahead",
				ahead.Round(time.Millisecond), "clocks", len(all)+1, "agreed", cfg.AgreeClock)
		}
	default:
		return &ClockError{Ahead: ahead, Allowed: allowed, Clocks: len(all) + 1, Certain: certain}
	}
	return nil
}

// note stores how far the clock is ahead of heartbeats: without the interval, as a heartbeat may be as old as that. So
// a slow etcd makes no clock look wrong.
func (c *clocks) note(ahead, interval time.Duration) {
	c.ahead.Store(int64(ahead - min(max(ahead, 0), interval)))
}

// right notes that the clock is not ahead.
func (c *clocks) right() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.first, c.mu.warned = nil, false
	c.off.Store(0)
}

// look returns the heartbeats' revisions when the clock was first found ahead, and whether that is at least so long
// ago.
func (c *clocks) look(revisions map[string]int64, at, after time.Duration) (first map[string]int64, long bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.first == nil {
		c.mu.first, c.mu.looked = revisions, at
	}
	return c.mu.first, at-c.mu.looked >= after
}

// warn logs a warning once, until the clock is right.
func (c *clocks) warn(cfg Config, text string, args ...any) {
	var said pending.Lines
	defer said.Write(cfg.Logger)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.warned {
		c.mu.warned = true
		said.Warn(text, args...)
	}
}

// median returns the median of the clock and others. Of two in the middle it takes the later
// one, which refuses less.
func median(now time.Time, others map[string]time.Time) time.Time {
	all := []time.Time{now}
	for _, at := range others {
		all = append(all, at)
	}
	slices.SortFunc(all, time.Time.Compare)
	return all[len(all)/2]
}

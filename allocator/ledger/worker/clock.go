package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// A clock that is an hour ahead makes IDs that sort an hour ahead for ever. So an
// instance compares its clock with the median of the heartbeats' before it leases a
// window. Three clocks make a median: the own one counts, too.
//
// A heartbeat stays in etcd when its instance is gone, and tells an old time then. An
// instance that looks ahead of the median of all heartbeats is refused only once it is
// ahead of the median of those that changed since its first look, which are of
// instances that run.

// clocks is what an instance knows of the others' clocks.
type clocks struct {
	ahead atomic.Int64 // of the median of the heartbeats, at the last look

	mu struct {
		sync.Mutex
		first  map[string]int64 // the mod revisions of heartbeats as they were when the clock first looked ahead; nil while it does not
		looked time.Duration    // when that was, as Config.Elapsed counts
		warned bool

		checked time.Duration // when CheckClock last read heartbeats, as Config.Elapsed counts; 0 for never
		err     error         // what it found
	}
}

// ClockError says that the clock is ahead of the other instances'. Its Kind is Refused,
// or Unavailable while it is not certain.
type ClockError struct {
	Ahead   time.Duration // of the median
	Allowed time.Duration
	Clocks  int  // that were compared, the own one included
	Certain bool // these are clocks of instances that run
}

func (e *ClockError) Error() string {
	if !e.Certain {
		return fmt.Sprintf("the clock is %v ahead of the median of %d heartbeats, some of which may be old: looking again", e.Ahead, e.Clocks)
	}
	return fmt.Sprintf("the clock is %v ahead of the median of %d instances, more than %v: no window is taken, as IDs would sort as far ahead for ever; set the clock, or start the instance with --agree-clock",
		e.Ahead, e.Clocks, e.Allowed)
}

// Unwrap returns the Kind.
func (e *ClockError) Unwrap() error {
	if e.Certain {
		return allocator.Refused
	}
	return allocator.Unavailable
}

// ClockAhead returns how far the clock was ahead of the median of the heartbeats', the own
// one included, when a window was last taken or renewed; negative where it was behind.
func (w *Workers) ClockAhead() time.Duration { return time.Duration(w.clocks.ahead.Load()) }

// CheckClock compares the clock with the other instances', as Take does, at most once in
// an interval of heartbeats. Its errors are a *ClockError and Unavailable.
func (w *Workers) CheckClock(ctx context.Context) error {
	c := &w.clocks
	c.mu.Lock()
	known, err := c.mu.checked > 0 && w.cfg.Elapsed()-c.mu.checked < ledger.HeartbeatInterval(0), c.mu.err
	c.mu.Unlock()
	if known {
		return err
	}
	for range attempts {
		f, err := w.instance.Footing(ctx)
		if err != nil {
			return err
		}
		_, beats, ok, err := w.instance.ReadWorkers(ctx, f, 0, allocator.Range{Upper: 1}, 1, beatsRead)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		err = c.check(w.cfg, w.instance, beats)
		c.mu.Lock()
		c.mu.checked, c.mu.err = max(w.cfg.Elapsed(), 1), err
		c.mu.Unlock()
		return err
	}
	return allocator.Errorf(allocator.Unavailable, "the layout changed again and again while heartbeats were read")
}

// check compares the clock with heartbeats. Its error is a *ClockError.
func (c *clocks) check(cfg Config, i Instance, beats []store.KV) error {
	now, at := cfg.Now(), cfg.Elapsed()
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
	c.ahead.Store(int64(ahead))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(all)+1 < 3 || ahead <= allowed || cfg.AgreeClock {
		c.mu.first, c.mu.warned = nil, c.mu.warned && ahead > allowed
		if ahead > allowed && !c.mu.warned {
			c.mu.warned = true
			cfg.Logger.Warn("the clock is ahead of the other instances': IDs sort as far ahead", "ahead", ahead.Round(time.Millisecond), "clocks", len(all)+1, "agreed", cfg.AgreeClock)
		}
		return nil
	}
	if c.mu.first == nil {
		c.mu.first, c.mu.looked = revisions, at
	}
	if at-c.mu.looked < 2*interval {
		return &ClockError{Ahead: ahead, Allowed: allowed, Clocks: len(all) + 1}
	}
	for key := range all {
		if c.mu.first[key] == revisions[key] {
			delete(all, key) // its instance is gone
		}
	}
	if ahead = now.Sub(median(now, all)); len(all)+1 < 3 || ahead <= allowed {
		if !c.mu.warned {
			c.mu.warned = true
			cfg.Logger.Warn("the clock is ahead of heartbeats that are old by now: it is not compared", "clocks", len(all)+1)
		}
		return nil
	}
	return &ClockError{Ahead: ahead, Allowed: allowed, Clocks: len(all) + 1, Certain: true}
}

// median returns the median of the clock and others, the later one of two in the
// middle: it is no reason to refuse.
func median(now time.Time, others map[string]time.Time) time.Time {
	all := []time.Time{now}
	for _, at := range others {
		all = append(all, at)
	}
	slices.SortFunc(all, time.Time.Compare)
	return all[len(all)/2]
}

package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
)

// Tag issues the IDs of one tag. All methods are safe for concurrent use.
//
// The first answer of a room shows the kind of the tag. A chain issues a counter's
// IDs; a generator issues time-ordered IDs.
type Tag struct {
	// The chain of a counter; empty for a time-ordered tag. It is the first field, and
	// not a pointer, so that TryNext costs no more than the chain's TryNext.
	chain allocator.Chain
	timed atomic.Pointer[timed]   // nil for a counter, and before the kind is known
	text  atomic.Pointer[tagText] // nil before a room's first answer

	client *Client
	name   allocator.Tag
	kept   bool // the program has a handle; guarded by client.mu

	leased struct { // of the last segment
		sync.Mutex
		until time.Time
		ttl   time.Duration // 0 for no end
	}

	keeping keeping // the keeper's alone
}

// Name returns the tag's name.
func (t *Tag) Name() string { return string(t.name) }

// TryNext returns an ID if one is at hand, and false otherwise: then call Next. It is
// small enough for the compiler to inline it into the caller's loop. It always returns
// false under Options.Strict, and for time-ordered IDs; Next issues these without
// waiting.
func (t *Tag) TryNext() (id int64, ok bool) { return t.chain.TryNext() }

// Next returns an ID; see Client.Next.
func (t *Tag) Next(ctx context.Context) (id int64, err error) {
	for {
		if d := t.timed.Load(); d != nil {
			if id, err = d.next(ctx); !errors.Is(err, error(errEnded)) {
				return id, t.ofClient(err)
			}
			continue
		}
		if id, ok := t.chain.TryNext(); ok {
			return id, nil
		}
		if id, err = t.chain.Next(ctx); err == nil || t.timed.Load() == nil {
			return id, t.ofClient(err)
		}
	}
}

// NextN appends n IDs, 1 to 2^40, to dst as runs and returns the longer slice. The IDs of
// a run are consecutive, unless it has a Stride. For time-ordered IDs n is at most the
// number that one worker has in a second. Runs that NextN appended before an error are
// lost, a gap. Its errors are Next's and Invalid.
func (t *Tag) NextN(ctx context.Context, n int64, dst []allocator.Run) (_ []allocator.Run, err error) {
	for had := len(dst); ; dst = dst[:had] {
		if d := t.timed.Load(); d != nil {
			if dst, err = d.nextN(ctx, n, dst); !errors.Is(err, error(errEnded)) {
				return dst, t.ofClient(err)
			}
			continue
		}
		if dst, err = t.chain.NextN(ctx, n, dst); err == nil || t.timed.Load() == nil {
			return dst, t.ofClient(err)
		}
	}
}

// Warm returns when the tag holds IDs. For time-ordered IDs it takes one ID. Its
// errors are Next's.
func (t *Tag) Warm(ctx context.Context) error {
	if t.timed.Load() == nil {
		if err := t.chain.Warm(ctx); err == nil || t.timed.Load() == nil {
			return t.ofClient(err)
		}
	}
	var err error
	if d := t.timed.Load(); d != nil && d.wide {
		_, err = t.appendWide(ctx, nil)
	} else {
		_, err = t.Next(ctx)
	}
	return err
}

// Status returns how many IDs are held, how long they last, and more. For
// time-ordered IDs it has only the name, how long the worker's window lasts, and why
// there is none.
func (t *Tag) Status() allocator.Status {
	s := t.chain.Status()
	if d := t.timed.Load(); d != nil {
		s.Lasts, s.Failure = d.worker.status()
	}
	return s
}

// ofClient converts an error of a call into the client's error.
func (t *Tag) ofClient(err error) error {
	if err != nil && (errors.Is(err, error(allocator.ErrClosed)) || t.client.closed()) {
		return ErrClosed
	}
	return err
}

// newTag returns a tag of which nothing is known yet.
func newTag(c *Client, name allocator.Tag) (*Tag, error) {
	t := &Tag{client: c, name: name}
	cfg := allocator.ChainConfig{
		Tag: name, Source: source{t}, Refiller: c.refiller, Settings: c.opts.settings(),
		// Two instances' segments may come in any order.
		Unordered: true,
	}
	if c.opts.Strict {
		// With a gate the chain checks the segment's end at each ID. The gate
		// itself allows all: new layouts replace segments elsewhere.
		cfg.Gate = func(allocator.Segment) (allocator.Part, error) { return allocator.Part{}, nil }
	}
	return t, t.chain.Init(cfg)
}

// source leases a tag's segments from the rooms.
type source struct{ *Tag }

// errTimed ends the wait of a chain's callers if the tag has time-ordered IDs.
var errTimed = &allocator.Error{Kind: allocator.Conflict, Msg: "the tag has time-ordered IDs, or had until now: retry"}

// Lease implements allocator.Source.
func (s source) Lease(ctx context.Context, n int64) (allocator.Segment, error) {
	c := s.client
	lease, from, err := c.pool.lease(ctx, s.name, n)
	if err != nil {
		if limit := api.LimitOf(err); limit > 0 {
			s.chain.Limit(limit)
		}
		return allocator.Segment{}, err
	}
	s.setText(lease.format, lease.keyCheck)
	if lease.timed != nil {
		if w := c.worker(lease.timed.Layout.WorkerBits); w != nil {
			w.attach(s.Tag, *lease.timed)
		}
		return allocator.Segment{}, errTimed
	}
	if !from.other && !c.heard(lease.serves) {
		c.pool.avoid(from) // it lags behind, but the segments that it leases are valid
	}
	if lease.limit > 0 {
		s.chain.Limit(lease.limit)
	}
	s.leased.Lock()
	s.leased.until, s.leased.ttl = lease.seg.Until, lease.ttl
	s.leased.Unlock()
	c.keeperLooksBefore(lease.seg.Until)
	return lease.seg, nil
}

// lastLease returns the end and the time to live of the last segment.
func (t *Tag) lastLease() (until time.Time, ttl time.Duration) {
	t.leased.Lock()
	defer t.leased.Unlock()
	return t.leased.until, t.leased.ttl
}

package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
)

// Tag issues the IDs of one tag. All methods are safe for concurrent use. It is
// the tag's chain itself, under a type with the methods that are a caller's: a
// struct around it would cost TryNext a tenth of its speed.
type Tag allocator.Chain

func (t *Tag) chain() *allocator.Chain { return (*allocator.Chain)(t) }

// Name returns the tag's name.
func (t *Tag) Name() string { return string(t.chain().Status().Tag) }

// TryNext returns an ID if there is one at hand, and false otherwise: then Next
// must be called. Under Options.Strict it always returns false. It is small
// enough that the compiler puts it into the caller's loop.
func (t *Tag) TryNext() (id int64, ok bool) { return (*allocator.Chain)(t).TryNext() }

// Next returns an ID; see Client.Next.
func (t *Tag) Next(ctx context.Context) (int64, error) {
	if id, ok := t.TryNext(); ok {
		return id, nil
	}
	id, err := t.chain().Next(ctx)
	return id, ofClient(err)
}

// NextN appends n IDs, 1 to 2^40, to dst as runs of consecutive IDs and returns
// the longer slice. Runs that it appended before an error are lost, a gap. Its
// errors are Next's and Invalid.
func (t *Tag) NextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error) {
	dst, err := t.chain().NextN(ctx, n, dst)
	return dst, ofClient(err)
}

// Warm returns when IDs are held. Its errors are Next's.
func (t *Tag) Warm(ctx context.Context) error { return ofClient(t.chain().Warm(ctx)) }

// Status tells what is held, for how long it lasts, and more.
func (t *Tag) Status() allocator.Status { return t.chain().Status() }

// ofClient returns a chain's error as the client's.
func ofClient(err error) error {
	if errors.Is(err, error(allocator.ErrClosed)) {
		return ErrClosed
	}
	return err
}

// held is what a client has of one tag.
type held struct {
	chain  *allocator.Chain
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

func hold(c *Client, name allocator.Tag) (*held, error) {
	h := &held{client: c, name: name}
	cfg := allocator.ChainConfig{
		Tag: name, Source: source{h}, Refiller: c.refiller, Settings: c.opts.settings(),
		// Two instances' segments may come in any order.
		Unordered: true,
	}
	if c.opts.Strict {
		// A chain with a gate checks the segment's end at each ID; layouts are
		// followed by replacement.
		cfg.Gate = func(allocator.Segment) (allocator.Part, error) { return allocator.Part{}, nil }
	}
	var err error
	h.chain, err = allocator.NewChain(cfg)
	return h, err
}

// source is where a tag's segments come from: the rooms.
type source struct{ *held }

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
	if !from.other && !c.heard(lease.serves) {
		c.pool.avoid(from) // it lags; the segments that it leases are good all the same
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
func (h *held) lastLease() (until time.Time, ttl time.Duration) {
	h.leased.Lock()
	defer h.leased.Unlock()
	return h.leased.until, h.leased.ttl
}

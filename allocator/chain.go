package allocator

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"
)

// ChainConfig says whose IDs a chain issues and where they come from.
type ChainConfig struct {
	Tag      Tag
	Source   Source
	Refiller *Refiller
	Settings Settings
	// Gate, where it is set, is asked for every ID after it was taken; see Gate.
	Gate Gate
	// Unordered lets the source lease segments below earlier ones, as two
	// instances of a room in turn do. The chain's IDs then do not only grow.
	Unordered bool
}

// Chain issues the IDs of one tag from memory. All methods are safe for
// concurrent use; TryNext, and Next and NextN while IDs are held, take no lock
// but at the end of a link.
type Chain struct {
	head atomic.Pointer[link] // never nil; a spent one stands for nothing, as always where there is a gate
	// gate is nil for none; gated is the head where there is one.
	gate  Gate
	gated atomic.Pointer[link]
	// The head is read by every call: nothing that changes more often is in its cache
	// line, which these fill up.
	tag      Tag
	source   Source
	refiller *Refiller

	unordered  bool
	place      place // guarded by refiller.mu, see there
	background bool  // an entry in the refiller's background queue is this chain's; guarded by refiller.mu

	mu struct {
		sync.Mutex
		settings unique.Handle[Settings] // one copy for all chains that have the same
		pace     pace

		tail     []Segment // what follows the head, in the order of leasing
		tailHeld int64     // the IDs in tail
		last     int64     // the last ID of the last segment, -1 before any
		issued   int64     // IDs taken from links before the head
		dropped  int64     // IDs leased and never issued: closes, layout changes, errors
		refills  int64     // segments leased

		wanted  int64         // what the callers that wait now want together
		waits   int64         // callers that had to wait, ever
		changed chan struct{} // closed when waiting callers should look again; nil while none waits

		part  Part    // the newest to follow: segments that it outdates are to be replaced, and no longer accepted
		least int64   // and so are segments that begin below this ID
		limit int64   // no ID from here on is issued; 0 for none
		used  instant // when IDs were last seen to have been issued
		seen  int64   // issued, then

		rare *rare // nil where there is nothing of it

		starved bool // since the last refill: the target was doubled already
		stale   bool // the last segment that was leased was to be replaced at once
		asleep  bool // nothing is leased before the next caller
		closed  bool
	}
}

// ErrClosed is returned by a chain's methods after Close. The caller then looks
// the tag's chain up again.
var ErrClosed = &Error{Kind: Unavailable, Msg: "chain closed"}

// failurePause is how long the error of a refill is repeated to callers before
// the source is asked again.
const failurePause = time.Second

// spentLink returns the link of a chain that holds nothing: no ordinal is below
// its end, 0.
func spentLink() *link { return &link{} }

// NewChain returns an empty chain. It leases nothing before it is first used.
// Its error is Invalid.
func NewChain(cfg ChainConfig) (*Chain, error) {
	c := &Chain{}
	if err := c.Init(cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// Init makes an empty chain of the zero value, as NewChain does: for a chain that is a part
// of something larger.
func (c *Chain) Init(cfg ChainConfig) error {
	if err := cfg.Settings.Validate(); err != nil {
		return err
	}
	c.tag, c.source, c.refiller, c.gate, c.unordered = cfg.Tag, cfg.Source, cfg.Refiller, cfg.Gate, cfg.Unordered
	c.head.Store(spentLink())
	c.setFront(spentLink())
	c.mu.settings = unique.Make(cfg.Settings)
	c.mu.last = -1
	now := c.refiller.instant(c.now())
	c.mu.pace.sampled, c.mu.used = now, now
	return nil
}

// Tag returns the tag whose IDs the chain issues.
func (c *Chain) Tag() Tag { return c.tag }

// TryNext returns the next ID if there is one at the head, and false
// otherwise: then Next must be called. It is the fast half of Next, small
// enough that the compiler puts it into the caller's loop:
//
//	id, ok := chain.TryNext()
//	if !ok {
//		id, err = chain.Next(ctx)
//	}
//
// A chain with a gate always returns false.
func (c *Chain) TryNext() (id int64, ok bool) {
	l := c.head.Load()
	n := uint64(l.counter.Add(1))
	if n >= l.end {
		return 0, false
	}
	return l.id(n), true
}

// Next returns the next ID. It waits only while nothing is held, until ctx
// ends at the latest. Its errors are an *AwayError when the source has been
// away for longer than the refiller's patience, what the source said of the
// tag (Exhausted, say), ErrClosed, and Unavailable with ctx's error as the
// cause.
func (c *Chain) Next(ctx context.Context) (int64, error) {
	if id, ok := c.TryNext(); ok {
		return id, nil
	}
	return c.next(ctx)
}

func (c *Chain) next(ctx context.Context) (int64, error) {
	if c.gate != nil {
		return c.nextGated(ctx)
	}
	for {
		if err := c.wait(ctx, 1, 1); err != nil {
			return 0, err
		}
		if id, ok := c.TryNext(); ok {
			return id, nil
		}
	}
}

// NextN appends n IDs, n from 1 to LargestStep, to dst as runs of consecutive
// IDs in growing order and returns the longer slice. It takes nothing before
// the chain holds n IDs. Its errors are Next's and Invalid; the runs it
// appended before one are lost, a gap.
func (c *Chain) NextN(ctx context.Context, n int64, dst []Run) ([]Run, error) {
	if err := checkCount(n); err != nil {
		return dst, err
	}
	if c.gate != nil {
		return c.nextNGated(ctx, n, dst)
	}
	if c.head.Load().left() < n {
		if err := c.wait(ctx, n, n); err != nil {
			return dst, err
		}
	}
	for n > 0 {
		l := c.head.Load()
		first, got := l.takeN(n)
		if got > 0 {
			dst = l.appendRuns(dst, first, got)
		}
		if n -= got; n > 0 {
			if err := c.wait(ctx, n, n); err != nil {
				return dst, err
			}
		}
	}
	return dst, nil
}

// checkCount checks 1 <= n <= 2^40: sums of more could wrap.
func checkCount(n int64) error {
	if n < 1 || n > LargestStep {
		return Errorf(Invalid, "count: %d; allowed: 1 to %d", n, int64(LargestStep))
	}
	return nil
}

// Lease takes up to n IDs, n from 1 to LargestStep, as one segment, for a
// caller that issues them itself. It returns fewer when the chain's first
// segment has fewer, and waits only while the chain holds nothing. Its errors
// are Next's and Invalid.
func (c *Chain) Lease(ctx context.Context, n int64) (Segment, error) {
	if err := checkCount(n); err != nil {
		return Segment{}, err
	}
	for {
		c.mu.Lock()
		seg, ok := c.cut(n)
		c.mu.Unlock()
		if ok {
			switch ok, err := c.admits(seg); {
			case err != nil:
				return Segment{}, err
			case ok:
				return seg, nil
			}
		}
		if err := c.wait(ctx, 1, n); err != nil {
			return Segment{}, err
		}
	}
}

// cut ends the head early and takes up to n IDs from the first segment held.
// The caller holds the lock.
func (c *Chain) cut(n int64) (Segment, bool) {
	c.putBack()
	if len(c.mu.tail) == 0 {
		return Segment{}, false
	}
	now := c.now()
	if n > c.held() {
		c.starve(now)
	}
	seg, rest := c.mu.tail[0].Split(n)
	c.mu.tailHeld -= seg.Count
	c.mu.issued += seg.Count
	c.shorten(rest)
	c.promote(now)
	return seg, true
}

// putBack ends the head link and returns its rest to the front of the tail.
func (c *Chain) putBack() {
	l := c.front()
	taken := l.close()
	c.setFront(spentLink())
	c.mu.issued += taken
	_, rest := l.seg.Split(taken)
	if rest.Count == 0 {
		return
	}
	c.mu.tailHeld += rest.Count
	if len(c.mu.tail) > 0 {
		if whole, ok := rest.join(c.mu.tail[0]); ok {
			c.mu.tail[0] = whole
			return
		}
	}
	c.mu.tail = slices.Insert(c.mu.tail, 0, rest)
}

// shorten replaces the first segment of the tail by what is left of it.
func (c *Chain) shorten(rest Segment) {
	if rest.Count > 0 {
		c.mu.tail[0] = rest
		return
	}
	if c.mu.tail = c.mu.tail[1:]; len(c.mu.tail) == 0 {
		c.mu.tail = nil // let the array go
	}
}

// promote puts the next link at the head, if the head is spent, and asks for a
// refill where the chain holds too little. A link is an eighth of the target
// at most, so that a chain looks at itself often enough to refill ahead. The
// caller holds the lock.
func (c *Chain) promote(now time.Time) {
	if l := c.front(); l.left() == 0 && len(c.mu.tail) > 0 {
		c.mu.issued += l.seg.Count
		next, rest := newLink(c.mu.tail[0], c.piece(now))
		c.mu.tailHeld -= next.seg.Count
		c.shorten(rest)
		c.setFront(next)
	}
	c.mu.pace.observe(c.settings(), c.refiller.instant(now), c.issued())
	c.requestIfNeeded(now)
}

// front returns the link that is being handed out.
func (c *Chain) front() *link {
	if c.gate != nil {
		return c.gated.Load()
	}
	return c.head.Load()
}

// setFront replaces it. The caller holds the lock.
func (c *Chain) setFront(l *link) {
	if c.gate != nil {
		c.gated.Store(l) // and TryNext finds nothing
		return
	}
	c.head.Store(l)
}

func (c *Chain) piece(now time.Time) int64 {
	return max(c.mu.pace.target(c.settings(), now)/linkParts, 1)
}

// issued returns how many IDs were taken so far. The caller holds the lock.
func (c *Chain) issued() int64 { return c.mu.issued + c.front().taken() }

// held returns how many IDs are left. The caller holds the lock.
func (c *Chain) held() int64 { return c.front().left() + c.mu.tailHeld }

// wait returns when the chain holds need IDs with some of them at the head, or
// with the reason why it will not soon. want is how many the caller could use:
// at least need, at most LargestStep.
func (c *Chain) wait(ctx context.Context, need, want int64) error {
	for first := true; ; first = false {
		outage := c.refiller.outage()
		changed, err := c.enlist(need, want, first)
		if changed == nil {
			return err
		}
		select {
		case <-changed:
		case <-outage.declared:
			err = &AwayError{Tag: c.tag, Since: outage.since, Err: outage.err}
		case <-ctx.Done():
			err = Errorf(Unavailable, "tag %s: no new segment before the caller's deadline: %w", c.tag, context.Cause(ctx))
		}
		c.mu.Lock()
		c.mu.wanted -= want
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// enlist returns nil and nil when the chain holds need IDs, nil and an error
// when it will not soon, and otherwise adds the caller to those that wait and
// returns the channel to wait on.
func (c *Chain) enlist(need, want int64, first bool) (changed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.promote(now)
	switch {
	case c.mu.closed:
		return nil, ErrClosed
	case c.held() >= need:
		return nil, nil
	case c.mu.rare.failing(now) != nil:
		return nil, c.mu.rare.failing(now)
	}
	if first {
		c.mu.waits++
		c.starve(now)
	}
	c.mu.wanted += want
	c.mu.asleep = false
	if c.mu.changed == nil {
		c.mu.changed = make(chan struct{})
	}
	c.refiller.request(c, urgent)
	return c.mu.changed, nil
}

// starve doubles the target, once per refill; the wait for the first segment
// of all is not starvation. The caller holds the lock.
func (c *Chain) starve(now time.Time) {
	if c.mu.refills > 0 && !c.mu.starved {
		c.mu.starved = true
		c.mu.pace.starve(c.settings(), now)
	}
}

// Settings returns the chain's settings.
func (c *Chain) Settings() Settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settings()
}

// settings is Settings. The caller holds the lock.
func (c *Chain) settings() Settings { return c.mu.settings.Value() }

func (c *Chain) now() time.Time { return c.refiller.cfg.Now() }

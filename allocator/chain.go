package allocator

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ChainConfig are the tag, the source and the refiller of a chain.
type ChainConfig struct {
	Tag      Tag
	Source   Source
	Refiller *Refiller
	Settings Settings
	// First is how many IDs the first lease asks for, if that is more than the least step: of a tag that was in use
	// before a restart. 0 is not known.
	First int64
	// Gate, if set, is called for every ID after it was taken; see Gate.
	Gate Gate
	// Unordered lets the source lease segments below earlier ones, as two
	// instances of a room in turn do. The chain's IDs then do not only grow.
	Unordered bool
}

// Chain issues the IDs of one tag from memory. All methods are safe for
// concurrent use; TryNext, and Next and NextN while IDs are held, take a lock only
// at the end of a link.
type Chain struct {
	head atomic.Pointer[link] // never nil; spent if there is no link, and always in a chain with a gate
	// gate may be nil; gated is the head of a chain with a gate.
	gate  Gate
	gated atomic.Pointer[link]
	// Every call reads the head, so no field that changes more often may share its
	// cache line. These fields fill it up.
	tag      Tag
	source   Source
	refiller *Refiller

	unordered  bool
	place      place // guarded by refiller.mu, see there
	background bool  // an entry in the refiller's background queue is this chain's; guarded by refiller.mu

	mu struct {
		sync.Mutex
		settings Settings
		pace     pace

		tail     []Segment // the segments after the head, in the order of leasing
		tailHeld int64     // the IDs in tail
		last     int64     // the last ID of the last segment, -1 before any
		issued   int64     // IDs taken from links before the head
		dropped  int64     // IDs leased and never issued: closes, layout changes, errors
		refills  int64     // segments leased

		wanted  int64         // the sum of the IDs that waiting callers want
		waits   int64         // callers that had to wait so far
		changed chan struct{} // closed when waiting callers should check again; nil if none waits

		part  Part      // the newest part: segments that it outdates are replaced, and no longer accepted
		least int64     // segments that begin below this ID are treated likewise
		limit int64     // no ID from limit on is issued; 0 for no limit
		used  time.Time // when IDs were last seen to have been issued
		seen  int64     // issued, then

		failed *failed   // the last refill; nil after a success, and where the store was away
		fading *fading   // which segments the next one replaces; nil for none
		recent []Segment // of an unordered chain: the last recentSegments leased ones

		starved bool // the target was already doubled since the last refill
		stale   bool // the last leased segment had to be replaced at once
		asleep  bool // nothing is leased before the next caller
		closed  bool
	}
}

// ErrClosed is returned by a chain's methods after Close. The caller then gets the
// tag's chain anew.
var ErrClosed = &Error{Kind: Unavailable, Msg: "chain closed"}

// failurePause is how long callers get the error of the last refill before the
// chain asks the source again.
const failurePause = time.Second

// parkAfter is how long a chain keeps its link without a caller.
const parkAfter = 10 * time.Second

// NewChain returns an empty chain. It leases nothing before it is first used.
// Its error is Invalid.
func NewChain(cfg ChainConfig) (*Chain, error) {
	c := &Chain{}
	if err := c.Init(cfg); err != nil {
		return nil, err
	}
	return c, nil
}

// Init turns the zero value into an empty chain, as NewChain does, for a chain that is a
// field of another struct.
func (c *Chain) Init(cfg ChainConfig) error {
	if err := cfg.Settings.Validate(); err != nil {
		return err
	}
	c.tag, c.source, c.refiller, c.gate, c.unordered = cfg.Tag, cfg.Source, cfg.Refiller, cfg.Gate, cfg.Unordered
	c.head.Store(c.refiller.spent)
	if c.gate != nil {
		c.head.Store(&link{}) // of its own: it stays, and each call counts at it
		c.gated.Store(c.refiller.spent)
	}
	c.mu.settings = cfg.Settings
	c.mu.last = -1
	now := c.now()
	c.mu.pace.sampled, c.mu.used = now, now
	c.mu.pace.peak = float64(cfg.First) / span(cfg.Settings)
	return nil
}

// Tag returns the tag whose IDs the chain issues.
func (c *Chain) Tag() Tag { return c.tag }

// TryNext returns the next ID if there is one at the head, and false otherwise:
// then call Next. It is the fast part of Next, small enough for the compiler to
// inline it into the caller's loop:
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

// Holds reports whether TryNext would probably return an ID.
func (c *Chain) Holds() bool { return c.gate == nil && c.head.Load().remaining() > 0 }

// Next returns the next ID. It waits only while nothing is held, until ctx
// ends at the latest. Its errors are an *AwayError when the source has been
// away for longer than the refiller's patience, the source's error for the tag
// (such as Exhausted), ErrClosed, and Unavailable with ctx's error as the cause.
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
// the chain holds n IDs. Its errors are Next's and Invalid. Runs that it appended
// before an error are lost: a gap.
func (c *Chain) NextN(ctx context.Context, n int64, dst []Run) ([]Run, error) {
	if err := checkCount(n); err != nil {
		return dst, err
	}
	if c.gate != nil {
		return c.nextNGated(ctx, n, dst)
	}
	if c.head.Load().remaining() < n {
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

// checkCount checks 1 <= n <= 2^40: sums of larger numbers could overflow.
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
	c.mu.pace.leased += seg.Count
	c.shorten(rest)
	c.promote(now)
	return seg, true
}

// putBack ends the head link and returns its rest to the front of the tail. The caller holds the lock.
func (c *Chain) putBack() {
	l := c.front()
	taken := l.close()
	c.setFront(c.refiller.spent)
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

// shorten replaces the first segment of the tail by rest.
func (c *Chain) shorten(rest Segment) {
	if rest.Count > 0 {
		c.mu.tail[0] = rest
		return
	}
	if c.mu.tail = c.mu.tail[1:]; len(c.mu.tail) == 0 {
		c.mu.tail = nil // free the array
	}
}

// promote puts the next link at the head, if the head is spent, and requests a
// refill if the chain holds too few IDs. A link is an eighth of the target at most,
// so that a chain checks itself often enough to refill ahead. The caller holds the
// lock.
func (c *Chain) promote(now time.Time) {
	if l := c.front(); l.remaining() == 0 && len(c.mu.tail) > 0 {
		c.mu.issued += l.seg.Count
		next, rest := newLink(c.mu.tail[0], c.piece(now))
		c.mu.tailHeld -= next.seg.Count
		c.shorten(rest)
		c.setFront(next)
	}
	c.measure(now)
}

// settle promotes the next link for callers to come. Without a caller for parkAfter the chain keeps its IDs as segments
// alone, without a link's 256 bytes: a room may have a million such chains. The caller holds the lock.
func (c *Chain) settle(now time.Time) {
	if c.look(now, c.mu.wanted > 0); c.since(now) < parkAfter {
		c.promote(now)
		return
	}
	if c.front() != c.refiller.spent {
		c.putBack()
	}
	c.measure(now)
}

// measure measures the rate, and requests a refill if the chain holds too few IDs. The caller holds the lock.
func (c *Chain) measure(now time.Time) {
	c.mu.pace.observe(c.mu.settings, now, c.issued())
	c.requestIfNeeded(now)
}

// front returns the link that is being handed out.
func (c *Chain) front() *link {
	if c.gate != nil {
		return c.gated.Load()
	}
	return c.head.Load()
}

// setFront replaces the link that is being handed out. The caller holds the lock.
func (c *Chain) setFront(l *link) {
	if c.gate != nil {
		c.gated.Store(l) // so TryNext finds no ID
		return
	}
	c.head.Store(l)
}

func (c *Chain) piece(now time.Time) int64 {
	return max(c.mu.pace.target(c.mu.settings, now)/linkParts, 1)
}

// issued returns how many IDs were taken so far. The caller holds the lock.
func (c *Chain) issued() int64 { return c.mu.issued + c.front().taken() }

// held returns how many IDs are left. The caller holds the lock.
func (c *Chain) held() int64 { return c.front().remaining() + c.mu.tailHeld }

// wait returns nil when the chain holds need IDs, some of them at the head, or the
// reason why it will not soon. want is how many IDs the caller could use: at least
// need, at most LargestStep.
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
			err = Errorf(Unavailable,
				"tag %s: no new segment before the caller's deadline: %w", c.tag, context.Cause(ctx))
		}
		c.mu.Lock()
		c.mu.wanted -= want
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// enlist returns nil and nil if the chain holds need IDs, and nil and an error if
// it will not soon. Otherwise it adds the caller to the waiting ones and returns
// the channel to wait on.
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
	case c.failing(now) != nil:
		return nil, c.failing(now)
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

// starve doubles the target, once per refill. The wait for the very first segment
// is not starvation. The caller holds the lock.
func (c *Chain) starve(now time.Time) {
	if c.mu.last >= 0 && !c.mu.starved {
		c.mu.starved = true
		c.mu.pace.starve(c.mu.settings, now)
	}
}

// Settings returns the chain's settings.
func (c *Chain) Settings() Settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.settings
}

func (c *Chain) now() time.Time { return c.refiller.cfg.Now() }

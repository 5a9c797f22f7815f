package allocator

import (
	"context"
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

	place      place // guarded by refiller.mu, see there
	background bool  // an entry in the refiller's background queue is this chain's; guarded by refiller.mu

	mu struct {
		sync.Mutex
		stock   stock   // what the chain holds
		pace    pace    // how many IDs it should hold
		bounds  bounds  // which segments it may hold
		callers waiting // those that wait for IDs

		refills int64     // segments leased
		most    int64     // what the last of them could fill the chain up to, see pace
		used    time.Time // when IDs were last seen to have been issued
		seen    int64     // how many were issued by then
		failed  *failed   // the last refill; nil after a success, and where the store was away
		stale   bool      // the last leased segment had to be replaced at once
		asleep  bool      // nothing is leased before the next caller
		closed  bool
	}
}

// waiting are callers that wait for IDs.
type waiting struct {
	wanted  int64         // the sum of the IDs that they want
	times   int64         // callers that had to wait so far
	changed chan struct{} // closed when they should check again; nil if none waits
}

// wake makes the callers check again.
func (w *waiting) wake() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
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
	c.tag, c.source, c.refiller, c.gate = cfg.Tag, cfg.Source, cfg.Refiller, cfg.Gate
	front := &c.head
	if c.gate != nil {
		c.head.Store(&link{}) // of its own: it stays, and each call counts at it
		front = &c.gated
	}
	front.Store(spent)
	now := c.now()
	c.mu.stock = stock{front: front, last: -1}
	c.mu.pace = pace{settings: cfg.Settings, sampled: now, peak: float64(cfg.First) / span(cfg.Settings)}
	if cfg.Unordered {
		c.mu.bounds.recent = new(recent)
	}
	c.mu.used = now
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

// Next returns the next ID. It waits only while nothing is held, or the chain is behind (Behind), until ctx
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
	for {
		// The gate is asked before an ID is taken, too, so that a closed gate wastes none.
		l := c.mu.stock.front.Load()
		n, got, err := c.takeN(l, 1)
		if err != nil {
			return 0, err
		}
		if got > 0 {
			return l.id(n), nil
		}
		if err := c.wait(ctx, 1, 1); err != nil {
			return 0, err
		}
	}
}

// takeN takes up to n ordinals of l that may be issued. IDs that were taken
// while the gate closed are lost: a gap.
func (c *Chain) takeN(l *link, n int64) (first uint64, got int64, err error) {
	ok, err := c.admits(l.seg)
	if !ok {
		return 0, 0, err
	}
	first, got = l.takeN(n)
	if got > 0 {
		if ok, err = c.admits(l.seg); !ok {
			return 0, 0, err
		}
	}
	return first, got, nil
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
// segment has fewer, and waits only while the chain holds nothing or is behind. Its errors
// are Next's and Invalid.
func (c *Chain) Lease(ctx context.Context, n int64) (Segment, error) {
	if err := checkCount(n); err != nil {
		return Segment{}, err
	}
	for {
		if seg := c.cut(n); seg.Count > 0 {
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

// cut takes up to n IDs from the first segment held, for a caller that issues them itself.
func (c *Chain) cut(n int64) Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.bounds.behind() {
		return Segment{}
	}
	seg := c.mu.stock.cut(n)
	if seg.Count == 0 {
		return Segment{}
	}
	now := c.now()
	if n > seg.Count+c.mu.stock.held() {
		c.mu.pace.starve(now)
	}
	c.mu.pace.leased += seg.Count
	c.settle(now, true)
	return seg
}

// settle gets the chain ready for its next caller: it puts the next link at the front, measures the rate, and requests
// a refill if too few IDs are held. Without a caller now, or for parkAfter, the chain keeps its IDs as segments alone,
// without a link's 256 bytes: a room may have a million such chains. The caller holds the lock.
func (c *Chain) settle(now time.Time, called bool) {
	s := &c.mu.stock
	switch {
	case c.mu.bounds.behind(): // see Behind
	case called || c.unused(now) < parkAfter:
		s.promote(c.mu.pace.link(s.held(), now))
	case s.front.Load() != spent:
		s.putBack()
	}
	c.mu.pace.observe(now, s.issued())
	c.requestIfNeeded(now)
}

// wait returns nil when the chain holds need IDs, some of them at the head, or the
// reason why it will not soon. want is how many IDs the caller could use: at least
// need, at most LargestStep. A chain that is behind holds none before it has leased or goes on.
func (c *Chain) wait(ctx context.Context, need, want int64) error {
	var until time.Time // how long the caller waits for a chain that is behind
	for first := true; ; first = false {
		outage := c.refiller.outage()
		changed, behind, err := c.enlist(need, want, first)
		if changed == nil {
			return err
		}
		left := false
		var late <-chan time.Time
		if behind {
			if until.IsZero() {
				until = patience(ctx)
			}
			late = time.After(time.Until(until))
		}
		select {
		case <-changed:
			behind = false
		case <-late:
		case <-outage.declared:
			err = &AwayError{Tag: c.tag, Since: outage.since, Err: outage.err}
		case <-ctx.Done():
			left = true
			err = Errorf(Unavailable,
				"tag %s: no new segment before the caller's deadline: %w", c.tag, context.Cause(ctx))
		}
		c.mu.Lock()
		c.mu.callers.wanted -= want
		// The caller waited for long enough, or nothing will be leased soon. One that left ends no other's wait.
		if behind && (!left || c.mu.callers.wanted == 0) {
			goOn(c)
			if !left {
				err = nil
			}
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// enlist returns nil and nil if the chain holds need IDs, and nil and an error if
// it will not soon. Otherwise it adds the caller to the waiting ones and returns
// the channel to wait on, and whether the chain is behind.
func (c *Chain) enlist(need, want int64, first bool) (changed <-chan struct{}, behind bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	failed := c.mu.failed.until(now)
	if c.mu.bounds.behind() {
		askToCatchUp(c, failed != nil)
	}
	c.settle(now, true)
	held := c.mu.stock.held()
	behind = c.mu.bounds.behind()
	switch {
	case c.mu.closed:
		return nil, false, ErrClosed
	case held >= need && !behind:
		return nil, false, nil
	case failed != nil:
		return nil, false, failed
	}
	callers := &c.mu.callers
	if first {
		callers.times++
		if c.mu.stock.last >= 0 && held < need { // the wait for the very first segment is not starvation
			c.mu.pace.starve(now)
		}
	}
	callers.wanted += want
	c.mu.asleep = false
	if callers.changed == nil {
		callers.changed = make(chan struct{})
	}
	c.refiller.request(c, urgent)
	return callers.changed, behind, nil
}

// Settings returns the chain's settings.
func (c *Chain) Settings() Settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.pace.settings
}

func (c *Chain) now() time.Time { return c.refiller.cfg.Now() }

// Update replaces the settings. They take effect at the next refill, which is
// requested at once if the chain now holds too few IDs. Its error is Invalid.
func (c *Chain) Update(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s != c.mu.pace.settings {
		c.mu.pace.settings = s
		c.requestIfNeeded(c.now())
	}
	return nil
}

// Observe measures the rate, and refills if the chain holds too little. The owner of
// the chain calls it every few seconds, because a chain that is hardly used does not
// measure itself. It returns how long no ID was issued.
func (c *Chain) Observe() (unused time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.settle(now, false)
	return c.unused(now)
}

// Warm leases the first segment ahead of the first caller, and returns when it
// is there. Its errors are Next's.
func (c *Chain) Warm(ctx context.Context) error { return c.wait(ctx, 1, 1) }

// WarmN is Warm for n IDs, 1 to 2^40: it returns when the chain holds so many. Another
// caller may take them first. It also asks the gate, if there is one. Its errors are
// Next's and Invalid.
func (c *Chain) WarmN(ctx context.Context, n int64) error {
	if err := checkCount(n); err != nil {
		return err
	}
	if err := c.wait(ctx, n, n); err != nil || c.gate == nil {
		return err
	}
	if held := c.Segments(); len(held) > 0 {
		if _, err := c.gate(held[0]); err != nil {
			return err
		}
	}
	return nil
}

// Close drops all held segments. Waiting callers and all later callers get
// ErrClosed.
func (c *Chain) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.close()
}

// CloseKept is Close, and returns the segments that were held instead of dropping them: the next to be issued first.
// An ID is taken by a caller or in them, and never both.
func (c *Chain) CloseKept() (kept []Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.closed {
		c.mu.stock.putBack()
		kept, c.mu.stock.tail, c.mu.stock.tailHeld = c.mu.stock.tail, nil, 0
	}
	c.close()
	return kept
}

// Seed gives a chain that has leased nothing yet segments to begin with, each above the one before. IDs from the limit
// on are dropped. The bound of what it holds was that of the process that leased them.
func (c *Chain) Seed(segments []Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, seg := range segments {
		if seg = c.mu.bounds.cut(seg); seg.Count > 0 && seg.First > c.mu.stock.last {
			c.mu.stock.last = seg.Last()
			c.mu.stock.add(seg)
		}
	}
	c.mu.most = c.mu.stock.held()
}

// CloseUnused closes the chain if no ID was issued for idleAfter, and reports
// whether it did.
func (c *Chain) CloseUnused(idleAfter time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unused(c.now()) < idleAfter {
		return false
	}
	c.close()
	return true
}

// Cold reports whether no ID was issued for idleAfter, or none was ever leased and no
// caller waits for one. A prescaled chain is not cold: an operator expects callers.
func (c *Chain) Cold(idleAfter time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if s := c.mu.pace.settings; s.Prescale > 0 && now.Before(s.PrescaleUntil) {
		return false
	}
	return c.unused(now) >= idleAfter || c.mu.stock.last < 0 && c.mu.callers.wanted == 0
}

// unused returns how long no ID was seen to have been issued, and no caller waited for one. The caller holds the lock.
func (c *Chain) unused(now time.Time) time.Duration {
	if issued := c.mu.stock.issued(); issued != c.mu.seen || c.mu.callers.wanted > 0 {
		c.mu.seen, c.mu.used = issued, now
	}
	return now.Sub(c.mu.used)
}

func (c *Chain) close() {
	if c.mu.closed {
		return
	}
	c.mu.stock.drop(func(Segment) bool { return true })
	c.mu.closed = true
	c.mu.callers.wake()
}

// Status is the state of a chain at one moment.
type Status struct {
	Tag     Tag
	Issued  int64         // IDs handed out since the chain was made
	Held    int64         // IDs in memory
	Excess  int64         // those beyond the bound of the last lease: callers waited for more than they took
	Dropped int64         // IDs that were leased and will never be issued
	Last    int64         // the last ID that was leased, -1 before any
	Target  int64         // how many IDs the chain aims to hold; its next step
	Peak    float64       // the recent peak rate, IDs per second
	Lasts   time.Duration // how long Held lasts at Peak; 0 when nothing is held, LongestReserve at most
	Refills int64         // segments leased
	Waits   int64         // callers that found too few IDs, or a chain that was behind, and waited
	Version int64         // the oldest layout under which anything held was leased; 0 when nothing is held
	Used    time.Time     // when IDs were last seen to have been issued
	Failure error         // of the last refill if it failed for this tag alone
}

// Status returns the chain's state.
func (c *Chain) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	held := &c.mu.stock
	s := Status{
		Tag: c.tag, Issued: held.issued(), Held: held.held(), Dropped: held.dropped, Last: held.last,
		Target: c.mu.pace.target(now), Peak: c.mu.pace.peak,
		Refills: c.mu.refills, Waits: c.mu.callers.times, Version: held.version(),
		Used: now.Add(c.mu.used.Sub(now)),
	}
	if c.mu.failed != nil {
		s.Failure = c.mu.failed.error
	}
	s.Excess = max(s.Held-c.mu.most, 0)
	s.Lasts = lasts(s.Held, s.Peak)
	return s
}

func lasts(held int64, peak float64) time.Duration {
	if held == 0 {
		return 0
	}
	if seconds := float64(held) / peak; seconds < LongestReserve.Seconds() {
		return time.Duration(seconds * float64(time.Second))
	}
	return LongestReserve
}

// Segments returns the held segments, the next to be issued first.
func (c *Chain) Segments() []Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.stock.segments()
}

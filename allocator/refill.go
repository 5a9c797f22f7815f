package allocator

import (
	"context"
	"errors"
	"sync"
	"time"
)

// RefillerConfig configures a Refiller.
type RefillerConfig struct {
	// Concurrency bounds the leases under way at once, over all chains.
	// Default 16: enough to hide a store's round trip, too few to overload it.
	Concurrency int
	// Timeout bounds one lease. Default 2 s: one try of the ledger. When the store
	// comes back, a hanging lease delays the others for that time.
	Timeout time.Duration
	// BackoffMin and BackoffMax bound the pause after a lease found the store
	// away: it doubles from min to max, jittered by half. Defaults 20 ms and
	// 500 ms, so that a store that comes back is noticed well within a second.
	BackoffMin, BackoffMax time.Duration
	// Patience is how long the store may be away before callers of an empty chain
	// get an error instead of waiting. Default 1 s.
	Patience time.Duration
	// Finish is how long leases under way may take once Run is to end: an answer that no one waits for is a gap.
	// Default 0.
	Finish time.Duration
	// Now is the clock. It must be set.
	Now func() time.Time
	// Rand returns numbers in [0, 1) for jitter. It must be set, and be safe
	// for concurrent use.
	Rand func() float64
}

// DefaultRefillerConfig returns the defaults with the given clock and
// randomness.
func DefaultRefillerConfig(now func() time.Time, rand func() float64) RefillerConfig {
	return RefillerConfig{
		Concurrency: 16,
		Timeout:     2 * time.Second,
		BackoffMin:  20 * time.Millisecond,
		BackoffMax:  500 * time.Millisecond,
		Patience:    time.Second,
		Now:         now,
		Rand:        rand,
	}
}

// Refiller refills chains in the background: a bounded number at once, those
// with waiting callers first. While the store is away it sends one lease at a time,
// with a jittered pause after each, whatever the number of chains. The first answer
// ends that, and all chains are refilled.
type Refiller struct {
	cfg  RefillerConfig
	wake chan struct{} // holds one token when the queues or the limits changed

	mu struct {
		sync.Mutex
		queues   [2]fifo // by urgency
		inFlight int
		answered time.Time // when the store last answered
		failures int       // leases since then that found the store away
		failing  time.Time // when the first of them began, or answered if that is later
		paused   time.Time // no lease before
		outage   *outage   // never nil
	}
}

// place is the state of a chain in its refiller, guarded by Refiller.mu. A chain
// becomes idle only under its own lock, too, so that no request is lost between its
// last check and that moment.
type place uint8

const (
	idle place = iota
	background
	urgent
	leasing
)

// outage is a time in which the store may be away. Its other fields are set
// before declared is closed and not changed after.
type outage struct {
	declared chan struct{} // closed when callers should stop waiting
	since    time.Time
	err      error
}

// NewRefiller returns a refiller, which does nothing before Run.
func NewRefiller(cfg RefillerConfig) (*Refiller, error) {
	switch {
	case cfg.Concurrency < 1:
		return nil, Errorf(Invalid, "refill concurrency: %d; allowed: 1 or more", cfg.Concurrency)
	case cfg.Timeout <= 0 || cfg.BackoffMin <= 0 || cfg.BackoffMax < cfg.BackoffMin || cfg.Patience < 0:
		return nil, Errorf(Invalid,
			"refill times: timeout %v, back-off %v to %v, patience %v; allowed: positive, and min at most max",
			cfg.Timeout, cfg.BackoffMin, cfg.BackoffMax, cfg.Patience)
	case cfg.Now == nil || cfg.Rand == nil:
		return nil, Errorf(Invalid, "refiller: no clock or no randomness given")
	}
	r := &Refiller{cfg: cfg, wake: make(chan struct{}, 1)}
	r.mu.outage = &outage{declared: make(chan struct{})}
	return r, nil
}

// Outage returns since when and why the store has been away; zero and nil if it is
// not known to be away.
func (r *Refiller) Outage() (since time.Time, err error) {
	o := r.outage()
	select {
	case <-o.declared:
		return o.since, o.err
	default:
		return time.Time{}, nil
	}
}

// end ends the wait of all callers, for good.
func (r *Refiller) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.failures = 0 // otherwise outage would forget the outage
	r.declare(r.cfg.Now(), errors.New("shutting down"))
}

// leasing reports whether a lease of c is under way, or begins.
func (r *Refiller) leasing(c *Chain) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.place == leasing
}

// failing reports whether the last lease found the store away.
func (r *Refiller) failing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.failures > 0
}

// recovered notes that the store is not known to be away. The caller holds the
// lock.
func (r *Refiller) recovered() {
	r.mu.failures = 0
	if o := r.mu.outage; !o.since.IsZero() {
		r.mu.outage = &outage{declared: make(chan struct{})}
	}
}

// declare lets callers of empty chains know that the store is away. The caller
// holds the lock.
func (r *Refiller) declare(since time.Time, err error) {
	if o := r.mu.outage; o.since.IsZero() {
		o.since, o.err = since, err
		close(o.declared)
		return
	}
	fresh := &outage{declared: r.mu.outage.declared, since: since, err: err}
	r.mu.outage = fresh
}

// outage returns the present outage. It forgets an outage if no lease was tried for
// a while, because no chain needed one. So the next caller gets no outdated error,
// but tries anew.
func (r *Refiller) outage() *outage {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.failures > 0 && r.mu.inFlight == 0 && r.cfg.Now().Sub(r.mu.paused) > r.cfg.Patience {
		r.recovered()
	}
	return r.mu.outage
}

// fifo is a queue of chains. The zero value is empty.
type fifo struct {
	chains []*Chain
	head   int
}

func (q *fifo) len() int { return len(q.chains) - q.head }

func (q *fifo) push(c *Chain) {
	if q.head > 64 && q.head > len(q.chains)/2 {
		q.chains = append(q.chains[:0], q.chains[q.head:]...)
		clear(q.chains[len(q.chains):cap(q.chains)])
		q.head = 0
	}
	q.chains = append(q.chains, c)
}

func (q *fifo) pop() *Chain {
	c := q.chains[q.head]
	q.chains[q.head] = nil
	if q.head++; q.head == len(q.chains) {
		q.chains, q.head = nil, 0
	}
	return c
}

// Source leases segments of one tag. A room's source is the ledger (Instance.Source), a
// client's is the room, and a test's is memory.
//
// A Source keeps these promises. No ID is ever in two segments, of this source or any
// other of the same tag. Each segment lies above all segments that this source returned
// before, unless the chain is Unordered. Lease may return fewer than n IDs, but never
// none. It returns soon after ctx ends. Its errors carry a Kind: Unavailable means that
// the store cannot be reached (for any tag); any other kind is about this tag alone. After
// an error the IDs that were leased are lost: a gap.
//
// A Chain calls its source from one goroutine at a time.
type Source interface {
	Lease(ctx context.Context, n int64) (Segment, error)
}

// Run refills until ctx ends, then waits for the leases under way, which get some time to end (Finish), and lets
// every waiting caller go. It returns nil. It may run once.
func (r *Refiller) Run(ctx context.Context) error {
	var leases sync.WaitGroup
	defer r.end()
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		late := time.AfterFunc(r.cfg.Finish, cancel)
		leases.Wait()
		late.Stop()
		cancel()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		c, pause := r.pop()
		if c != nil {
			leases.Go(func() { r.refill(work, c) })
			continue
		}
		var after <-chan time.Time
		if pause > 0 {
			timer.Reset(pause)
			after = timer.C
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-after:
		}
	}
	return nil
}

// pop takes the next chain to refill. It returns nil when there is none or no
// lease may start; pause then is how long to wait at most, 0 for no bound.
func (r *Refiller) pop() (c *Chain, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := r.cfg.Concurrency
	if r.mu.failures > 0 {
		limit = 1
	}
	if r.mu.inFlight >= limit {
		return nil, 0 // the next lease that ends wakes Run
	}
	if r.mu.failures > 0 {
		if pause := r.mu.paused.Sub(r.cfg.Now()); pause > 0 {
			return nil, pause
		}
	}
	for _, p := range []place{urgent, background} {
		for q := &r.mu.queues[p-background]; q.len() > 0; {
			c := q.pop()
			if p == background {
				c.background = false
			}
			if c.place == p { // otherwise it was queued again as urgent
				c.place = leasing
				r.mu.inFlight++
				return c, 0
			}
		}
	}
	return nil, 0
}

// request queues c once; a chain in the background queue moves up when it is
// urgent. The caller holds c's lock.
func (r *Refiller) request(c *Chain, now place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.place >= now {
		return
	}
	c.place = now
	if now == urgent || !c.background { // otherwise the entry of an earlier request is still in the queue
		r.mu.queues[now-background].push(c)
		c.background = c.background || now == background
	}
	r.wakeUp()
}

// refill calls c.refill with the time limit of a lease, and notes the outcome.
func (r *Refiller) refill(ctx context.Context, c *Chain) {
	start := r.cfg.Now()
	lease, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	c.refill(lease, func(asked bool, err error) { r.ended(c, start, asked, err) })
}

// ended notes the outcome of a lease. asked is false if the chain needed no lease,
// which shows nothing about the store. The caller holds c's lock.
func (r *Refiller) ended(c *Chain, start time.Time, asked bool, err error) {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	c.place = idle
	r.mu.inFlight--
	switch {
	case !asked:
	case err != nil && KindOf(err) == Unavailable:
		if r.mu.failures == 0 {
			// Other leases may have been answered while this one hung.
			r.mu.failing = start
			if r.mu.answered.After(start) {
				r.mu.failing = r.mu.answered
			}
		}
		pause := min(r.cfg.BackoffMin<<min(r.mu.failures, 20), r.cfg.BackoffMax)
		r.mu.failures++
		r.mu.paused = now.Add(time.Duration(float64(pause) * (0.5 + r.cfg.Rand()/2)))
		if now.Sub(r.mu.failing) >= r.cfg.Patience {
			r.declare(r.mu.failing, err)
		}
	default:
		r.mu.answered = now
		r.recovered()
	}
	r.wakeUp()
}

func (r *Refiller) wakeUp() { Wake(r.wake) }

// Wake sends on a channel of size one, if nothing is there yet: one wake-up serves all that came before it.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// need returns how many IDs to lease now, 0 for none, and how many the chain may hold then where no caller waits for
// more. For callers the lease takes the place of the segments that begin below lagging, too. The caller holds the lock.
func (c *Chain) need(now time.Time) (n, most, lagging int64) {
	if c.mu.closed {
		return 0, 0, 0
	}
	target, most := c.mu.pace.bounds(now)
	held, wanted := c.mu.stock.held(), c.mu.callers.wanted
	if f := c.mu.bounds.fading; wanted > 0 || f != nil && f.asked {
		lagging = c.mu.bounds.lagging()
	}
	stays := held - c.mu.stock.heldOf(func(s Segment) bool { return s.First < lagging || c.mu.bounds.replaced(s) })
	least := min(target, most-stays)
	switch {
	case stays < held && c.mu.stock.holds(c.mu.bounds.outdated):
		// Lease as many IDs as the chain holds, so that the time of the next refill does
		// not change. With only one target the next refill would be due at the next ID,
		// and a layout that renews all chains of a room would make each lease twice.
		// Where what stays is all that it may hold, the rest is dropped.
		least = min(max(target, held), most) - stays
		if least < 1 && wanted <= stays {
			return 0, most, lagging
		}
	case stays == held && held >= target && held >= wanted:
		return 0, most, lagging
	}
	return min(max(least, wanted-stays, 1), c.mu.pace.settings.MaxStep), most, lagging
}

// requestIfNeeded queues the chain for a refill. The caller holds the lock.
func (c *Chain) requestIfNeeded(now time.Time) {
	wanted := c.mu.callers.wanted
	if wanted == 0 && (c.mu.stock.last < 0 || c.mu.asleep) || c.mu.failed.until(now) != nil {
		return // no caller has used the chain yet, or not for long; or the last refill failed just now
	}
	switch n, _, _ := c.need(now); {
	case n == 0:
		c.mu.stock.drop(c.mu.bounds.outdated) // what stays is enough
	case wanted > 0:
		c.refiller.request(c, urgent)
	default:
		c.refiller.request(c, background)
	}
}

// refill leases one segment, if the chain still needs one. ended is called
// with the outcome under the chain's lock, after which the chain may be queued
// again.
func (c *Chain) refill(ctx context.Context, ended func(asked bool, err error)) {
	c.mu.Lock()
	n, most, lagging := c.need(c.now())
	c.mu.Unlock()
	var seg Segment
	var err error
	if n > 0 {
		if seg, err = c.source.Lease(ctx, n); err != nil && KindOf(err) != Unavailable && ctx.Err() != nil {
			err = Errorf(Unavailable, "lease of tag %s: %w", c.tag, err)
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	failure := err
	if n > 0 && err == nil {
		failure = c.accept(seg, most, lagging, now)
	}
	if failure != nil {
		goOn(c)
	}
	if f := c.mu.bounds.fading; f != nil && (failure != nil || n == 0) {
		f.asked = false
	}
	if failure != nil && KindOf(failure) != Unavailable { // the refiller handles a store that is away
		c.mu.failed = &failed{failure, now.Add(failurePause)}
		c.mu.callers.wake()
	}
	ended(n > 0, err)
	c.requestIfNeeded(now)
}

// failed is a failed refill, whose error waiting callers get.
type failed struct {
	error
	retry time.Time // no refill before
}

// until returns the error until the next refill is due.
func (f *failed) until(now time.Time) error {
	if f != nil && now.Before(f.retry) {
		return f.error
	}
	return nil
}

// accept adds a leased segment to the chain, or drops it. most and lagging are need's before the lease. The error is
// why the source cannot be used.
func (c *Chain) accept(leased Segment, most, lagging int64, now time.Time) error {
	if leased.Count < 1 {
		return Errorf(Internal, "tag %s: an empty segment was leased", c.tag)
	}
	s, b := &c.mu.stock, &c.mu.bounds
	seg := b.cut(leased)
	s.dropped += leased.Count // until it is added
	switch {
	case c.mu.closed:
		return nil
	case seg.Count < 1:
		return Errorf(Exhausted, "tag %s: leased %v, which lie above the limit, %d by now", c.tag, leased, b.limit)
	case b.outdated(seg):
		// The lease was made just before the change: ask again. But do not loop at
		// full speed if the source does not know the change yet.
		again := c.mu.stale
		if c.mu.stale = true; !again {
			return nil
		}
		return Errorf(Conflict, "tag %s: leased %v, but only layout %d and IDs from %d on are wanted by now",
			c.tag, seg, b.part.Version, b.least)
	case b.recent == nil && seg.First <= s.last:
		// The source broke its promise. An alarm is better than issuing an ID
		// twice.
		return Errorf(WentBack, "tag %s: a segment begins at %d, but IDs up to %d were leased before it",
			c.tag, seg.First, s.last)
	case b.recent.meets(seg):
		return Errorf(WentBack, "tag %s: %v were leased, some of them for the second time", c.tag, seg)
	}
	s.drop(b.outdated)
	if !b.fades(seg) {
		s.drop(b.fades)
	}
	// A lease that was under way when Behind was called may lie lower than that demands: then another one follows. One
	// that was made for Behind and lies lower shows that the source demands less by now.
	if least := b.lagging(); seg.First < least && lagging < least {
		b.fading = &fading{least: least, behind: b.behind(), asked: b.fading.asked}
	} else {
		lagging, b.fading = max(lagging, least), nil
	}
	s.drop(below(lagging))
	c.mu.failed, c.mu.stale = nil, false
	b.recent.add(seg)
	c.mu.pace.refilled(now, s.issued())
	c.mu.refills++
	c.mu.most = most
	s.dropped -= seg.Count
	s.last = leased.Last()
	s.add(seg)
	c.settle(now, false)
	c.mu.callers.wake()
	return nil
}

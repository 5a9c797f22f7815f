package allocator

import (
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

package room

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
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/minutes"
)

// TimeTag is the issuer of time-ordered IDs of one tag. Its generator issues them in the windows of a worker.
type TimeTag struct {
	tally
	name  allocator.Tag
	bits  timeid.Layout // never changes
	wide  bool          // bits is timeid.Wide: the IDs exist only as texts, which NextTexts issues
	text  *texts.Text   // nil for a tag without a format; never changes
	pool  *pool
	given atomic.Int64 // IDs

	idle struct { // of CloseUnused alone
		used  int64     // at its last look
		since time.Time // when used was seen to change
	}
	minute struct { // of measure alone
		known bool
		given int64 // a minute ago
	}

	generator atomic.Pointer[timeid.Generator] // nil while there is no worker
	fault     atomic.Pointer[fault]            // of the last request that failed; nil before the first

	settings atomic.Pointer[record.TimeTag] // never nil; changed under the pool's lock
	gone     bool                           // for good; guarded by the pool's lock

	before struct {
		sync.Mutex
		stats timeid.Stats // of the generators before
	}
}

// Settings returns the tag's settings.
func (t *TimeTag) Settings() record.TimeTag { return *t.settings.Load() }

// Text returns how the tag's IDs are texts, nil where it has no format.
func (t *TimeTag) Text() *texts.Text { return t.text }

// Name returns the tag's name.
func (t *TimeTag) Name() allocator.Tag { return t.name }

// Warm takes a worker for the tag if there is none. Its errors are those of worker.Workers.Take,
// and Generator's. After an error the tag's next caller tries again.
func (t *TimeTag) Warm(ctx context.Context) error {
	err := t.pool.open(ctx, t, nil)
	t.note(ctx, 0, err)
	return err
}

// Update changes the tag's settings: its next generator has them.
func (t *TimeTag) Update(settings record.TimeTag) {
	defer t.pool.lock()()
	if t.Settings() != settings {
		t.pool.shut(t)
		t.settings.Store(&settings)
	}
}

// Close ends the tag's IDs. A later tag of its name begins above them.
func (t *TimeTag) Close() {
	defer t.pool.lock()()
	t.pool.remove(t)
}

// CloseUnused closes the tag, and returns true, if no ID was asked for since an earlier look, for some time. The
// worker stays. Only one goroutine may call it.
func (t *TimeTag) CloseUnused(after time.Duration) bool {
	now, used := time.Now(), t.asked.Load()+t.given.Load()
	if t.idle.since.IsZero() || t.idle.used != used {
		t.idle.used, t.idle.since = used, now
		return false
	}
	if now.Sub(t.idle.since) < after {
		return false
	}
	select {
	case t.pool.busy <- struct{}{}:
		defer t.pool.unlock()
		t.pool.remove(t)
		return true
	default: // callers may wait for a generator of the tag
		return false
	}
}

// Next returns the next ID. Its errors are those of timeid.Generator.Next, of
// worker.Workers.Take if there is no worker, and Refused where the tag is wide.
func (t *TimeTag) Next(ctx context.Context) (id int64, err error) {
	if t.wide {
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
func (t *TimeTag) note(ctx context.Context, n int64, err error) {
	switch {
	case err == nil:
		t.given.Add(n)
	case ctx.Err() == nil && allocator.KindOf(err) != allocator.Invalid && !errors.Is(err, error(allocator.ErrClosed)):
		t.fault.Store(&fault{last: time.Now(), given: t.given.Load(), err: err})
	}
}

// longFault is how long a fault counts while no caller asks for the tag.
const longFault = time.Minute

// trouble returns why the tag issues no IDs now, or nil.
func (t *TimeTag) trouble(now time.Time) error {
	f := t.fault.Load()
	if f == nil || f.given != t.given.Load() || now.Sub(f.last) >= longFault {
		return nil
	}
	return f.err
}

// NextN appends n IDs to dst, as timeid.Generator.NextN does. Runs that it appended
// before an error are lost, a gap.
func (t *TimeTag) NextN(ctx context.Context, n int64, dst []allocator.Run) (runs []allocator.Run, err error) {
	if t.wide {
		return dst, t.NoNumber()
	}
	err = t.with(ctx, t.generator.Load(), func(g *timeid.Generator) error {
		runs, err = g.NextN(ctx, n, dst)
		return err
	})
	t.note(ctx, n, err)
	return runs, err
}

// NoNumber returns why a tag that is wide issues no numbers. Its Kind is Refused.
func (t *TimeTag) NoNumber() error {
	return allocator.Errorf(texts.ErrNoNumber.Kind, "tag %s: %w", t.name, texts.ErrNoNumber)
}

// NextTexts returns the texts of n IDs of a tag that is wide. Its errors are NextN's. If the
// texts cannot be written, it takes no ID.
func (t *TimeTag) NextTexts(ctx context.Context, n int64) (all []string, err error) {
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
func (t *TimeTag) with(ctx context.Context, g *timeid.Generator, use func(*timeid.Generator) error) error {
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
		t.pool.windows.wakeUp()
		d, waits := begins(outside)
		if !waits || waited+d > 2*longestTick {
			return err
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
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

// Stats returns the counts of the tag's generators so far.
func (t *TimeTag) Stats() timeid.Stats {
	t.before.Lock()
	defer t.before.Unlock()
	if g := t.generator.Load(); g != nil {
		return plus(t.before.stats, g.Stats())
	}
	last := t.before.stats
	last.Ahead = 0
	return last
}

// shut closes the tag's generator, if it has one, and returns the end of the last tick
// that it may have used, in Unix ms; 0 where it has none.
func (t *TimeTag) shut() (used int64) {
	t.before.Lock()
	defer t.before.Unlock()
	g := t.generator.Swap(nil)
	if g == nil {
		return 0
	}
	used = g.Close()
	t.before.stats = plus(t.before.stats, g.Stats())
	return used
}

// NextRun refuses consecutive IDs.
func (t *TimeTag) NextRun(context.Context, int64) (run allocator.Run, skipped int64, err error) {
	return run, 0, allocator.Errorf(allocator.Refused,
		"tag %s has time-ordered IDs, which are not consecutive; only a counter has consecutive IDs", t.name)
}

// prepare implements issuer: it needs nothing of etcd.
func (t *TimeTag) prepare(_ context.Context, n int64) error {
	if t.wide {
		return t.NoNumber()
	}
	if most := t.bits.PerSecond(); n > most {
		return allocator.Errorf(allocator.Invalid,
			"count: %d; allowed: 1 to %d, what one worker has in a second", n, most)
	}
	return nil
}

// lease gives the caller what it needs to issue IDs itself, and a window if it asks for one.
func (t *TimeTag) lease(ctx context.Context, m *tags, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error) {
	lease, err := t.window(ctx, m, r.GetWindow())
	return &marchv1.LeaseResponse{Time: lease}, err
}

func (t *TimeTag) window(ctx context.Context, m *tags, r *marchv1.WindowRequest) (*marchv1.TimeLease, error) {
	if r == nil {
		return nil, allocator.Errorf(allocator.Refused,
			"tag %s has time-ordered IDs, which are not leased in segments; call Next, NextBatch or Stream, "+
				"or use a client that takes windows", t.name)
	}
	lease := &marchv1.TimeLease{Tag: api.TimeTagToProto(t.Settings().Config(0, timeid.Window{}))}
	nonce, proof := r.GetNonce(), r.GetHeld().GetNonce()
	switch n := len(nonce); {
	case n == 0:
		return lease, nil
	case n < api.MinNonce || n > api.MaxNonce:
		return nil, allocator.Errorf(allocator.Invalid,
			"nonce: %d characters; allowed: %d to %d", n, api.MinNonce, api.MaxNonce)
	case r.GetAge().AsDuration() < 0:
		return nil, allocator.Errorf(allocator.Invalid, "age: %v; allowed: 0s or more", r.GetAge().AsDuration())
	}
	held, err := m.windows.Lend(ctx, t, Ask{Nonce: nonce, Held: r.GetHeld().GetWorker(), Proof: proof,
		Age: r.GetAge().AsDuration(),
		By:  m.cfg.Access.Holder(ctx, marchv1.IDService_Lease_FullMethodName, string(t.name))})
	if err != nil {
		m.cfg.Access.OverQuota(err)
		return nil, err
	}
	window := held.Window()
	lease.Window = &marchv1.WorkerWindow{
		Worker: held.ID().Number, FromMs: window.From, UntilMs: window.Until, NowMs: m.windows.now(),
		Room: string(m.cfg.Room), Instance: string(m.cfg.Name),
	}
	return lease, nil
}

// update implements issuer. A tag that was made anew has another format or layout.
func (t *TimeTag) update(_ *tags, settings record.TagSettings) (keeps bool, err error) {
	if settings.Time == nil || !t.text.Is(settings.Format, settings.KeyCheck) || settings.Time.Layout() != t.bits {
		return false, nil
	}
	t.Update(*settings.Time)
	return true, nil
}

// report implements issuer.
func (t *TimeTag) report(m *tags, r *round, _ time.Time) {
	m.scan.see(t, t.totals())
	r.ahead = max(r.ahead, t.Stats().Ahead)
}

func (t *TimeTag) totals() totals {
	s := t.Stats()
	return totals{asked: t.asked.Load(), issued: t.given.Load(), overflows: s.Overflows, rollbacks: s.Rollbacks,
		overflowed: s.OverflowWait}
}

// reading returns what the history keeps of a minute.
func (t *TimeTag) reading() minutes.TagReading {
	r := minutes.TagReading{Tag: t.name, Issued: t.given.Load(), Reserve: minutes.Unknown}
	if t.minute.known {
		r.Peak = float64(r.Issued-t.minute.given) / time.Minute.Seconds()
	}
	t.minute.known, t.minute.given = true, r.Issued
	return r
}

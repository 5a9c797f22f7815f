package allocator_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/march-id/march/allocator"
)

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "1000"); err != nil { // a default: the command line comes after
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// A fault replaces a lease of n IDs.
type fault func(ctx context.Context, m *memory, n int64) (allocator.Segment, error)

// The faults, by name. With away the source leases nothing. With lost it leases, and
// its answer is lost.
var (
	away fault = func(context.Context, *memory, int64) (allocator.Segment, error) {
		return allocator.Segment{}, allocator.Errorf(allocator.Unavailable, "connection refused")
	}
	lost fault = func(_ context.Context, m *memory, n int64) (allocator.Segment, error) {
		if _, err := m.lease(n); err != nil {
			return allocator.Segment{}, err
		}
		return allocator.Segment{}, allocator.Errorf(allocator.Unavailable, "connection reset")
	}
	hang fault = func(ctx context.Context, _ *memory, _ int64) (allocator.Segment, error) {
		<-ctx.Done()
		return allocator.Segment{}, ctx.Err() // without a Kind, as a careless source would
	}
	exhausted fault = func(context.Context, *memory, int64) (allocator.Segment, error) {
		return allocator.Segment{}, allocator.Errorf(allocator.Exhausted, "tag is at its limit")
	}
	backwards fault = func(_ context.Context, m *memory, n int64) (allocator.Segment, error) {
		return m.layout.Segment(room, 0, n, allocator.MaxID)
	}
	oldVersion fault = func(_ context.Context, m *memory, n int64) (allocator.Segment, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		layout := m.layout
		layout.Version, layout.Boundary = layout.Version-1, layout.Boundary+1
		seg, err := layout.Segment(room, m.next, n, allocator.MaxID)
		if err == nil {
			m.next, m.granted = seg.Last()+1, m.granted+seg.Count
		}
		return seg, err
	}
	empty fault = func(context.Context, *memory, int64) (allocator.Segment, error) {
		return allocator.Segment{}, nil
	}
)

const room = allocator.Room("a")

// tb has the common methods of testing.TB and rapid's T.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// memory is a Source in memory. It complains when it is asked for two segments
// at once or for a number outside the settings' bounds.
type memory struct {
	t       tb
	maxStep int64
	latency time.Duration
	ttl     time.Duration // for how long leased IDs may be issued, 0 for ever
	gauge   *gauge        // shared by several, may be nil

	mu      sync.Mutex
	layout  allocator.Layout
	next    int64
	faults  []fault // the next leases' faults, nil for none
	always  fault   // of all leases after them
	busy    bool
	asked   []int64     // n of every lease
	at      []time.Time // when each was asked
	granted int64       // IDs leased
}

// gauge counts the leases of many sources.
type gauge struct{ asked, inFlight, most atomic.Int64 }

func newMemory(t tb, layout allocator.Layout) *memory {
	return &memory{t: t, layout: layout, next: 1, maxStep: allocator.LargestStep}
}

func (m *memory) Lease(ctx context.Context, n int64) (allocator.Segment, error) {
	m.mu.Lock()
	if m.busy {
		m.t.Errorf("two leases of one chain at once")
	}
	if n < 1 || n > m.maxStep {
		m.t.Errorf("a lease asks for %d IDs, allowed: 1 to %d", n, m.maxStep)
	}
	m.busy = true
	m.asked, m.at = append(m.asked, n), append(m.at, time.Now())
	do := m.always
	if len(m.faults) > 0 {
		do, m.faults = m.faults[0], m.faults[1:]
	}
	latency := m.latency
	m.mu.Unlock()
	if m.gauge != nil {
		m.gauge.asked.Add(1)
		inFlight := m.gauge.inFlight.Add(1)
		for most := m.gauge.most.Load(); inFlight > most && !m.gauge.most.CompareAndSwap(most, inFlight); {
			most = m.gauge.most.Load()
		}
		defer m.gauge.inFlight.Add(-1)
	}
	defer func() {
		m.mu.Lock()
		m.busy = false
		m.mu.Unlock()
	}()
	if latency > 0 {
		time.Sleep(latency)
	}
	if do != nil {
		return do(ctx, m, n)
	}
	return m.lease(n)
}

func (m *memory) lease(n int64) (allocator.Segment, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seg, err := m.layout.Segment(room, m.next, n, allocator.MaxID)
	if err == nil {
		m.next = seg.Last() + 1
		m.granted += seg.Count
		if m.ttl > 0 {
			seg.Until = time.Now().Add(m.ttl)
		}
	}
	return seg, err
}

// fault sets the faults of the next leases, and the fault of all leases after them.
func (m *memory) fault(always fault, next ...fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults, m.always = next, always
}

// setVersion changes to a layout that keeps no segment of another version, because
// each version has its own boundary. It returns where the next segment begins.
func (m *memory) setVersion(version int64) (next int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.layout.Boundary += version - m.layout.Version
	m.layout.Version = version
	return m.next
}

// setRange changes the range, under the layout's next version.
func (m *memory) setRange(r allocator.Range) allocator.Part {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.layout.Version++
	m.layout.Ranges = map[allocator.Room]allocator.Range{room: r}
	return m.layout.Part(room)
}

// faulty reports whether a lease may fail, or a lease under way may.
func (m *memory) faulty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy || len(m.faults) > 0
}

// part returns the room's part of the layout.
func (m *memory) part() allocator.Part {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.layout.Part(room)
}

// setTTL sets for how long IDs that are leased from now on may be issued.
func (m *memory) setTTL(ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ttl = ttl
}

// setNext changes where the next segment begins.
func (m *memory) setNext(id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = id
}

// setMaxStep changes how many IDs the next leases may ask for.
func (m *memory) setMaxStep(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.maxStep = n
}

// nextID returns where the next segment begins.
func (m *memory) nextID() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next
}

// skip raises where the next segment begins, and returns it.
func (m *memory) skip(by int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next += min(by, allocator.MaxID-m.next)
	return m.next
}

func (m *memory) leases() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

func (m *memory) total() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.granted
}

// dense is a layout without gaps, strided one with.
func dense() allocator.Layout {
	return allocator.Layout{Version: 1, Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{room: {Upper: 1000}}}
}

func strided() allocator.Layout {
	return allocator.Layout{Version: 1, Boundary: 1000,
		Ranges: map[allocator.Room]allocator.Range{room: {Lower: 300, Upper: 700}}}
}

func settings(minStep, maxStep int64, reserve time.Duration) allocator.Settings {
	return allocator.Settings{MinStep: minStep, MaxStep: maxStep, Reserve: reserve}
}

// part returns the room's part of a version of strided, see setVersion.
func part(version int64) allocator.Part {
	p := strided().Part(room)
	p.Version, p.Boundary = version, p.Boundary+version-p.Version
	return p
}

// world is a refiller that runs in virtual time, and chains.
type world struct {
	*testing.T
	refiller *allocator.Refiller
	stop     context.CancelFunc
}

// virtual runs f in a bubble of virtual time with a running refiller. Its end
// waits for every goroutine.
func virtual(t *testing.T, f func(w *world), change ...func(*allocator.RefillerConfig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := allocator.DefaultRefillerConfig(time.Now, func() float64 { return 0.5 })
		for _, c := range change {
			c(&cfg)
		}
		ctx, stop := context.WithCancel(t.Context())
		w := &world{T: t, refiller: newRefiller(t, cfg), stop: stop}
		done := make(chan error, 1)
		go func() { done <- w.refiller.Run(ctx) }()
		defer func() {
			stop()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		}()
		f(w)
	})
}

func newRefiller(t tb, cfg allocator.RefillerConfig) *allocator.Refiller {
	t.Helper()
	r, err := allocator.NewRefiller(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newChain(t tb, r *allocator.Refiller, s allocator.Source, settings allocator.Settings) *allocator.Chain {
	t.Helper()
	c, err := allocator.NewChain(allocator.ChainConfig{Tag: "order", Source: s, Refiller: r, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// chain makes a chain with a source of its own.
func (w *world) chain(s allocator.Settings) (*allocator.Chain, *memory) {
	w.Helper()
	m := newMemory(w, strided())
	m.maxStep = s.MaxStep
	return newChain(w, w.refiller, m, s), m
}

// take is NextN with a deadline that a sound chain never misses.
func (w *world) take(c *allocator.Chain, n int64) []allocator.Run {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Hour)
	defer cancel()
	runs, err := c.NextN(ctx, n, nil)
	if err != nil {
		w.Fatalf("NextN(%d): %v", n, err)
	}
	return runs
}

// balance checks that every leased ID was issued, is held or was dropped.
func (w *world) balance(c *allocator.Chain, m *memory) {
	w.Helper()
	synctest.Wait() // what the source has leased just now, the chain may not have taken up
	if s, total := c.Status(), m.total(); s.Issued+s.Held+s.Dropped != total {
		w.Errorf("issued %d + held %d + dropped %d = %d, but %d were leased",
			s.Issued, s.Held, s.Dropped, s.Issued+s.Held+s.Dropped, total)
	}
}

// together runs f n times at once and counts the errors by text.
func together(n int, f func(i int) error) map[string]int {
	var mu sync.Mutex
	var all sync.WaitGroup
	errs := make(map[string]int)
	for i := range n {
		all.Go(func() {
			if err := f(i); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs[fmt.Sprint(err)]++
			}
		})
	}
	all.Wait()
	return errs
}

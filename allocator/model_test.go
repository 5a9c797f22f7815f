package allocator_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
)

// model is the specification of a chain: a chain issues the IDs of the segments that
// it leased, each ID once, in growing order.
type model struct {
	*rapid.T
	chain   *allocator.Chain
	m       *memory
	mu      sync.Mutex
	leased  []allocator.Segment // in growing order, under mu
	failing bool                // the last lease did, or brought an old version; under mu
	last    int64               // issued
	issued  int64
	bound   allocator.Part // the argument of the last Renewed
	least   int64          // the argument of the last Behind, if no lease failed and no caller was impatient since
}

// recorder records the segments that a memory leased.
type recorder struct{ *model }

func (r recorder) Lease(ctx context.Context, n int64) (allocator.Segment, error) {
	seg, err := r.m.Lease(ctx, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing = err != nil || seg.Version < r.m.part().Version
	if err == nil {
		r.leased = append(r.leased, seg)
	}
	return seg, err
}

// take checks consecutive IDs.
func (m *model) take(first, count int64) {
	if first <= m.last {
		m.Fatalf("%d after %d", first, m.last)
	}
	if first < m.least {
		m.Fatalf("%d after Behind(%d)", first, m.least)
	}
	for id := first; id < first+count; id++ {
		seg := m.segmentOf(id)
		if m.bound.Outdates(seg) || seg.Version < m.bound.Version && !m.bound.Range.Contains(id%m.bound.Boundary) {
			m.Fatalf("%d of %v after Renewed(%v)", id, seg, m.bound)
		}
	}
	m.last = first + count - 1
	m.issued += count
}

// segmentOf searches all leased segments for an ID, and fails the test if none contains it.
func (m *model) segmentOf(id int64) allocator.Segment {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range slices.Backward(m.leased) {
		if s.First <= id && id <= s.Last() && s.Range.Contains(id%s.Boundary) {
			return s
		}
	}
	m.Fatalf("%d was never leased", id)
	return allocator.Segment{}
}

func (m *model) failed(what string, err error) {
	if k := allocator.KindOf(err); k != allocator.Unavailable && k != allocator.Exhausted && k != allocator.Conflict {
		m.Fatalf("%s: %v", what, err)
	}
}

func TestChainAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failure any // rapid's own panics must not end the bubble
		synctest.Test(t, func(*testing.T) {
			defer func() { failure = recover() }()
			checkModel(rt)
		})
		if failure != nil {
			panic(failure)
		}
	})
}

func checkModel(t *rapid.T) {
	minStep := rapid.Int64Range(1, 50).Draw(t, "min_step")
	set := settings(minStep, rapid.Int64Range(minStep, 300).Draw(t, "max_step"), time.Minute)
	width := rapid.Int64Range(1, 20).Draw(t, "width")
	layout := allocator.Layout{Version: 2, Boundary: width + rapid.Int64Range(0, 3).Draw(t, "gap"),
		Ranges: map[allocator.Room]allocator.Range{room: {Upper: width}}}
	m := &model{T: t, m: newMemory(t, layout), last: -1}
	m.m.latency, m.m.maxStep = time.Millisecond, set.MaxStep
	if rapid.IntRange(0, 4).Draw(t, "end") == 0 {
		m.m.next = allocator.MaxID - 500
	}
	refiller := newRefiller(t, allocator.DefaultRefillerConfig(time.Now, func() float64 { return 0.5 }))
	m.chain = newChain(t, refiller, recorder{m}, set)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- refiller.Run(ctx) }()
	defer func() {
		stop()
		<-done
	}()
	t.Repeat(m.actions())

	// At rest every leased ID is accounted for, including those that were lost on
	// the way.
	m.m.fault(nil)
	time.Sleep(10 * time.Second)
	synctest.Wait()
	var leased int64
	for _, s := range m.leased {
		leased += s.Count
	}
	if s := m.chain.Status(); s.Issued+s.Held+s.Dropped != leased || s.Issued < m.issued || m.chain.Wanted() != 0 {
		t.Fatalf("%+v, but %d were leased and %d came out; %d wanted", s, leased, m.issued, m.chain.Wanted())
	}
	// The chain then goes on, unless the ID space is exhausted.
	if id, err := m.chain.Next(ctx); err == nil {
		m.take(id, 1)
	} else if allocator.KindOf(err) != allocator.Exhausted || m.m.next < allocator.MaxID-50 {
		t.Fatalf("after all faults: %v", err)
	}
}

func (m *model) actions() map[string]func(*rapid.T) {
	patient := func() (context.Context, context.CancelFunc) {
		patience := rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, time.Minute}).
			Draw(m.T, "patience")
		if patience < time.Second {
			m.least = 0
		}
		return context.WithTimeout(context.Background(), patience)
	}
	return map[string]func(*rapid.T){
		"try": func(*rapid.T) {
			if id, ok := m.chain.TryNext(); ok {
				m.take(id, 1)
			}
		},
		"next": func(*rapid.T) {
			ctx, cancel := patient()
			defer cancel()
			if id, err := m.chain.Next(ctx); err != nil {
				m.failed("next", err)
			} else {
				m.take(id, 1)
			}
		},
		"nextN": func(t *rapid.T) {
			ctx, cancel := patient()
			defer cancel()
			n := rapid.Int64Range(1, 700).Draw(t, "n")
			runs, err := m.chain.NextN(ctx, n, nil)
			if err != nil {
				m.failed("nextN", err)
			}
			for _, r := range runs {
				m.take(r.First, r.Count)
				n -= r.Count
			}
			if err == nil && n != 0 {
				t.Fatalf("%d IDs too few", n)
			}
		},
		"lease": func(t *rapid.T) {
			ctx, cancel := patient()
			defer cancel()
			n := rapid.Int64Range(1, 200).Draw(t, "n")
			seg, err := m.chain.Lease(ctx, n)
			if err != nil {
				m.failed("lease", err)
				return
			}
			if err := seg.Validate(); err != nil || seg.Count > n {
				t.Fatalf("%v of %d: %v", seg, n, err)
			}
			for r := range seg.Runs() {
				m.take(r.First, r.Count)
			}
		},
		"fault": func(t *rapid.T) {
			faults := map[string]fault{"away": away, "lost": lost, "hang": hang, "late": late,
				"exhausted": exhausted, "old": oldVersion}
			next := make([]fault, 0, 3)
			for range rapid.IntRange(1, 3).Draw(t, "times") {
				next = append(next, faults[rapid.SampledFrom([]string{"away", "lost", "hang", "late", "exhausted",
					"old"}).Draw(t, "fault")])
			}
			m.m.fault(nil, next...)
			m.least = 0
		},
		"rest": func(t *rapid.T) {
			time.Sleep(rapid.SampledFrom([]time.Duration{time.Millisecond, 30 * time.Millisecond, time.Second,
				time.Hour}).Draw(t, "rest"))
		},
		"observe": func(*rapid.T) { m.chain.Observe() },
		"renew": func(t *rapid.T) {
			r := m.m.part().Range
			switch boundary := m.m.part().Boundary; rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				m.m.setVersion(m.m.part().Version + 1) // another boundary
			case 1: // a range that has nothing to do with the one before
				r.Lower = rapid.Int64Range(0, boundary-1).Draw(t, "lower")
				r.Upper = rapid.Int64Range(r.Lower+1, boundary).Draw(t, "upper")
				m.m.setRange(r)
			case 2: // a wider one
				m.m.setRange(allocator.Range{Lower: r.Lower / 2, Upper: r.Upper + (boundary-r.Upper)/2})
			}
			synctest.Wait() // a refill may be about to arrive at this very moment
			before := m.chain.Status()
			held := m.chain.Segments()
			keeps := m.chain.RenewIfKept(m.m.part())
			if outdated := slices.ContainsFunc(held, m.m.part().Outdates); keeps == outdated {
				t.Fatalf("all of %v stays under %v: %t", held, m.m.part(), keeps)
			}
			if after := m.chain.Status(); after.Dropped != before.Dropped || after.Held != before.Held {
				t.Fatalf("%+v, then %+v", before, after)
			}
			m.chain.Renew(m.m.part())
		},
		"skip": func(t *rapid.T) {
			least := m.m.skip(rapid.Int64Range(0, 100).Draw(t, "by"))
			m.chain.Skip(least)
		},
		"behind": func(t *rapid.T) {
			next := m.m.nextID()
			m.least = max(next-rapid.Int64Range(0, 400).Draw(t, "behind"), 0)
			m.chain.Behind(m.least, 0, 0)
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.failing || m.m.faulty() || next > allocator.MaxID-10_000 { // a lease may fail, or wait
				m.least = 0
			}
		},
		"update": func(t *rapid.T) {
			if err := m.chain.Update(settings(rapid.Int64Range(1, m.m.maxStep).Draw(t, "min_step"), m.m.maxStep,
				time.Minute)); err != nil {
				t.Fatal(err)
			}
		},
		"": func(*rapid.T) { // after each
			if part := m.m.part(); m.chain.Renewed(part) {
				m.bound = part
			}
		},
	}
}

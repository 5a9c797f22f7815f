package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// TestConfirmed: a layout is confirmed by reads and by leases, at the time they
// were sent, and not any longer once another replaced it.
func TestConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		a, b := c.start("a"), c.start("b")
		l := a.Ledger
		segments := map[int64]allocator.Segment{ // what room a may hold of each version
			1: {Version: 1, Boundary: 10, Range: allocator.Range{Upper: 5}, Count: 1},
			2: {Version: 2, Boundary: 10, Range: allocator.Range{Upper: 2}, Count: 1},
			3: {Version: 3, Boundary: 20, Range: allocator.Range{Upper: 2}, Count: 1},
		}
		is := func(what string, version int64, at time.Time, newest int64) {
			t.Helper()
			seg := segments[version]
			if got, known := l.Confirmed("a", seg); !got.Equal(at) || known.Version != newest {
				t.Errorf("%s: %v confirmed at %v of newest %v, want %v and %d", what, seg, got, known, at, newest)
			}
		}
		joined := time.Now()
		is("joined", 1, joined, 1)
		is("joined", 2, joined, 1) // a part of its range
		is("joined", 3, time.Time{}, 1)
		time.Sleep(time.Minute)
		is("without a word", 1, joined, 1)
		if _, err := l.Refresh(bg); err != nil {
			t.Fatal(err)
		}
		is("read", 1, time.Now(), 1)
		time.Sleep(time.Minute)
		a.Lease(10)
		is("leased", 1, time.Now(), 1)
		leased := time.Now()

		// No answer, or one that says no, confirms nothing.
		for _, fate := range []ledgertest.Fate{{Name: ledgertest.NotDone}, {Name: ledgertest.DoneAnswerLost}} {
			a.Lease(1)
			leased = time.Now()
			time.Sleep(time.Second) // not so long that the next lease looks first, which confirms
			a.Conn.Next(fate, ledgertest.PutsUnder("marks/"))
			if _, err := a.TryLease("t", 10); err == nil {
				t.Fatal("leased")
			}
			is(fmt.Sprint(fate), 1, leased, 1)
		}
		c.Move("10 a=0-2 b=5-10")
		time.Sleep(time.Minute)
		is("replaced, and not heard of", 1, leased, 1)
		b.Lease(1)
		is("another process", 1, leased, 1)
		a.Lease(10) // refused under version 1, granted under version 2
		is("replaced", 1, leased, 2)
		is("replaced", 2, time.Now(), 2)
		c.Check()
	})
}

// slowStore takes its time to answer.
type slowStore struct {
	store.Store
	takes time.Duration
}

func (s *slowStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	time.Sleep(s.takes)
	return answer, err
}

// TestConfirmedIsWhenItWasSent: what counts is the sending, however late the
// answer came.
func TestConfirmedIsWhenItWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5")
		a := c.start("a")
		etcd := &slowStore{Store: c.Mem.Open()}
		l := ledgertest.Open(t, etcd)
		time.Sleep(time.Minute)
		etcd.takes = time.Second
		start := time.Now()
		if _, err := l.Refresh(bg); err != nil {
			t.Fatal(err)
		}
		// The identity is read first, which takes as long.
		if at, _ := l.Confirmed("a", allocator.Segment{Version: 1, Boundary: 10,
			Range: allocator.Range{Upper: 5}}); !at.Equal(start.Add(time.Second)) {
			t.Errorf("confirmed %v after the beginning, want a second; the answer came after %v",
				at.Sub(start), time.Since(start))
		}
		a.Lease(1)
		c.Check()
	})
}

// TestConfirmationsAreBounded changes the layout often.
func TestConfirmationsAreBounded(t *testing.T) {
	c := newCluster(t, "1000 a=0-500")
	a := c.start("a")
	const changes = 200
	for i := range changes {
		c.Move(fmt.Sprintf("1000 a=0-%d", 500-i))
		if _, err := a.Ledger.Refresh(bg); err != nil {
			t.Fatal(err)
		}
	}
	var known int
	of := func(version int64) allocator.Segment { // what only that version and those before keep
		return allocator.Segment{Version: version, Boundary: 1000, Range: allocator.Range{Upper: 502 - version}}
	}
	for version := int64(2); version < changes+10; version++ {
		if at, _ := a.Ledger.Confirmed("a", of(version)); !at.IsZero() && version <= changes+1 {
			known++
		}
	}
	if at, newest := a.Ledger.Confirmed("a", of(changes+1)); at.IsZero() || newest.Version != changes+1 || known > 64 {
		t.Errorf("version %d confirmed at %v, newest %v, %d versions known", changes+1, at, newest, known)
	}
	a.Lease(1)
	c.Check()
}

// TestConfirmedAcrossLayouts: a segment counts as confirmed by every layout that
// keeps it, whichever came between, and by none that takes a residue of it.
func TestConfirmedAcrossLayouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=2-5 b=5-10")
		l := c.start("a").Ledger
		seg := allocator.Segment{Version: 1, Boundary: 10, Range: allocator.Range{Lower: 2, Upper: 5}, Count: 1}
		kept := time.Now()
		for i, step := range []struct {
			layout string
			keeps  bool
		}{
			{"10 a=2-5 b=6-10", true},    // another room's retract
			{"10 a=0-6 b=6-10", true},    // an expand
			{"10 a=3-6 b=6-10", false},   // one residue less
			{"100 a=2-5 b=60-99", false}, // another boundary
			{"10 a=2-5 b=5-10", true},    // given back
			{"10 b=5-10", false},         // no range
		} {
			time.Sleep(time.Minute)
			c.Move(step.layout)
			if at, newest := l.Confirmed("a", seg); !at.Equal(kept) || newest.Version != int64(i)+1 {
				t.Errorf("%s, not heard of: confirmed at %v, want %v; newest %v", step.layout, at, kept, newest)
			}
			if _, err := l.Refresh(bg); err != nil {
				t.Fatal(err)
			}
			if step.keeps {
				kept = time.Now()
			}
			at, newest := l.Confirmed("a", seg)
			if !at.Equal(kept) || newest.Version != int64(i)+2 || newest.Outdates(seg) == step.keeps {
				t.Errorf("%s: confirmed at %v, want %v; newest %v", step.layout, at, kept, newest)
			}
		}
		c.Check()
	})
}

// BenchmarkConfirmed measures what the gate of a strict tag asks of the ledger, twice for
// each ID.
func BenchmarkConfirmed(b *testing.B) {
	c := newCluster(b, "1000 a=0-500 b=500-1000")
	l := c.start("a").Ledger
	seg := allocator.Segment{Version: 1, Boundary: 1000, Range: allocator.Range{Upper: 500}, Count: 1}
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if at, _ := l.Confirmed("a", seg); at.IsZero() {
				b.Error("not confirmed")
				return
			}
		}
	})
}

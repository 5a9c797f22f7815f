package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// TestConfirmed: a layout is confirmed by reads and by leases, at the time they
// were sent, and not any longer once another replaced it.
func TestConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		a, b := c.start("a"), c.start("b")
		l := a.ledger
		is := func(what string, version int64, at time.Time, newest int64) {
			t.Helper()
			if got, known := l.Confirmed(version); !got.Equal(at) || known != newest {
				t.Errorf("%s: version %d confirmed at %v of newest %d, want %v and %d", what, version, got, known, at, newest)
			}
		}
		joined := time.Now()
		is("joined", 1, joined, 1)
		is("joined", 2, time.Time{}, 1)
		time.Sleep(time.Minute)
		is("without a word", 1, joined, 1)
		if _, err := l.Refresh(bg); err != nil {
			t.Fatal(err)
		}
		is("read", 1, time.Now(), 1)
		time.Sleep(time.Minute)
		a.lease(10)
		is("leased", 1, time.Now(), 1)
		leased := time.Now()

		// No answer, or one that says no, confirms nothing.
		for _, fate := range []ledgertest.Fate{{Name: ledgertest.NotDone}, {Name: ledgertest.DoneAnswerLost}} {
			a.lease(1)
			leased = time.Now()
			time.Sleep(time.Second) // not so long that the next lease looks first, which confirms
			a.next(fate, writes("marks/"))
			if _, err := a.tryLease("t", 10); err == nil {
				t.Fatal("leased")
			}
			is(fmt.Sprint(fate), 1, leased, 1)
		}
		c.move("10 a=0-2 b=5-10")
		time.Sleep(time.Minute)
		is("replaced, and not heard of", 1, leased, 1)
		b.lease(1)
		is("another process", 1, leased, 1)
		a.lease(10) // refused under version 1, granted under version 2
		is("replaced", 1, leased, 2)
		is("replaced", 2, time.Now(), 2)
		c.check()
	})
}

// slowStore takes its time to answer.
type slowStore struct {
	ledger.Store
	takes time.Duration
}

func (s *slowStore) Txn(ctx context.Context, txn ledger.Txn) (ledger.Answer, error) {
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
		store := &slowStore{Store: c.mem.Open()}
		l := open(t, store)
		time.Sleep(time.Minute)
		store.takes = time.Second
		start := time.Now()
		if _, err := l.Refresh(bg); err != nil {
			t.Fatal(err)
		}
		// The identity is read first, which takes as long.
		if at, _ := l.Confirmed(1); !at.Equal(start.Add(time.Second)) {
			t.Errorf("confirmed %v after the beginning, want a second; the answer came after %v", at.Sub(start), time.Since(start))
		}
		a.lease(1)
		c.check()
	})
}

// TestConfirmationsAreBounded changes the layout often.
func TestConfirmationsAreBounded(t *testing.T) {
	c := newCluster(t, "1000 a=0-500")
	a := c.start("a")
	const changes = 200
	for i := range changes {
		c.move(fmt.Sprintf("1000 a=0-%d", 500-i))
		if _, err := a.ledger.Refresh(bg); err != nil {
			t.Fatal(err)
		}
	}
	var known int
	for version := range int64(changes + 10) {
		if at, _ := a.ledger.Confirmed(version); !at.IsZero() {
			known++
		}
	}
	if at, newest := a.ledger.Confirmed(changes + 1); at.IsZero() || newest != changes+1 || known > 64 {
		t.Errorf("version %d confirmed at %v, newest %d, %d versions known", changes+1, at, newest, known)
	}
	a.lease(1)
	c.check()
}

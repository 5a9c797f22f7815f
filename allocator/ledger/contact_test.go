package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

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

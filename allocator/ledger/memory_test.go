package ledger_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// overtakenStore holds the answer to the first lease back until let is called.
type overtakenStore struct {
	store.Store
	held atomic.Bool
	done chan struct{} // closed when the lease is done
	let  chan struct{}
}

func (s *overtakenStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	if ledgertest.PutsUnder("marks/")(txn) && s.held.CompareAndSwap(false, true) {
		close(s.done)
		<-s.let
	}
	return answer, err
}

// Of two sources of a tag, the answer to the later lease may come first. The
// instance remembers the higher mark of the two. It once remembered that of the answer
// that came last, and a recover issued the IDs of the other lease again.
func TestOvertakenAnswer(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	etcd := &overtakenStore{Store: c.Mem.Open(), done: make(chan struct{}), let: make(chan struct{})}
	l := ledgertest.Open(t, etcd)
	p, err := l.Join(bg, ledger.Registration{Room: "a", Name: "one", Address: "one.test:7010"})
	if err != nil {
		t.Fatal(err)
	}
	sources := make([]allocator.Source, 2)
	for k := range sources {
		if sources[k], _, err = p.Source(bg, "t"); err != nil {
			t.Fatal(err)
		}
	}
	first := make(chan error)
	go func() {
		_, err := sources[0].Lease(bg, 100)
		first <- err
	}()
	<-etcd.done
	seg, err := sources[1].Lease(bg, 100)
	if err != nil {
		t.Fatal(err)
	}
	close(etcd.let)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	marks := p.Memory(bg, record.Question{}).Marks
	if len(marks) != 1 || marks[0].Next <= seg.Last() {
		t.Errorf("remembers %+v, leased up to %d", marks, seg.Last())
	}
}

// A transaction that fails says nothing of another one whose answer is on its way: the
// lease of another tag is used when its answer comes.
func TestFailedTransactionVoidsNoOther(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("u", func(*record.TagSettings) {})
	conn := c.Mem.Open()
	etcd := &overtakenStore{Store: conn, done: make(chan struct{}), let: make(chan struct{})}
	l := ledgertest.Open(t, etcd)
	p, err := l.Join(bg, ledger.Registration{Room: "a", Name: "one", Address: "one.test:7010"})
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := p.Source(bg, "t")
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := p.Source(bg, "u")
	if err != nil {
		t.Fatal(err)
	}
	leased := make(chan allocator.Segment)
	go func() {
		seg, err := first.Lease(bg, 10)
		if err != nil {
			t.Error(err)
		}
		leased <- seg
	}()
	<-etcd.done
	failed := false
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if failed || !ledgertest.PutsUnder("marks/a/u")(txn) {
			return ledgertest.Fate{}
		}
		failed = true
		return ledgertest.Fate{Name: ledgertest.NotDone}
	})
	if _, err := second.Lease(bg, 10); allocator.KindOf(err) != allocator.Unavailable || !failed {
		t.Fatalf("lease of u: %v", err)
	}
	close(etcd.let)
	if seg := <-leased; seg.First != 1 {
		t.Errorf("leased %v; want the segment that was under way, from 1", seg)
	}
}

// An instance that joins over a ledger which has met the epoch enters it, though the ledger could not read its key
// before.
func TestJoinEntersAnEpochThatItsLedgerHasMet(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	l := ledgertest.Open(t, c.Mem.Open())
	if _, err := l.Refresh(bg); err != nil {
		t.Fatal(err)
	}
	epoch := c.Value("epoch")
	c.Corrupt("epoch", []byte("{"))
	_, err := l.Refresh(bg)
	ledgertest.WantKind(t, err, allocator.Refused, "epoch")
	c.Corrupt("epoch", epoch)
	i, err := l.Join(bg, ledger.Registration{Room: "a", Name: "i", Address: "i.test:7010"})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Check(bg); err != nil {
		t.Fatal(err)
	}
	if got := i.Memory(bg, record.Question{}).Epochs; len(got) != 1 {
		t.Errorf("it was in epochs %q, want the one in force", got)
	}
}

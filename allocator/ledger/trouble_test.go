package ledger_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Whether an instance can lease is told by its writes: reads that go well meanwhile
// change nothing of it.
func TestTroubleIsOfWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		p := c.start("a")
		p.lease(10)
		trouble := func(when string, want bool) {
			t.Helper()
			if got := p.Trouble(); (got.Err != nil) != want || want && got.Since.IsZero() {
				t.Errorf("%s: trouble %+v", when, got)
			}
		}
		trouble("at first", false)
		p.conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if ledgertest.Writes(txn) && len(txn.Then) > 0 && txn.Then[0].Put != nil {
				return ledgertest.Fate{Name: ledgertest.NotDone}
			}
			return ledgertest.Fate{}
		})
		_, err := p.tryLease("t", 10)
		wantKind(t, err, allocator.Unavailable)
		since := p.Trouble().Since
		p.hear()
		trouble("after a read", true)
		time.Sleep(5 * time.Second)
		_, err = p.tryLease("t", 10)
		wantKind(t, err, allocator.Unavailable)
		time.Sleep(8 * time.Second)
		trouble("after another lease", true)
		if got := p.Trouble().Since; !got.Equal(since) {
			t.Errorf("since %v, and %v before", got, since)
		}
		p.conn.Fate(nil)
		p.lease(10)
		trouble("after a lease", false)
	})
}

// A tag's own trouble is not the instance's; and a failure counts no longer when
// nothing has been tried for a while.
func TestTroubleOfATagDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		p := c.start("a")
		c.update("t", func(s *record.TagSettings) { s.Limit = 100 })
		p.lease(100)
		_, err := p.tryLease("t", 100)
		wantKind(t, err, allocator.Exhausted)
		_, err = p.tryLease("none", 1)
		wantKind(t, err, allocator.NotFound)
		if got := p.Trouble(); got.Err != nil {
			t.Errorf("trouble %+v", got)
		}
		c.tag("u", func(*record.TagSettings) {})
		p.next(ledgertest.Fate{Name: ledgertest.NotDone}, writes("marks/"))
		if _, err := p.tryLease("u", 1); err == nil || p.Trouble().Err == nil {
			t.Errorf("lease: %v, trouble %+v", err, p.Trouble())
		}
		time.Sleep(time.Minute)
		if got := p.Trouble(); got.Err != nil {
			t.Errorf("a minute later: trouble %+v", got)
		}
	})
}

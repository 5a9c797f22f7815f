package ledger_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
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
		p.Lease(10)
		trouble := func(when string, want bool) {
			t.Helper()
			if got := p.Trouble(); (got.Err != nil) != want || want && got.Since.IsZero() {
				t.Errorf("%s: trouble %+v", when, got)
			}
		}
		trouble("at first", false)
		p.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if ledgertest.Writes(txn) && len(txn.Then) > 0 && txn.Then[0].Put != nil {
				return ledgertest.Fate{Name: ledgertest.NotDone}
			}
			return ledgertest.Fate{}
		})
		_, err := p.TryLease("t", 10)
		ledgertest.WantKind(t, err, allocator.Unavailable)
		since := p.Trouble().Since
		p.hear()
		trouble("after a read", true)
		time.Sleep(5 * time.Second)
		_, err = p.TryLease("t", 10)
		ledgertest.WantKind(t, err, allocator.Unavailable)
		time.Sleep(8 * time.Second)
		trouble("after another lease", true)
		if got := p.Trouble().Since; !got.Equal(since) {
			t.Errorf("since %v, and %v before", got, since)
		}
		p.Conn.Fate(nil)
		p.Lease(10)
		trouble("after a lease", false)
	})
}

// A tag's own trouble is not the instance's; and a failure counts no longer when
// nothing has been tried for a while.
func TestTroubleOfATagDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		p := c.start("a")
		c.Update("t", func(s *record.TagSettings) { s.Limit = 100 })
		p.Lease(100)
		_, err := p.TryLease("t", 100)
		ledgertest.WantKind(t, err, allocator.Exhausted)
		_, err = p.TryLease("none", 1)
		ledgertest.WantKind(t, err, allocator.NotFound)
		if got := p.Trouble(); got.Err != nil {
			t.Errorf("trouble %+v", got)
		}
		c.Tag("u", func(*record.TagSettings) {})
		p.Conn.Next(ledgertest.Fate{Name: ledgertest.NotDone}, ledgertest.PutsUnder("marks/"))
		if _, err := p.TryLease("u", 1); err == nil || p.Trouble().Err == nil {
			t.Errorf("lease: %v, trouble %+v", err, p.Trouble())
		}
		time.Sleep(time.Minute)
		if got := p.Trouble(); got.Err != nil {
			t.Errorf("a minute later: trouble %+v", got)
		}
	})
}

// A Logger that blocks, as standard error does if it is a full pipe, stops no lease but the
// one that logs. A journal's own lines are not covered: its writer waits for the Logger.
func TestBlockedLoggerStopsNoLease(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	blocked, open := make(chan struct{}), make(chan struct{})
	p := c.start("a", func(cfg *ledger.Config) {
		cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: writerFunc(func(b []byte) {
			if bytes.Contains(b, []byte("layout adopted")) && bytes.Contains(b, []byte("version=2")) {
				close(blocked)
				<-open
			}
		})})
	})
	p.Lease(10)
	c.Move("100 a=0-40 b=50-100")
	refreshed := make(chan struct{})
	go func() {
		defer close(refreshed)
		_, _ = p.Ledger.Refresh(bg)
	}()
	<-blocked
	p.Lease(10)
	close(open)
	<-refreshed
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

package ledger_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
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

// A journal's marks were compared with etcd's only when a tag was asked for. Now
// an instance that starts goes through all of them: etcd's data of before the
// leases, in which neither beat nor revision shows it, is halted though no caller
// asks.
func TestAllMarksOfTheJournalAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		dir := t.TempDir()
		p := c.mustStartWith(t, "a", "one", dir)
		for k := range 250 { // some pages
			name := allocator.Tag(fmt.Sprintf("tag-%03d", k))
			c.Tag(name, func(*record.TagSettings) {})
			if _, err := p.TryLease(name, 10); err != nil {
				t.Fatal(err)
			}
		}
		backup := c.Mem.Revision()
		if _, err := p.TryLease("tag-249", 1000); err != nil {
			t.Fatal(err)
		}
		_ = p.Close()

		p = c.mustStartWith(t, "a", "one", dir)
		stop := beating(p)
		time.Sleep(time.Minute)
		if why := c.isHalted(); why != "" {
			t.Fatalf("halted, though nothing is wrong: %s", why)
		}
		_ = stop()
		_ = p.Close()

		c.Mem.Restore(backup, 1_000_000_000, ledgertest.ClusterID)
		c.Corrupt("beat", nil)
		p = c.mustStartWith(t, "a", "one", dir)
		stop = beating(p)
		time.Sleep(time.Minute)
		if c.isHalted() == "" {
			t.Error("not halted")
		}
		_, err := p.TryLease("tag-000", 10)
		ledgertest.WantKind(t, err, allocator.WentBack, "tag-249", "halted by instance a/one")
		_ = stop()
	})
}

// afterRead is a store that has something done after a mark was read by itself,
// and before the answer is there.
type afterRead struct {
	store.Store
	mark string
	do   func()
}

func (s *afterRead) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	if len(txn.If) == 0 && len(txn.Then) == 1 && txn.Then[0].Get != nil && txn.Then[0].Get.Key == s.mark {
		s.do()
	}
	return answer, err
}

// A lease that an instance makes while its marks are compared is no evidence: the answer
// is from before the lease, and shows less.
func TestLeasesGoOnWhileMarksAreCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		dir := t.TempDir()
		first := c.mustStartWith(t, "a", "one", dir)
		first.Lease(10)
		_ = first.Close()
		p := c.process()
		leased := 0
		var log bytes.Buffer
		etcd := &afterRead{Store: c.Mem.Open(), mark: prefix + "marks/a/t", do: func() { leased++; p.Lease(10) }}
		p.Ledger = ledgertest.Open(t, etcd, func(cfg *ledger.Config) {
			cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
		})
		var err error
		if p.Instance, err = p.Ledger.Join(bg, ledger.Registration{Room: "a", Name: "one", Journal: dir}); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = p.Close() }()
		stop := beating(p)
		time.Sleep(time.Minute)
		_ = stop()
		if leased == 0 || strings.Contains(log.String(), "back in time") {
			t.Errorf("%d leases meanwhile: %s", leased, &log)
		}
		c.Check()
	})
}

package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
)

// farStore is a store a second away.
type farStore struct{ slowStore }

func (s *farStore) Status(ctx context.Context) (store.Status, error) {
	status, err := s.Store.Status(ctx)
	time.Sleep(s.takes)
	return status, err
}

// TestRoundTrips counts the round trips, one after another, of what operators wait
// for where etcd is far away: each takes a second, and all else takes no time.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "300 a=0-100 b=100-200 c=200-300")
		rooms := []allocator.Room{"a", "b", "c"}
		c.Tag("u", func(*record.TagSettings) {})
		c.Tag("v", func(*record.TagSettings) {})
		var living []*process
		for _, room := range rooms {
			p := c.start(room)
			living = append(living, p)
			p.Lease(1)
		}
		backup := c.Mem.Revision()
		for _, p := range living {
			p.Lease(100)
		}
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		trips := func(what string, most int, call func(*ledger.Ledger) error) {
			t.Helper()
			l := ledgertest.Open(t, &farStore{slowStore{Store: c.Mem.Open(), takes: time.Second}})
			began := time.Now()
			if err := call(l); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took > time.Duration(most)*time.Second {
				t.Errorf("%s took %v, so many round trips; want %d at most", what, took, most)
			}
		}
		trips("recover", 11, func(l *ledger.Ledger) error {
			report, err := recovery.Run(t.Context(), l, recovery.Config{Actor: "ann", Apply: true, Ask: asking(living)})
			if err == nil && report.Raised != int64(len(rooms)) {
				err = fmt.Errorf("%d marks were raised", report.Raised)
			}
			return err
		})
		trips("verify", 6, func(l *ledger.Ledger) error {
			report, err := verify.Run(t.Context(), l.Cluster(), verify.Options{})
			if err == nil && len(report.Problems) > 0 {
				err = fmt.Errorf("%q", report.Problems)
			}
			return err
		})
		c.Check()
	})
}

package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// TestRoundTripsOfAStart counts the round trips, one after another, from the moment at which an instance that starts
// has a connection until it can lease, and those of a first lease. Before there were 10 to 13 of a start.
func TestRoundTripsOfAStart(t *testing.T) {
	begins := func(l *ledger.Ledger, name allocator.Instance) (*ledger.Instance, error) {
		var asked sync.WaitGroup // what the program asks for before it listens
		var errs [3]error
		asked.Go(func() { _, errs[0] = l.Ping(bg) })
		asked.Go(func() { errs[1] = l.Attach(bg) })
		asked.Go(func() { errs[2] = l.MayRegister(bg, "a", name) })
		asked.Wait()
		i, err := l.Join(bg, ledger.Registration{Room: "a", Name: name})
		return i, errors.Join(errs[0], errs[1], errs[2], err, l.Check(bg))
	}
	for name, test := range map[string]struct {
		prepare func(*testing.T, *cluster)
		waits   time.Duration
		most    int
	}{
		"an empty cluster": {func(*testing.T, *cluster) {}, 0, 3},
		"a name again, after many moves": {func(t *testing.T, c *cluster) {
			for range 5 {
				c.Move("100 a=0-50 b=50-99")
				c.Move("100 a=0-50 b=50-100")
			}
			c.startAs("a", "one").Lease(10)
		}, time.Hour, 3}, // the beat is old
		"after a recover": {func(t *testing.T, c *cluster) {
			p := c.startAs("a", "other")
			p.Lease(10)
			if _, err := recovery.Run(t.Context(), ledgertest.Open(t, c.Mem.Open()), recovery.Config{Actor: "ann",
				Apply: true, Ask: asking([]*process{p})}); err != nil {
				t.Fatal(err)
			}
		}, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, "100 a=0-50 b=50-100")
				c.Tag("u", func(*record.TagSettings) {})
				test.prepare(t, c)
				time.Sleep(test.waits)
				l := ledgertest.Open(t, &farStore{slowStore{Store: c.Mem.Open(), takes: time.Second}})
				began := time.Now()
				i, err := begins(l, "one")
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > time.Duration(test.most)*time.Second {
					t.Errorf("the start took %v, so many round trips; want %d at most", took, test.most)
				}
				began = time.Now()
				source, _, err := i.Source(bg, "u")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := source.Lease(bg, 10); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("a first lease took %v, so many round trips; want 2 at most", took)
				}
			})
		})
	}
}

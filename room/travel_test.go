package room_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// recover recovers the cluster; ask asks instances. As an operator would, it asks again where an
// instance did not answer: its connection to an etcd that was away may need a moment.
func (c *cluster) recover(ask recovery.Ask, change func(*recovery.Config)) {
	c.Helper()
	cfg := recovery.Config{Actor: "ann", Apply: true, Ask: ask}
	if change != nil {
		change(&cfg)
	}
	var report *recovery.Report
	var err error
	await(c, "answers of all instances", func() bool {
		report, err = recovery.Run(bg, c.Ledger(), cfg)
		return err == nil || len(report.Missing) == 0
	})
	if err != nil {
		c.Fatalf("recover: %+v, %v", report, err)
	}
}

// report asks the instance at an address what it remembers.
func (c *cluster) report(ctx context.Context, s record.SeenInstance, q record.Question,
	use record.UseMarks) (record.Memory, error) {
	return room.AskMarks(ctx, testcluster.Dial(c, s.Address), q, use)
}

// TestHalted halts leasing. An instance goes on with the IDs that it holds, and says why
// it leases no more, over each interface. After a recover it leases again without a
// restart, and nothing halts again.
func TestHalted(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.WarmTags = []allocator.Tag{"order"} })
		mine := &issued{TB: t, room: "a", tag: "order"}
		if _, err := c.Admin.Ledger.Halt(bg, "ann", "tonight's restore"); err != nil {
			t.Fatal(err)
		}
		a.await("halted", func() bool {
			m := a.metrics()
			return m[`march_leasing_stopped{room="a"}`] == "1" && m[`march_regressions_total{room="a"}`] == "1"
		})
		if code, body := a.get("/readyz?verbose"); code != http.StatusOK ||
			!contains(body, "[+]counters ok: only those that are held: leasing is halted by ann since",
				"tonight's restore", "march recover") {
			t.Errorf("readyz: %d %s", code, body)
		}
		for range a.chain("order").GetHeld() {
			mine.addID(a.mustNext("order"))
		}
		_, err := a.next("order")
		if code, info := reason(err); code != codes.Unavailable ||
			info.GetReason() != allocator.WentBack.Error() ||
			!contains(err.Error(), "halted by ann", "tonight's restore", "march recover") {
			t.Errorf("with nothing held: %v", err)
		}
		if code, body := a.get("/readyz"); code != http.StatusServiceUnavailable ||
			!contains(body, "[-]counters failed: it holds no IDs, and leasing is halted by ann") {
			t.Errorf("readyz: %d %s", code, body)
		}
		ask := func(
			ctx context.Context, s record.SeenInstance, q record.Question, use record.UseMarks,
		) (record.Memory, error) {
			m, err := c.report(ctx, s, q, use)
			barred := "[+]recover ok: ann runs a recover that has barred this instance from leasing since 2"
			if _, body := a.get("/readyz?verbose"); contains(body, barred) != m.Barred {
				t.Errorf("readyz where barred is %v: %s", m.Barred, body)
			}
			return m, err
		}
		c.recover(ask, nil)
		a.await("no longer barred", func() bool {
			_, body := a.get("/readyz?verbose")
			return !contains(body, "barred")
		})
		a.await("ready", func() bool { _, err := a.next("order"); return err == nil })
		mine.addID(a.mustNext("order"))
		c.Mem.Stop() // has the instance check everything again
		c.Mem.Start()
		c.update("order", func(s *record.TagSettings) { s.MinStep = 5_000 })
		for range 3_000 {
			mine.addID(a.mustNext("order"))
		}
		if m := a.metrics(); m[`march_leasing_stopped{room="a"}`] != "0" ||
			m[`march_regressions_total{room="a"}`] != "1" ||
			m[`march_orphaned_tags_total{room="a"}`] != "0" {
			t.Errorf("stopped %s, %s regressions, %s orphaned tags", m[`march_leasing_stopped{room="a"}`],
				m[`march_regressions_total{room="a"}`], m[`march_orphaned_tags_total{room="a"}`])
		}
		if _, err := c.Admin.Ledger.Refresh(bg); err != nil {
			t.Fatal(err)
		}
		if h, halted := c.Admin.Ledger.Halted(); halted {
			t.Errorf("halted again: %+v", h)
		}
	})
}

// While leasing is halted, an instance reads etcd at most twice a second, besides its
// heartbeats, however many callers ask for however many tags.
func TestHaltedReads(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		var tags []allocator.Tag
		for i := range 400 {
			tags = append(tags, allocator.Tag(fmt.Sprint("t", i)))
		}
		c.tag(nil, tags...)
		a := c.start("a", "a1", nil)
		a.mustNext("t0")
		if _, err := c.Admin.Ledger.Halt(bg, "ann", "tonight's restore"); err != nil {
			t.Fatal(err)
		}
		a.await("halted", func() bool { return a.metrics()[`march_leasing_stopped{room="a"}`] == "1" })
		stop := make(chan struct{})
		var work sync.WaitGroup
		for k := range 4 {
			work.Go(func() {
				for i := k; ; i += 4 {
					select {
					case <-stop:
						return
					default:
					}
					_, _ = a.next(fmt.Sprint("t", i%400))
				}
			})
		}
		const seconds = 5
		began, before := time.Now(), a.store.txns.Load()
		time.Sleep(seconds * time.Second)
		n, took := a.store.txns.Load()-before, time.Since(began)
		close(stop)
		work.Wait()
		// Heartbeats and probes of the history take less than one a second.
		if most := 3*took.Seconds() + 2; float64(n) > most {
			t.Errorf("%d transactions in %v, want at most %.0f", n, took, most)
		}
	})
}

// TestOrphaned recovers without an instance that still runs. The instance drops the IDs
// that others may have by now, and goes on above them.
func TestOrphaned(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		a := c.start("a", "a1", nil)
		a.mustNext("order")
		backup := c.Mem.Revision()
		var last int64
		for range 4_000 {
			last = a.mustNext("order")
		}
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		none := int64(0)
		c.recover(func(context.Context, record.SeenInstance, record.Question, record.UseMarks) (record.Memory, error) {
			return record.Memory{}, errors.New("not asked")
		}, func(cfg *recovery.Config) {
			cfg.Without, cfg.Margin = []record.InstanceID{"a/a1"}, &none
		})
		a.await("issuing above what it held", func() bool {
			id, err := a.next("order")
			if err == nil && id <= last {
				t.Errorf("issued %d after %d", id, last)
			}
			return err == nil && id > last+1
		})
	})
}

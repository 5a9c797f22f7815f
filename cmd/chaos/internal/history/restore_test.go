package history_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// A restored etcd begins another life, even if the restore is hidden: revisions may be raised,
// or may have grown past the old ones before a process reads them. Nothing of one life counts
// as part of the other, and a correct recover breaks no rule.
func TestRestore(t *testing.T) {
	for _, test := range []struct {
		bump      int64
		id        uint64
		meanwhile int // transactions in the new life before the first look
	}{
		{0, ledgertest.ClusterID, 0}, {1_000_000_000, ledgertest.ClusterID, 0}, {0, 42, 0}, {1_000_000_000, 42, 0},
		{0, ledgertest.ClusterID, 100}, {1_000_000_000, ledgertest.ClusterID, 100},
	} {
		t.Run(fmt.Sprintf("bump %d, etcd cluster %x, %d transactions", test.bump, test.id, test.meanwhile),
			func(t *testing.T) {
				r := recording(t, t.TempDir())
				r.init("100 a=0-50 b=50-100")
				r.tag("t")
				a, b := r.join("a", "one", "t"), r.join("b", "one", "t")
				r.lease(a, 20)
				backup := r.store.Revision()
				r.lease(a, 70)
				r.lease(b, 70)
				r.change("100 a=50-100 b=0-50")
				r.lease(a, 30)
				_ = r.read()
				if test.meanwhile > 0 {
					r.stop()
				}
				r.store.Restore(backup, test.bump, test.id)
				for i := range test.meanwhile {
					r.store.Corrupt(store.Op{Put: &store.Put{Key: prefix + "migration", Value: fmt.Append(nil, i)}})
				}
				if test.meanwhile > 0 {
					r.follow()
				}
				r.await("the restore is noticed", func() bool {
					h, err := history.Read(r.dir, "default")
					return err == nil && len(h.Lives) == 2
				})
				if _, err := a.source.Lease(bg, 10); err == nil {
					t.Fatal("leased after a restore")
				}
				recovering := r.open()
				ask := func(ctx context.Context, s record.SeenInstance, q record.Question,
					use record.UseMarks) (record.Memory, error) {
					m := map[allocator.Room]instance{"a": a, "b": b}[s.Room].Memory(ctx, q)
					return m, use(m.Room, m.Marks)
				}
				cfg := recovery.Config{Actor: "test", Apply: true, Layout: recovery.LayoutKnown, Ask: ask}
				if _, err := recovery.Run(bg, recovering, cfg); err != nil {
					t.Fatal(err)
				}
				r.admin = admin.New(recovering, admin.DefaultConfig())
				r.change("100 a=0-50 b=50-100")
				r.lease(a, 40)
				r.lease(b, 40)
				h := r.read()
				if len(h.Problems) > 0 || len(h.Lives) != 2 {
					t.Errorf("%d lives: %+v\nproblems: %v", len(h.Lives), h.Lives, h.Problems)
				}
				leases := make(map[int]int)
				halts := 0
				for _, rise := range h.Rises {
					if rise.Lease {
						leases[rise.Life]++
					}
				}
				for _, epoch := range h.Epochs {
					if epoch.Halted != nil {
						halts++
					}
				}
				if leases[0]+h.Lives[0].Doubtful != 4 && leases[0] != 4 || leases[1] != 2 || halts == 0 {
					t.Errorf("leases by life: %v, %d halts; doubtful: %d", leases, halts, h.Lives[0].Doubtful)
				}
				if reports := h.Reports; reports[len(reports)-1].Life != 1 {
					t.Errorf("reports: %+v", reports)
				}
				for _, report := range h.Reports {
					if report.Life == 0 && report.Until.IsZero() {
						t.Errorf("a report of the first life still holds: %+v", report)
					}
				}
			})
	}
}

// A recover that goes on without an instance leaves a margin free for it. A lease within the
// margin is found, even if all its IDs lie above every mark.
func TestMargin(t *testing.T) {
	r := recording(t, t.TempDir())
	r.init("100 a=0-50 b=50-100")
	r.tag("t")
	a, b := r.join("a", "one", "t"), r.join("b", "one", "t")
	r.lease(a, 20)
	r.lease(b, 20)
	admin, margin := r.open(), int64(3)
	if _, err := recovery.Run(bg, admin, recovery.Config{
		Actor: "test", Apply: true, Margin: &margin, Without: []record.InstanceID{"b/one"},
		Ask: func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			if s.Room == "b" {
				return record.Memory{}, allocator.Errorf(allocator.Unavailable, "it does not run")
			}
			m := a.Memory(ctx, q)
			return m, use(m.Room, m.Marks)
		},
	}); err != nil {
		t.Fatal(err)
	}
	first := r.lease(a, 20).First
	h := r.read()
	last := h.Rises[len(h.Rises)-1]
	if len(h.Problems) > 0 || last.Floor <= 1000 || last.Floor > first || last.Mark.Total != margin {
		t.Errorf("the floor is %d for %d; problems: %v", last.Floor, first, h.Problems)
	}
	mark := r.value("marks/a/t", `"began":"\d+"`, `"began":"250"`)
	r.store.Corrupt(set("marks/b/t", lastEra(mark, 270, last.Layout.Version, 250, 270)))
	if h := r.read(); !slices.Contains(rules(h), "floor") {
		t.Errorf("a lease within the margin is not found: %v", h.Problems)
	}
	r.store.Corrupt(set("epoch", r.value("epoch", `:"3"`, `:"2"`))) // the total, and the end that has it
	if h := r.read(); !slices.Contains(rules(h), "margin total") {
		t.Errorf("a margin total that fell is not found: %v", h.Problems)
	}
}

// A restore is noticed even if it took back only revisions that the watch had not brought.
// The recorder notices it by the revision that etcd had shown, or by the raft index if
// revisions have grown past that.
func TestRestoreOfWhatWasNotSeen(t *testing.T) {
	for _, meanwhile := range []int{0, 12} {
		r := recording(t, t.TempDir())
		r.init("100 a=0-50 b=50-100")
		r.tag("t")
		a := r.join("a", "one", "t")
		r.lease(a, 20)
		_ = r.read()
		backup := r.store.Revision()
		r.stalled.Store(true)
		for range 10 {
			r.lease(a, 10)
		}
		r.shown(r.store.Revision())
		if meanwhile > 0 {
			r.stop()
		}
		r.store.Restore(backup, 0, ledgertest.ClusterID)
		for i := range meanwhile {
			r.store.Corrupt(store.Op{Put: &store.Put{Key: prefix + "migration", Value: fmt.Append(nil, i)}})
		}
		r.stalled.Store(false)
		if meanwhile > 0 {
			r.follow()
		}
		h := r.read()
		if len(h.Lives) != 2 || len(h.Problems) > 0 {
			t.Errorf("after %d transactions: %d lives %+v, problems %v", meanwhile, len(h.Lives), h.Lives, h.Problems)
		}
		r.stop()
	}
}

// shown waits until a check has shown a revision.
func (r *recorded) shown(revision int64) {
	r.tb.Helper()
	want := fmt.Sprintf(`"shown":"%d"`, revision)
	r.await(fmt.Sprintf("a check at revision %d", revision), func() bool {
		content, err := os.ReadFile(filepath.Join(r.dir, runlog.EtcdsHistory))
		return err == nil && strings.Contains(string(content), want)
	})
}

package ledger_test

import (
	"context"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// watcher is a ledger that runs, and the tags it was told of.
type watcher struct {
	*ledger.Ledger
	mu   sync.Mutex
	tags map[allocator.Tag]int
}

// watch runs l until the test ends.
func watch(t *testing.T, l *ledger.Ledger) *watcher {
	w := &watcher{Ledger: l, tags: map[allocator.Tag]int{}}
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error)
	go func() {
		done <- l.Run(ctx, func(change ledger.TagChange) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.tags[change.Name]++
		}, nil)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return w
}

func (w *watcher) told(tag allocator.Tag) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tags[tag]
}

// await waits until the ledger knows a layout version, by the channel that says
// when to look.
func (w *watcher) await(t *testing.T, version int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, heard)
	defer cancel()
	for {
		r, changed := w.Layout()
		if r.Layout.Version == version {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("after %v the layout is version %d, want %d", heard, r.Layout.Version, version)
		}
	}
}

// change makes the next layout.
func change(t *testing.T, l *ledger.Ledger, layout string) {
	t.Helper()
	from, err := l.Refresh(bg)
	if err == nil {
		_, err = manage(l).ChangeLayout(bg, from, ledgertest.Lay(t, layout), "test")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Run over both stores: from nothing to a cluster, layouts, tags, a compaction
// of all that it heard of.
func TestRun(t *testing.T) {
	for name, open2 := range map[string]func(t *testing.T) ledgertest.Subject{
		"memory": func(t *testing.T) ledgertest.Subject {
			m := ledgertest.NewFake(t)
			return ledgertest.Subject{Store: m.Open(), Another: m.Open(), Compact: m.Compact}
		},
		"etcd": func(t *testing.T) ledgertest.Subject {
			e := ledgertest.StartEtcd(t)
			another := e.Store(t)
			return ledgertest.Subject{Store: e.Store(t), Another: another, Compact: func() { e.Compact(t, another) }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open2(t)
			admin := ledgertest.Open(t, s.Another)
			w := watch(t, ledgertest.Open(t, s.Store)) // there is no cluster yet
			if _, err := manage(admin).Init(bg, ledgertest.Lay(t, "10 a=0-5 b=5-10"), "test"); err != nil {
				t.Fatal(err)
			}
			w.await(t, 1)
			change(t, admin, "10 a=5-10 b=0-5")
			w.await(t, 2)
			if _, err := manage(admin).CreateTag(bg, "t", record.DefaultTag(), "test"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a created tag is told", func() bool { return w.told("t") == 1 })
			s.Compact()
			change(t, admin, "10 a=0-5 b=5-10")
			w.await(t, 3)
			if _, err := manage(admin).UpdateTag(bg, "t", func(s *record.TagSettings) error {
				s.MaxSkew = 5
				return nil
			}, "test"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "an update is told", func() bool { return w.told("t") == 2 })
			if err := manage(admin).DeleteTag(bg, "t", "test"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a deletion is told", func() bool { return w.told("t") == 3 })
			ledgertest.CheckCluster(t, s.Another, "default", nil)
		})
	}
}

// The same in a real etcd, which stops and starts again, compacted meanwhile.
func TestRunSurvivesAnEtcdRestart(t *testing.T) {
	t.Parallel()
	e := ledgertest.StartEtcd(t)
	admin := ledgertest.Open(t, e.Store(t))
	if _, err := manage(admin).Init(bg, ledgertest.Lay(t, "10 a=0-5 b=5-10"), "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := manage(admin).CreateTag(bg, "t", record.DefaultTag(), "test"); err != nil {
		t.Fatal(err)
	}
	w := watch(t, ledgertest.Open(t, e.Store(t)))
	w.await(t, 1)
	p, err := w.Join(bg, ledger.Registration{Room: "a", Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	source, _, err := p.Source(bg, "t")
	if err != nil {
		t.Fatal(err)
	}
	issued := ledgertest.Issued{}
	lease := func() error {
		seg, err := source.Lease(bg, 10)
		if err == nil {
			issued.Add("t", "a", seg)
		}
		return err
	}
	if err := lease(); err != nil {
		t.Fatal(err)
	}
	e.Stop()
	ledgertest.WantKind(t, lease(), allocator.Unavailable, e.Endpoint)
	if c := w.Contact(); c.Away.IsZero() || c.Cause == nil {
		t.Errorf("while etcd is down: %+v", c)
	}
	e.Start(t)
	eventually(t, "a lease after the restart", func() bool { return lease() == nil })
	if away := w.Contact().Away; !away.IsZero() {
		t.Errorf("still away since %v", away)
	}
	change(t, admin, "10 a=5-10 b=0-5")
	e.Compact(t, e.Store(t))
	change(t, admin, "7 a=0-7")
	w.await(t, 3)
	if err := lease(); err != nil {
		t.Error(err)
	}
	ledgertest.CheckCluster(t, e.Store(t), "default", issued)
}

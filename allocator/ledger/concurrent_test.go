package ledger_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

// Two instances of each of two rooms hammer eight tags from cold, over both
// stores, while the layout changes under them. Then all take a worker at once, of as many as there are.
func TestManyAtOnce(t *testing.T) {
	layouts := []string{"100 a=0-50 b=50-100", "100 a=50-100 b=0-50", "7 a=0-3 b=3-7", "100 a=0-50 b=50-100"}
	tags := make([]allocator.Tag, 8)
	for i := range tags {
		tags[i] = allocator.Tag(fmt.Sprintf("t%d", i))
	}
	stores := map[string]func(t *testing.T) func() store.Store{
		"memory": func(t *testing.T) func() store.Store {
			m := ledgertest.NewFake(t)
			return func() store.Store { return m.Open() }
		},
		"etcd": func(t *testing.T) func() store.Store {
			e := ledgertest.StartEtcd(t)
			return func() store.Store { return e.Store(t) }
		},
	}
	for name, connect := range stores {
		t.Run(name, func(t *testing.T) {
			etcd := connect(t)
			admin := ledgertest.Open(t, etcd())
			if _, err := manage(admin).Init(bg, ledgertest.Lay(t, layouts[0]), "test"); err != nil {
				t.Fatal(err)
			}
			for _, tag := range tags {
				if _, err := manage(admin).CreateTag(bg, tag, record.DefaultTag(), "test"); err != nil {
					t.Fatal(err)
				}
			}
			var mu sync.Mutex
			issued, taken := ledgertest.Issued{}, map[record.WorkerID]bool{}
			var processes []*ledger.Instance
			var all sync.WaitGroup
			for i, room := range []allocator.Room{"a", "a", "b", "b"} {
				l := ledgertest.Open(t, etcd())
				p, err := l.Join(bg, ledger.Registration{Room: room, Name: allocator.Instance(fmt.Sprint(i))})
				if err != nil {
					t.Fatal(err)
				}
				processes = append(processes, p)
				for _, tag := range tags {
					all.Go(func() {
						source, _, err := p.Source(bg, tag)
						for k := 0; k < 20 && err == nil; k++ {
							var seg allocator.Segment
							if seg, err = source.Lease(bg, int64(1+k)); err == nil {
								mu.Lock()
								issued.Add(tag, room, seg)
								mu.Unlock()
							}
						}
						if err != nil {
							t.Errorf("room %s tag %s: %v", room, tag, err)
						}
					})
				}
			}
			for _, layout := range layouts[1:] {
				change(t, admin, layout)
			}
			all.Wait()
			for _, p := range processes {
				all.Go(func() {
					workers, err := worker.New(p, worker.DefaultConfig())
					if err != nil {
						t.Error(err)
						return
					}
					w, err := workers.Take(bg, worker.Request{Bits: 2, Tick: time.Millisecond})
					mu.Lock()
					defer mu.Unlock()
					if err != nil || taken[w.ID()] {
						t.Errorf("taken %v, then %v: %v", taken, w, err)
						return
					}
					taken[w.ID()] = true
				})
			}
			all.Wait()
			ledgertest.CheckCluster(t, etcd(), "default", issued)
		})
	}
}

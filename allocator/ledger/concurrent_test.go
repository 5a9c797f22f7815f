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
// stores, while the layout changes under them. Then they take workers.
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
			issued := ledgertest.Issued{}
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
			takeWorkers(t, processes)
			ledgertest.CheckCluster(t, etcd(), "default", issued)
		})
	}
}

// takeWorkers has each process take a worker at once, of as many as there are, and renew it. Then one gives its worker
// back, and takes it again.
func takeWorkers(t *testing.T, processes []*ledger.Instance) {
	request := worker.Request{Bits: 2, Tick: time.Millisecond}
	pools, taken := make([]*worker.Workers, len(processes)), make([]*worker.Worker, len(processes))
	var all sync.WaitGroup
	for k, p := range processes {
		all.Go(func() {
			cfg, passed := worker.DefaultConfig(), time.Duration(0)
			cfg.Now = func() time.Time { return p.Now().Add(passed) }
			var err error
			if pools[k], err = worker.New(p, cfg); err == nil {
				taken[k], err = pools[k].Take(bg, request)
			}
			if err != nil {
				t.Error(err)
				return
			}
			was := taken[k].Window()
			passed = 2 * time.Second
			if err := pools[k].Renew(bg, taken[k]); err != nil || taken[k].Window().Until <= was.Until {
				t.Errorf("renewed until %d, after %d: %v", taken[k].Window().Until, was.Until, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	first, different := taken[0], map[record.WorkerID]bool{}
	for _, w := range taken {
		different[w.ID()] = true
	}
	if err := pools[0].GiveBack(bg, first, first.Window().From); err != nil {
		t.Error(err)
	}
	again, err := pools[0].Take(bg, request)
	if err != nil || again.ID() != first.ID() || len(different) < len(taken) {
		t.Errorf("%d different workers; %v was given back, and %v taken: %v", len(different), first, again, err)
	}
}

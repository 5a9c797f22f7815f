package room_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// TestRollingRestartsWasteNothing restarts the instances of two rooms ten times, twice in a run that has not all
// variants, one after the other, while callers ask for IDs. In the end each leased ID was issued once, or is kept.
func TestRollingRestartsWasteNothing(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		tags := []allocator.Tag{"order", "strict", "item", "ordered"}
		c.tag(func(s *record.TagSettings) { s.MinStep, s.Reserve = 20, "5s" }, tags[0], tags[2])
		c.tag(func(s *record.TagSettings) { s.MinStep, s.StrictRetract = 50, true }, tags[1])
		c.tag(func(s *record.TagSettings) {
			s.MinStep, s.StrictOrder, s.TenureHold = 50, "room", record.DefaultTenureHold
		}, tags[3])
		dir := t.TempDir()
		names := map[allocator.Instance]allocator.Room{"a1": "a", "a2": "a", "b1": "b"}
		start := func(name allocator.Instance) *instance {
			return c.start(names[name], name, func(cfg *room.Config) { cfg.Journal = dir })
		}
		var mu sync.Mutex
		issued := make(map[string]bool)
		running := make(map[allocator.Instance]*instance)
		for name := range names {
			running[name] = start(name)
		}
		var ended atomic.Bool
		var callers sync.WaitGroup
		for name := range names {
			for n, tag := range tags {
				callers.Go(func() {
					for !ended.Load() {
						mu.Lock()
						i := running[name]
						mu.Unlock()
						id, err := i.next(string(tag))
						key := fmt.Sprint(tag, " ", id)
						mu.Lock()
						if err == nil && issued[key] {
							t.Errorf("%s twice", key)
						}
						issued[key] = issued[key] || err == nil
						mu.Unlock()
						time.Sleep(time.Duration(7+5*n) * time.Millisecond)
					}
				})
			}
		}
		rounds := 10
		if !programs.All() {
			rounds = 2
		}
		for range rounds {
			for name := range names {
				time.Sleep(2 * time.Second)
				running[name].Stop()
				again := start(name)
				mu.Lock()
				running[name] = again
				mu.Unlock()
			}
		}
		ended.Store(true)
		callers.Wait()
		kept := make(map[allocator.Tag]int64)
		for name, in := range names {
			running[name].Stop()
			id, err := c.Admin.Ledger.UUID(bg)
			if err != nil {
				t.Fatal(err)
			}
			s, err := journal.Read(filepath.Join(dir, id, string(in), string(name)+".journal"))
			if err != nil || s.Kept == nil {
				t.Fatalf("%s keeps nothing: %v", name, err)
			}
			for _, seg := range s.Kept.Segments {
				kept[seg.Tag] += seg.Count
			}
		}
		stored, err := c.Admin.Ledger.Refresh(bg)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range tags {
			leased, used := int64(0), int64(0)
			for _, in := range []allocator.Room{"a", "b"} {
				answer, err := c.Open(t).Txn(bg, store.Txn{Then: []store.Op{
					store.OpGet("/march/default/marks/" + string(in) + "/" + string(tag)),
					store.OpGet("/march/default/holders/" + string(in) + "/" + string(tag))}})
				if err != nil {
					t.Fatal(err)
				}
				var holder record.Holder
				if kv, there := answer.One(1); there && record.Decode(kv, &holder) == nil && holder.Rest != nil {
					kept[tag] += stored.Layout.CountIDs(stored.Layout.Ranges[in], holder.Rest.First, holder.Rest.End)
				}
				mark, err := record.DecodeMark(answer.Got[0][0])
				if err != nil {
					t.Fatal(err)
				}
				leased += stored.Layout.CountIDs(stored.Layout.Ranges[in], mark.Eras[0].First, mark.Next)
			}
			for key := range issued {
				if strings.HasPrefix(key, string(tag)+" ") && issued[key] {
					used++
				}
			}
			t.Logf("%s: %d IDs were leased, %d issued, %d kept", tag, leased, used, kept[tag])
			if used < 1000 || leased != used+kept[tag] {
				t.Errorf("%s: %d of %d IDs were issued, and %d kept: %d are wasted", tag, used, leased, kept[tag],
					leased-used-kept[tag])
			}
		}
	})
}

// TestARestartIssuesBeforeItsFirstLease stops an instance in good order. The next process of its name issues what that
// one kept, without a lease, and leases ahead before it runs out.
func TestARestartIssuesBeforeItsFirstLease(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) { s.MinStep, s.MaxStep = 100, 100 }, "order")
		var leases atomic.Int64
		c.onTxn = func(txn store.Txn) {
			for _, op := range txn.Then {
				if op.Put != nil && strings.HasPrefix(op.Put.Key, "/march/default/marks/") {
					leases.Add(1)
				}
			}
		}
		dir := t.TempDir()
		start := func() *instance {
			return c.start("a", "a1", func(cfg *room.Config) { cfg.Journal = dir })
		}
		a := start()
		last := a.mustNext("order")
		held := a.chain("order").GetHeld()
		a.Stop()
		if n := leases.Swap(0); n == 0 || held < 99 {
			t.Fatalf("%d leases, %d IDs held", n, held)
		}
		a = start()
		if n, id := leases.Load(), a.mustNext("order"); n > 0 || id != last+1 {
			t.Errorf("after %d the next process leased %d times, and then issued %d", last, n, id)
		}
		last++
		for range 2 * held {
			id := a.mustNext("order")
			if id <= last {
				t.Fatalf("%d after %d", id, last)
			}
			last = id
		}
		if leases.Load() == 0 {
			t.Error("no lease came after what was kept")
		}
		if waits := a.chain("order").GetWaits(); waits > 0 {
			t.Errorf("%d callers waited", waits)
		}
		a.Stop()
	})
}

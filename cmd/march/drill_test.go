package main

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api/client"
)

// drill is what happens to a cluster on its second day, played with processes, while the
// services of both rooms take IDs through clients with a reserve. No call fails.
type drill struct {
	*processCluster
	services []*service
}

// service takes IDs all the time, as a service of a room does.
type service struct {
	t      *testing.T
	room   string
	order  *client.Tag
	calls  atomic.Int64
	failed atomic.Int64
	mu     struct {
		sync.Mutex
		runs []allocator.Run
	}
}

// reserve is what a service holds.
const reserve = 100_000

// newDrill starts two rooms of two instances each, a console, and a service in each room.
// With fallback, a service may use the other room.
func newDrill(t *testing.T, fallback bool) *drill {
	t.Helper()
	d := &drill{processCluster: newProcessCluster(t)}
	d.init()
	d.start("a-1")
	d.start("b-1")
	d.start(consoleName)
	if _, err := d.admin.CreateTag(d.Context(), "drill", record.DefaultTag(), "test"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	for _, room := range []string{"a", "b"} {
		find := client.Options{Addresses: []string{d.address(room + "-0"), d.address(room + "-1")}}
		if name := map[string]string{"a": "b", "b": "a"}[room]; fallback {
			find.Fallback = []string{d.address(name + "-0"), d.address(name + "-1")}
		}
		s := newService(t, room, "drill", find)
		for range 2 {
			calling.Go(func() { s.run(ctx) })
		}
		d.services = append(d.services, s)
	}
	t.Cleanup(func() { // before the cluster checks that no ID came twice
		stop()
		calling.Wait()
		for _, s := range d.services {
			d.runs["drill"] = append(d.runs["drill"], s.report()...)
		}
	})
	return d
}

// newService makes the client of a service of a room that takes IDs of a tag. find says how the
// client finds its room, and another one.
func newService(t *testing.T, room, tag string, find client.Options) *service {
	t.Helper()
	find.WarmTags, find.MinStep, find.MaxStep = []string{tag}, reserve, reserve
	ids, err := client.New(t.Context(), find)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ids.Close)
	s := &service{t: t, room: room}
	if s.order, err = ids.Tag(tag); err != nil {
		t.Fatal(err)
	}
	return s
}

// run takes IDs until ctx ends. It leaves half of the reserve, which then lasts however long a process
// takes to start.
func (s *service) run(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if s.order.Status().Held > reserve/2 {
			s.take(2)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// take takes IDs in one call, and returns them.
func (s *service) take(n int64) []allocator.Run {
	runs, err := s.order.NextN(s.t.Context(), n, nil)
	s.calls.Add(1)
	if err != nil {
		s.failed.Add(1)
		s.t.Errorf("a call of a service of room %s failed: %v", s.room, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.runs = append(s.mu.runs, runs...)
	return runs
}

// report logs what a service did, and returns the IDs that it took.
func (s *service) report() (all []issuedRun) {
	for _, run := range s.mu.runs {
		all = append(all, issuedRun{run.First, run.Count, "room " + s.room})
	}
	status := s.order.Status()
	s.t.Logf("service of room %s: %d calls, %d failed; %d IDs, %d leases, %d waits",
		s.room, s.calls.Load(), s.failed.Load(), status.Issued, status.Refills, status.Waits)
	return all
}

// refill has each service take all but a fifth of its reserve, and waits until it has leased
// again, from the room that is named, or else from its own. So the service depends on what
// runs now, and not on what it had before.
func (d *drill) refill(from string) {
	d.Helper()
	for _, s := range d.services {
		room := map[string]string{"": s.room}[from] + from
		refills := s.order.Status().Refills
		d.until("the service of room "+s.room+" leases from room "+room, func() bool {
			if held := s.order.Status().Held; held > reserve/5 {
				s.take(held - reserve/5)
			}
			if s.order.Status().Refills == refills {
				return false
			}
			refills = s.order.Status().Refills
			s.take(reserve / 5) // the rest of what it had
			runs := s.take(1)
			if len(runs) == 1 && (runs[0].First%100 < 50) == (room == "a") {
				return true
			}
			time.Sleep(200 * time.Millisecond) // it asks an instance that failed again after 5 s
			return false
		})
	}
}

// end ends servers at once, each in good order.
func (d *drill) end(names ...string) {
	d.Helper()
	deadline := patience(d.T)
	var ending sync.WaitGroup
	for _, name := range names {
		p := d.servers[name]
		delete(d.servers, name)
		ending.Go(func() {
			if code, err := p.stop(deadline, syscall.SIGTERM); err != nil || code != exitOK {
				d.Errorf("%s: exit code %d, %v", name, code, err)
			}
		})
	}
	ending.Wait()
}

// TestDrillRollingUpdate replaces one process after the other, as an upgrade does. While one
// is away, services get IDs of their own room from its other instance.
func TestDrillRollingUpdate(t *testing.T) {
	t.Parallel()
	d := newDrill(t, false)
	for _, name := range []string{consoleName, "a-0", "a-1", "b-0", "b-1"} {
		d.end(name)
		d.refill("")
		d.start(name)
	}
	d.refill("")
}

// TestDrillDrainedNode takes a node away that has an instance of each room and the console.
// They start again later, as on another node, with their volumes.
func TestDrillDrainedNode(t *testing.T) {
	t.Parallel()
	d := newDrill(t, false)
	node := []string{"a-0", "b-0", consoleName}
	d.end(node...)
	for range 3 {
		d.refill("")
	}
	for _, name := range node {
		d.start(name)
	}
	d.refill("")
}

// TestDrillLostRoom kills all of a room at once. Its service goes on with the other room's
// IDs, and returns to its own room when that is back.
func TestDrillLostRoom(t *testing.T) {
	t.Parallel()
	d := newDrill(t, true)
	for _, name := range []string{"a-0", "a-1"} {
		d.signal(name, syscall.SIGKILL)
	}
	for range 3 {
		d.refill("b")
	}
	d.start("a-0")
	d.start("a-1")
	d.refill("")
}

package client_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

func TestMain(m *testing.M) {
	// Parallel tests wait more than they work. So this many run at once, however few
	// processors there are. A flag overrides it.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	code := m.Run()
	stopExampleRoom()
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// cluster is a store in memory with a cluster in it: rooms a [0, 50) and
// b [50, 100) mod 100. The room servers are real.
type cluster struct {
	*testcluster.Cluster
	hold time.Duration // of rooms that are started, 0 for the default
}

func newCluster(tb testing.TB) *cluster {
	tb.Helper()
	c := &cluster{Cluster: testcluster.NewFake(tb)}
	c.Init(testcluster.Halves(), "test")
	return c
}

func layout(boundary, aLower, aUpper, bLower, bUpper int64) allocator.Layout {
	return allocator.Layout{Boundary: boundary, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: aLower, Upper: aUpper}, "b": {Lower: bLower, Upper: bUpper},
	}}
}

// instance is a room server that runs.
type instance struct {
	*cluster
	in      allocator.Room
	name    allocator.Instance
	address string
	end     func() // stops it and waits for its end
}

// room starts an instance, which creates tags when they are asked for.
func (c *cluster) room(in allocator.Room, name allocator.Instance) *instance {
	c.Helper()
	i := &instance{cluster: c, in: in, name: name}
	i.start()
	return i
}

// start starts the instance, also after end, and waits until it is ready.
func (i *instance) start() {
	i.Helper()
	r := i.Room(i.in, i.name, func(cfg *room.Config) {
		cfg.GRPC, cfg.CreateTags, cfg.Drain = testcluster.Listen(i, i.address), true, time.Second
		cfg.Hold = cmp.Or(i.hold, cfg.Hold)
	})
	i.address, i.end = r.Address, r.Stop
}

// dials returns options with which a client finds the servers of a bubble.
func dials(opts client.Options) client.Options {
	opts.Dial = append(opts.Dial, grpc.WithContextDialer(testcluster.DialContext))
	return opts
}

// newClient returns a client, closed when the test ends.
func newClient(tb testing.TB, opts client.Options) *client.Client {
	tb.Helper()
	c, err := client.New(tb.Context(), dials(opts))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// tagOf returns a tag that has its first IDs.
func tagOf(tb testing.TB, c *client.Client, name string) *client.Tag {
	tb.Helper()
	tag, err := c.Tag(name)
	if err == nil {
		err = tag.Warm(tb.Context())
	}
	if err != nil {
		tb.Fatal(err)
	}
	return tag
}

// mustNext returns an ID or ends the test.
func mustNext(tb testing.TB, t *client.Tag) int64 {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), testcluster.Patience)
	defer cancel()
	id, err := t.Next(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// issued is IDs that a client issued, from all goroutines.
type issued struct {
	sync.Mutex
	runs []allocator.Run
}

func (s *issued) add(runs ...allocator.Run) {
	s.Lock()
	defer s.Unlock()
	s.runs = append(s.runs, runs...)
}

func (s *issued) count() int {
	s.Lock()
	defer s.Unlock()
	return len(s.runs)
}

// unique checks that no ID came twice, and that every ID is of a range that the room
// has in one of layouts; without layouts, any ID will do. It returns their number.
func (s *issued) unique(tb testing.TB, in allocator.Room, layouts ...allocator.Layout) (n int64) {
	tb.Helper()
	s.Lock()
	defer s.Unlock()
	slices.SortFunc(s.runs, func(a, b allocator.Run) int { return int(min(max(a.First-b.First, -1), 1)) })
	end := int64(0)
	for _, run := range s.runs {
		if run.First < end {
			tb.Errorf("%d was issued twice", run.First)
		}
		end = run.First + run.Count
		n += run.Count
		for id := run.First; id < end && len(layouts) > 0; id++ {
			if !slices.ContainsFunc(layouts, func(l allocator.Layout) bool {
				r, ok := l.RoomOf(id)
				return ok && r == in
			}) {
				tb.Errorf("%d is not of room %s", id, in)
			}
		}
	}
	return n
}

// load takes IDs of a tag on some goroutines until the caller calls stop, which returns
// the errors. Each goroutine takes some IDs and then rests a moment, so that the tag has
// a rate, and a reserve that lasts.
func load(tb testing.TB, t *client.Tag, into *issued) (stop func() []error) {
	ctx, cancel := context.WithCancel(tb.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for i := range 4 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				var runs []allocator.Run
				var err error
				if (n+i)%2 == 0 {
					runs, err = t.NextN(tb.Context(), int64(1+n%5), nil)
				} else {
					var id int64
					id, err = t.Next(tb.Context())
					runs = []allocator.Run{{First: id, Count: 1}}
				}
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Millisecond):
					}
					continue
				}
				into.add(runs...)
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	return func() []error {
		cancel()
		all.Wait()
		return errs
	}
}

// some waits until n more takes have succeeded.
func (s *issued) some(tb testing.TB, n int) {
	tb.Helper()
	want := s.count() + n
	testcluster.Await(tb, "more IDs", func() bool { return s.count() >= want })
}

// silence listens at an address that a server left, and closes every connection.
// Otherwise another program's server could answer there.
func silence(tb testing.TB, address string) {
	tb.Helper()
	l := testcluster.Listen(tb, address)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	tb.Cleanup(func() {
		_ = l.Close()
		<-done
	})
}

// allocations returns how many allocations a call makes. The cluster of the test allocates in
// the same process: of several measurements the least counts.
func allocations(call func()) float64 {
	least := testing.AllocsPerRun(1000, call)
	for range 20 {
		if least == 0 {
			break
		}
		least = min(least, testing.AllocsPerRun(1000, call))
	}
	return least
}

package client_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/client"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/server"
	"github.com/march-id/march/room"
)

func TestMain(m *testing.M) {
	code := m.Run()
	stopExampleRoom()
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// cluster is a store in memory with a cluster in it: rooms a [0, 50) and
// b [50, 100) mod 100. Its rooms are real ones.
type cluster struct {
	testing.TB
	memory *ledgertest.Memory
	admin  *ledger.Ledger
	hold   time.Duration // of rooms that are started, 0 for the default
}

func newCluster(tb testing.TB) *cluster {
	tb.Helper()
	c := &cluster{TB: tb, memory: ledgertest.NewMemory(tb)}
	c.admin = c.ledger()
	if _, err := c.admin.Init(tb.Context(), halves(), "test"); err != nil {
		tb.Fatal(err)
	}
	return c
}

func halves() allocator.Layout { return layout(100, 0, 50, 50, 100) }

func layout(boundary, aLower, aUpper, bLower, bUpper int64) allocator.Layout {
	return allocator.Layout{Boundary: boundary, Ranges: map[allocator.Room]allocator.Range{
		"a": {Lower: aLower, Upper: aUpper}, "b": {Lower: bLower, Upper: bUpper},
	}}
}

func (c *cluster) ledger() *ledger.Ledger {
	c.Helper()
	store := c.memory.Open()
	c.Cleanup(func() { _ = store.Close() })
	l, err := ledger.New(store, ledger.DefaultConfig())
	if err != nil {
		c.Fatal(err)
	}
	return l
}

// change changes the layout.
func (c *cluster) change(to allocator.Layout) {
	c.Helper()
	from, err := c.admin.Refresh(c.Context())
	if err == nil {
		_, err = c.admin.ChangeLayout(c.Context(), from, to, "test")
	}
	if err != nil {
		c.Fatal(err)
	}
}

// instance is a room server that runs.
type instance struct {
	*cluster
	in       allocator.Room
	name     allocator.Instance
	address  string
	stop     context.CancelFunc
	stopped  chan error
	finished bool
}

// room starts an instance, which creates tags when they are asked for.
func (c *cluster) room(in allocator.Room, name allocator.Instance) *instance {
	c.Helper()
	i := &instance{cluster: c, in: in, name: name, address: "127.0.0.1:0"}
	i.start()
	c.Cleanup(i.end)
	return i
}

// start starts it, again where it was stopped, and waits until it is ready.
func (i *instance) start() {
	i.Helper()
	cfg := room.DefaultConfig()
	cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC, cfg.CreateTags = i.in, i.name, i.ledger(), listen(i, i.address), true
	cfg.Drain = time.Second
	if i.hold > 0 {
		cfg.Hold = i.hold
	}
	i.address = cfg.GRPC.Addr().String()
	server, err := room.New(cfg)
	if err != nil {
		i.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	i.stop, i.stopped, i.finished = stop, make(chan error, 1), false
	go func() { i.stopped <- server.Run(ctx) }()
	await(i, "the room is ready", func() bool { return server.Ready() == nil })
}

// end stops it and waits for its end.
func (i *instance) end() {
	i.Helper()
	if i.finished {
		return
	}
	i.finished = true
	i.stop()
	if err := <-i.stopped; err != nil {
		i.Errorf("instance %s of room %s: %v", i.name, i.in, err)
	}
}

// A fault decides what a lease does instead of going on to the room.
type fault func(ctx context.Context, lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error)

// The faults by name, each twice: it did not happen; it happened and the answer
// was lost.
var faults = map[string]fault{
	"away": func(context.Context, func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		return nil, allocator.Errorf(allocator.Unavailable, "stopping")
	},
	"away, happened": func(_ context.Context, lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		return lost(lease, allocator.Errorf(allocator.Unavailable, "stopping"))
	},
	"hang": func(ctx context.Context, _ func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	},
	"hang, happened": func(ctx context.Context, lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		_, err := lost(lease, nil)
		<-ctx.Done()
		return nil, cmp.Or(err, ctx.Err())
	},
	"ended": func(context.Context, func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		return nil, context.Canceled
	},
	"ended, happened": func(_ context.Context, lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		return lost(lease, context.Canceled)
	},
}

// lost leases and returns err instead of the answer.
func lost(lease func() (*marchv1.LeaseResponse, error), err error) (*marchv1.LeaseResponse, error) {
	if _, failed := lease(); failed != nil {
		return nil, failed
	}
	return nil, err
}

// answers returns a fault that answers with an error.
func answers(err error) fault {
	return func(context.Context, func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		return nil, err
	}
}

// front stands between the client and a real instance: it passes leases on,
// does them harm on demand, and remembers what was leased through it.
type front struct {
	marchv1.UnimplementedIDServiceServer
	testing.TB
	address string
	to      marchv1.IDServiceClient
	down    func() // stops listening, where it does

	mu struct {
		sync.Mutex
		next   []fault // of the next leases
		always fault   // of all after them; nil for none
		change func(*marchv1.LeaseResponse)
		ttl    time.Duration
		calls  int
		leased []allocator.Segment // by the room, answered or not
	}
}

func newFront(tb testing.TB, to *instance) *front {
	tb.Helper()
	conn, err := api.Dial(to.address)
	if err != nil {
		tb.Fatal(err)
	}
	f := &front{TB: tb, address: "127.0.0.1:0", to: marchv1.NewIDServiceClient(conn)}
	f.listen()
	tb.Cleanup(func() {
		f.down()
		_ = conn.Close()
	})
	return f
}

// listen has it listen, again where it was taken down.
func (f *front) listen() {
	f.Helper()
	l := listen(f, f.address)
	f.address = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- server.Run(ctx, server.Config{
			GRPC: l, Health: health.NewServer(), MaxRequest: 64 << 10, Drain: 10 * time.Millisecond,
			Register: func(r grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(r, f) },
		})
	}()
	f.down = sync.OnceFunc(func() {
		stop()
		if err := <-done; err != nil {
			f.Errorf("front: %v", err)
		}
	})
}

// Lease implements IDService.
func (f *front) Lease(ctx context.Context, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error) {
	f.mu.Lock()
	f.mu.calls++
	do, change, ttl := f.mu.always, f.mu.change, f.mu.ttl
	if len(f.mu.next) > 0 {
		do, f.mu.next = f.mu.next[0], f.mu.next[1:]
	}
	f.mu.Unlock()
	lease := func() (*marchv1.LeaseResponse, error) {
		answer, err := f.to.Lease(ctx, r)
		if err != nil {
			return nil, err
		}
		seg, err := api.SegmentFromProto(answer.GetSegment())
		if err != nil {
			f.Errorf("the room's answer: %v", err)
		}
		f.mu.Lock()
		f.mu.leased = append(f.mu.leased, seg)
		f.mu.Unlock()
		answer.Ttl = nil
		if ttl > 0 {
			answer.Ttl = durationpb.New(ttl)
		}
		if change != nil {
			change(answer)
		}
		return answer, nil
	}
	if do != nil {
		return do(ctx, lease)
	}
	return lease()
}

// fault sets what the next leases do, and what all after them do.
func (f *front) fault(always fault, next ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.next, f.mu.always = next, always
}

// setTTL sets for how long what is leased from now on may be used, 0 for ever.
func (f *front) setTTL(ttl time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.ttl = ttl
}

// alter has every answer changed.
func (f *front) alter(change func(*marchv1.LeaseResponse)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.change = change
}

func (f *front) calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.calls
}

// newClient returns a client, closed when the test ends.
func newClient(tb testing.TB, opts client.Options) *client.Client {
	tb.Helper()
	c, err := client.New(tb.Context(), opts)
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
	ctx, cancel := context.WithTimeout(tb.Context(), 20*time.Second)
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

// unique checks that no ID came twice and all are of a range of layouts; none
// means any. It returns how many there are.
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
			if !slices.ContainsFunc(layouts, func(l allocator.Layout) bool { r, ok := l.RoomOf(id); return ok && r == in }) {
				tb.Errorf("%d is not of room %s", id, in)
			}
		}
	}
	return n
}

// load takes IDs of a tag on some goroutines until the function that it returns
// is called; that returns the errors. Each takes some and rests a moment, so
// that there is a rate, and a reserve that lasts.
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

// some waits until so many more takes succeeded.
func (s *issued) some(tb testing.TB, n int) {
	tb.Helper()
	want := s.count() + n
	await(tb, "more IDs", func() bool { return s.count() >= want })
}

// await polls until done or fails the test.
func await(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); {
		if time.Now().After(deadline) {
			tb.Fatalf("not within the test's time: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func listen(tb testing.TB, address string) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// is checks an error's Kind and what it says.
func is(tb testing.TB, err error, kind allocator.Kind, says ...string) {
	tb.Helper()
	if err == nil || allocator.KindOf(err) != kind {
		tb.Errorf("got %v, want %v", err, kind)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			tb.Errorf("%q does not say %q", err, s)
		}
	}
}

// ttlUntil returns a time to live that ends then.
func ttlUntil(end time.Time) *durationpb.Duration { return durationpb.New(max(time.Until(end), 1)) }

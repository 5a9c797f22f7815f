package client_test

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// A fault replaces a lease. It may call lease, which goes on to the room.
type fault func(ctx context.Context, lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error)

// The faults by name, each twice: the lease did not happen, or it happened and the
// answer was lost.
var faults = map[string]fault{
	"away": func(context.Context, func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		return nil, allocator.Errorf(allocator.Unavailable, "stopping")
	},
	"away, happened": func(_ context.Context,
		lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		return lost(lease, allocator.Errorf(allocator.Unavailable, "stopping"))
	},
	"hang": func(ctx context.Context, _ func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	},
	"hang, happened": func(ctx context.Context,
		lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		_, err := lost(lease, nil)
		<-ctx.Done()
		return nil, cmp.Or(err, ctx.Err())
	},
	"ended": func(context.Context, func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
		return nil, context.Canceled
	},
	"ended, happened": func(_ context.Context,
		lease func() (*marchv1.LeaseResponse, error)) (*marchv1.LeaseResponse, error) {
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

// front stands between the client and a real instance: it passes leases on, injects
// faults on demand, and records the segments that were leased through it.
type front struct {
	marchv1.UnimplementedIDServiceServer
	testing.TB
	address string
	to      marchv1.IDServiceClient
	down    func() // stops it if it listens

	mu struct {
		sync.Mutex
		next   []fault // of the next leases
		always fault   // of all after them; nil for none
		change func(*marchv1.LeaseResponse)
		ttl    time.Duration
		calls  int
		leased []allocator.Segment // by the room, answered or not

		windows int // answers of tags of time-ordered IDs
	}
}

func newFront(tb testing.TB, to *instance) *front {
	tb.Helper()
	conn, err := testcluster.DialInstance(to.address)
	if err != nil {
		tb.Fatal(err)
	}
	f := &front{TB: tb, to: marchv1.NewIDServiceClient(conn)}
	f.listen()
	tb.Cleanup(func() {
		f.down()
		_ = conn.Close()
	})
	return f
}

// listen makes the front listen, also after down.
func (f *front) listen() {
	f.Helper()
	l := testcluster.Listen(f, f.address)
	f.address = l.Addr().String()
	f.down = testcluster.Run(f.TB, func(ctx context.Context) error {
		return serve.Run(ctx, serve.Config{
			Settings: serve.Settings{GRPC: l, Drain: 10 * time.Millisecond}, Health: health.NewServer(),
			MaxRequest: 64 << 10, Register: func(r grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(r, f) },
		})
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
		if answer.GetTime() != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.mu.windows++
			return answer, nil
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

// Next implements IDService.
func (f *front) Next(ctx context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	return f.to.Next(ctx, r)
}

// NextBatch implements IDService.
func (f *front) NextBatch(ctx context.Context, r *marchv1.NextBatchRequest) (*marchv1.NextBatchResponse, error) {
	return f.to.NextBatch(ctx, r)
}

// fault sets the faults of the next leases, and the fault of all leases after them.
func (f *front) fault(always fault, next ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.next, f.mu.always = next, always
}

// setTTL sets for how long IDs that are leased from now on may be used, 0 for ever.
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

// ttlUntil returns the time to live of a segment that ends at end.
func ttlUntil(end time.Time) *durationpb.Duration { return durationpb.New(max(time.Until(end), 1)) }

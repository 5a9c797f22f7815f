// Package load makes load on a room and measures it: how many calls and IDs
// per second, and how long each call took. `march bench` shows these figures for a
// running room, and `make bench` compares them with their yardsticks.
package load

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// A Caller does one call and returns how many IDs it got. One worker calls it,
// one call after the other.
type Caller func(ctx context.Context) (ids int64, err error)

// Config says how much load, and of what kind.
type Config struct {
	// Workers is how many callers there are at once.
	Workers int
	// Duration is how long.
	Duration time.Duration
	// New makes the i-th worker's caller, or
	New func(i int) Caller
	// NewStream the i-th worker's stream, where streams are the load.
	NewStream func(ctx context.Context, i int) (Stream, error)
	// Window is how many requests a stream has under way. Default 128.
	Window int
	// Every is how often Progress is called; never where it is 0.
	Every    time.Duration
	Progress func(Result)
}

// Stream is a bidirectional stream of which each answer is one ID.
type Stream interface {
	Send() error
	Recv() error
	CloseSend() error
}

// Result is what was measured so far.
type Result struct {
	Calls, IDs, Errors int64
	FirstError         error
	Elapsed            time.Duration
	// Latency is of single calls, in nanoseconds; under a pipelined stream from
	// the sending of a request to its answer.
	Latency *hdrhistogram.Histogram
}

// CallsPerSecond returns calls per second.
func (r Result) CallsPerSecond() float64 { return float64(r.Calls) / r.Elapsed.Seconds() }

// IDsPerSecond returns IDs per second.
func (r Result) IDsPerSecond() float64 { return float64(r.IDs) / r.Elapsed.Seconds() }

// Median returns the median of values, the larger of the middle two where their number
// is even. There must be a value.
func Median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// newHistogram covers 100 ns to a minute with three digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(100, int64(time.Minute), 3) }

// worker counts what one worker did. Its histogram is read after the worker
// ended.
type worker struct {
	calls, ids, errs atomic.Int64
	latency          *hdrhistogram.Histogram
	_                [64]byte
}

func (w *worker) record(start time.Time, ids int64) {
	w.calls.Add(1)
	w.ids.Add(ids)
	_ = w.latency.RecordValue(int64(time.Since(start))) // beyond a minute is not counted
}

// Run makes load until Duration is over or ctx ends. A call that fails is
// counted; the first failure is kept, and a worker pauses after each. Its error
// is Invalid.
func Run(ctx context.Context, cfg Config) (Result, error) {
	if cfg.Workers < 1 || cfg.Duration <= 0 {
		return Result{}, allocator.Errorf(allocator.Invalid, "load: %d workers for %v; allowed: 1 or more, above 0",
			cfg.Workers, cfg.Duration)
	}
	if cfg.Window == 0 {
		cfg.Window = 128
	}
	r := &run{cfg: cfg, workers: make([]worker, cfg.Workers), start: time.Now()}
	// Not a deadline: calls would carry it, and the last would fail by it.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer time.AfterFunc(cfg.Duration, cancel).Stop()
	var group sync.WaitGroup
	for i := range r.workers {
		w := &r.workers[i]
		w.latency = newHistogram()
		if cfg.NewStream != nil {
			group.Go(func() { r.stream(ctx, i, w) })
		} else {
			group.Go(func() { r.call(ctx, cfg.New(i), w) })
		}
	}
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	r.watch(done)
	result := r.sum()
	for i := range r.workers {
		result.Latency.Merge(r.workers[i].latency)
	}
	return result, nil
}

type run struct {
	cfg     Config
	workers []worker
	start   time.Time
	first   atomic.Pointer[error]
}

// watch calls Progress until done.
func (r *run) watch(done <-chan struct{}) {
	if r.cfg.Every <= 0 || r.cfg.Progress == nil {
		<-done
		return
	}
	ticker := time.NewTicker(r.cfg.Every)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			r.cfg.Progress(r.sum())
		}
	}
}

// sum adds up the workers' counts. Latency is empty.
func (r *run) sum() Result {
	result := Result{Elapsed: time.Since(r.start), Latency: newHistogram()}
	for i := range r.workers {
		result.Calls += r.workers[i].calls.Load()
		result.IDs += r.workers[i].ids.Load()
		result.Errors += r.workers[i].errs.Load()
	}
	if err := r.first.Load(); err != nil {
		result.FirstError = *err
	}
	return result
}

// failed counts an error, unless the load is just over.
func (r *run) failed(ctx context.Context, w *worker, err error) {
	if ctx.Err() != nil {
		return
	}
	w.errs.Add(1)
	r.first.CompareAndSwap(nil, &err)
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
}

func (r *run) call(ctx context.Context, call Caller, w *worker) {
	for ctx.Err() == nil {
		start := time.Now()
		ids, err := call(ctx)
		if err != nil {
			r.failed(ctx, w, err)
			continue
		}
		w.record(start, ids)
	}
}

// stream keeps a window of requests under way.
func (r *run) stream(ctx context.Context, i int, w *worker) {
	for ctx.Err() == nil {
		if err := r.pipeline(ctx, i, w); err != nil && !errors.Is(err, io.EOF) {
			r.failed(ctx, w, err)
		}
	}
}

func (r *run) pipeline(ctx context.Context, i int, w *worker) error {
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stream, err := r.cfg.NewStream(streaming, i)
	if err != nil {
		return err
	}
	sent := make(chan time.Time, r.cfg.Window)
	group, grouped := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(sent)
		for ctx.Err() == nil {
			select {
			case sent <- time.Now():
			case <-grouped.Done():
				return nil // the other half failed, or the time is over
			}
			if err := stream.Send(); err != nil {
				return nil // Recv has the reason
			}
		}
		return stream.CloseSend()
	})
	group.Go(func() error {
		for start := range sent {
			if err := stream.Recv(); err != nil {
				return err
			}
			w.record(start, 1)
		}
		return nil
	})
	return group.Wait()
}

// Unary returns callers of Next.
func Unary(conns []*grpc.ClientConn, tag string) func(int) Caller {
	return func(i int) Caller {
		client, request := marchv1.NewIDServiceClient(conns[i%len(conns)]), &marchv1.NextRequest{Tag: tag}
		return func(ctx context.Context) (int64, error) {
			_, err := client.Next(ctx, request)
			return 1, err
		}
	}
}

// Batch returns callers of NextBatch.
func Batch(conns []*grpc.ClientConn, tag string, count int64) func(int) Caller {
	return func(i int) Caller {
		client, request := marchv1.NewIDServiceClient(conns[i%len(conns)]),
			&marchv1.NextBatchRequest{Tag: tag, Count: count}
		return func(ctx context.Context) (int64, error) {
			_, err := client.NextBatch(ctx, request)
			return count, err
		}
	}
}

// Lease returns callers of Lease.
func Lease(conns []*grpc.ClientConn, tag string, count int64) func(int) Caller {
	return func(i int) Caller {
		client, request := marchv1.NewIDServiceClient(conns[i%len(conns)]),
			&marchv1.LeaseRequest{Tag: tag, Count: count}
		return func(ctx context.Context) (int64, error) {
			answer, err := client.Lease(ctx, request)
			return answer.GetSegment().GetCount(), err
		}
	}
}

// Streams returns IDService.Stream's streams.
func Streams(conns []*grpc.ClientConn, tag string) func(context.Context, int) (Stream, error) {
	return func(ctx context.Context, i int) (Stream, error) {
		s, err := marchv1.NewIDServiceClient(conns[i%len(conns)]).Stream(ctx)
		return &idStream{stream: s, tag: tag}, err
	}
}

type idStream struct {
	stream marchv1.IDService_StreamClient
	tag    string               // what the first request names; later ones need not
	answer marchv1.NextResponse // read again and again
}

var sameTag = &marchv1.NextRequest{}

func (s *idStream) Send() error {
	request := sameTag
	if s.tag != "" {
		request, s.tag = &marchv1.NextRequest{Tag: s.tag}, ""
	}
	return s.stream.Send(request)
}

func (s *idStream) Recv() error { return s.stream.RecvMsg(&s.answer) }

func (s *idStream) CloseSend() error { return s.stream.CloseSend() }

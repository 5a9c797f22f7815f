// Package traffic is the load of a chaos run. Its callers ask for IDs by single calls, by
// streams and by the Go client, and record each ID (package runlog).
package traffic

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// Config describes the load and its target.
type Config struct {
	// Dir is the run's directory.
	Dir  string
	Room allocator.Room
	// Instances are the room's, with their addresses.
	Instances map[allocator.Instance]string
	Tags      []allocator.Tag
	// Times are tags of time-ordered IDs.
	Times []allocator.Tag
	// Rate is how many IDs per second all callers together ask for.
	Rate int
	Seed uint64
}

// Count counts the IDs of the callers of one tag at one instance.
type Count struct {
	IDs    int64
	Failed int64
	Last   time.Time // of the last IDs
	Error  string    // the last one
}

const (
	// patience bounds a call.
	patience = 2 * time.Second
	// retryPause is a caller's pause after an error.
	retryPause = 20 * time.Millisecond
	// largestBatch bounds the IDs of a call.
	largestBatch = 1_000
	// timeBatch is the same for time-ordered IDs: many calls show more than many IDs.
	timeBatch = 100
)

// Load is the callers of a room. Its methods are safe for concurrent use.
type Load struct {
	Config
	mu struct {
		sync.Mutex
		counts map[string]Count
	}
}

// New returns the callers, which Run starts.
func New(cfg Config) *Load {
	l := &Load{Config: cfg}
	l.mu.counts = make(map[string]Count)
	return l
}

// Counts returns the counts so far of the callers of each instance and tag, by runlog.Who.
func (l *Load) Counts() map[string]Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.mu.counts)
}

// Run makes load until ctx ends.
func (l *Load) Run(ctx context.Context) (err error) {
	group, ctx := errgroup.WithContext(ctx)
	// Half of the IDs come by batches, and most of the rest by the client: single IDs in
	// streams cost the most.
	tags := len(l.Tags)
	instances := slices.Sorted(maps.Keys(l.Instances))
	var conns []*grpc.ClientConn
	defer func() {
		for _, conn := range conns {
			err = errors.Join(err, conn.Close())
		}
	}()
	for n, name := range instances {
		conn, err := api.Dial(l.Instances[name],
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}))
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		ids := marchv1.NewIDServiceClient(conn)
		for i, tag := range l.Tags {
			pace := l.pace(l.Rate/2/len(instances)/tags, n*tags+i)
			group.Go(func() error { return l.batches(ctx, ids, name, tag, pace) })
		}
		for i, tag := range l.Times {
			pace := l.pace(l.Rate/50/len(instances)/len(l.Times), 3000+n*len(l.Times)+i)
			pace.largest = timeBatch
			group.Go(func() error { return l.batches(ctx, ids, name, tag, pace) })
		}
		tag := l.Tags[n%tags]
		group.Go(func() error { return l.streams(ctx, ids, name, tag, l.Rate/20/len(instances)) })
	}
	for i, tag := range l.Tags {
		pace := l.pace(l.Rate*9/20/tags, 1000+i)
		group.Go(func() error { return l.client(ctx, tag, pace) })
	}
	for i, tag := range l.Times {
		pace := l.pace(l.Rate/100/len(l.Times), 2000+i)
		pace.largest = timeBatch
		group.Go(func() error { return l.client(ctx, tag, pace) })
	}
	err = group.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// failed records a call that failed after it was sent.
func (l *Load) failed(file *runlog.Writer, a runlog.Answer, err error) error {
	a.Received, a.Runs, a.Failed, a.Error = time.Now(), nil, kindOf(err), err.Error()
	l.count(a)
	return file.Add(a)
}

// got records the IDs that a caller got.
func (l *Load) got(file *runlog.Writer, a runlog.Answer) error {
	if err := file.Add(a); err != nil {
		return err
	}
	l.count(a)
	return nil
}

// count counts an answer.
func (l *Load) count(a runlog.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.mu.counts[a.Who()]
	if a.Failed != "" {
		n.Failed, n.Error = n.Failed+1, a.Error
	} else {
		n.IDs, n.Last = n.IDs+count(a.Runs), time.Now()
	}
	l.mu.counts[a.Who()] = n
}

// file makes the file of one caller.
func (l *Load) file(worker string) (*runlog.Writer, error) {
	return runlog.Create(l.Dir, string(l.Room)+"-"+worker)
}

// pacer asks for batches of all sizes at a mean rate.
type pacer struct {
	rand    *rand.Rand
	rate    float64
	largest int64
	next    time.Time
}

func (l *Load) pace(rate, worker int) *pacer {
	return &pacer{rand: rand.New(rand.NewPCG(l.Seed, uint64(worker))),
		rate: float64(max(rate, 1)), largest: largestBatch}
}

// wait waits for a caller's next turn and returns how many IDs to ask for. A caller that was
// late does not catch up.
func (p *pacer) wait(ctx context.Context) (int64, bool) {
	n := 1 + p.rand.Int64N(p.largest)
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	if !pause(ctx, p.next.Sub(now)) {
		return 0, false
	}
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	return n, true
}

// pause returns false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// batches is a caller of NextBatch.
func (l *Load) batches(ctx context.Context, ids marchv1.IDServiceClient, name allocator.Instance,
	tag allocator.Tag, p *pacer) (err error) {
	file, err := l.file(fmt.Sprintf("%s-%s-batch", name, tag))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for {
		n, ok := p.wait(ctx)
		if !ok {
			return nil
		}
		got := runlog.Answer{Sent: time.Now(), Room: l.Room, Instance: name, Tag: tag}
		// Not ctx: the IDs of the last call must be recorded.
		calling, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		answer, err := ids.NextBatch(calling, &marchv1.NextBatchRequest{Tag: string(tag), Count: n})
		cancel()
		if err != nil {
			if err := l.failed(file, got, err); err != nil {
				return err
			}
			pause(ctx, retryPause)
			continue
		}
		got.Received = time.Now()
		for _, run := range answer.GetRuns() {
			got.Runs = append(got.Runs, allocator.Run{First: run.GetFirst(), Count: run.GetCount(),
				Stride: run.GetStride()})
		}
		if err := short(got.Who(), n, got.Runs); err != nil {
			return err
		}
		if err := l.got(file, got); err != nil {
			return err
		}
	}
}

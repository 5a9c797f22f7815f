// Package traffic is the load of a chaos run. Its callers ask for IDs by single calls, by
// streams and by the Go client, and record each ID (package runlog). It runs in a process for
// each room, and reports several times a second which callers got IDs and which failed.
package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	// Report receives a Report as a line of JSON several times a second.
	Report io.Writer
}

// Report has the counts so far.
type Report struct {
	Time time.Time `json:"time"`
	// Callers are the callers of each instance and tag; see runlog.Who.
	Callers map[string]Count `json:"callers"`
}

// Count counts the IDs of the callers of one tag at one instance.
type Count struct {
	IDs    int64     `json:"ids"`
	Calls  int64     `json:"calls"`
	Failed int64     `json:"failed"`
	Last   time.Time `json:"last"`  // of the last IDs
	Error  string    `json:"error"` // the last one
}

const (
	// patience bounds a call.
	patience = 2 * time.Second
	// retryPause is a caller's pause after an error.
	retryPause  = 20 * time.Millisecond
	reportEvery = 50 * time.Millisecond
	// largestBatch bounds the IDs of a call.
	largestBatch = 1_000
	// timeBatch is the same for time-ordered IDs: many calls show more than many IDs.
	timeBatch = 100
)

// counts are the counts of all callers.
type counts struct {
	mu struct {
		sync.Mutex
		of map[string]Count
	}
}

func (c *counts) got(who string, ids int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.mu.of[who]
	n.IDs += ids
	n.Calls++
	n.Last = time.Now()
	c.mu.of[who] = n
}

func (c *counts) failed(who string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.mu.of[who]
	n.Failed++
	n.Error = err.Error()
	c.mu.of[who] = n
}

func (c *counts) report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Report{Time: time.Now(), Callers: maps.Clone(c.mu.of)}
}

// Run makes load until ctx ends.
func Run(ctx context.Context, cfg Config) (err error) {
	l := &load{Config: cfg}
	l.counts.mu.of = make(map[string]Count)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.report(ctx) })
	// Half of the IDs come by batches, and most of the rest by the client: single IDs in
	// streams cost the most.
	tags := len(cfg.Tags)
	instances := slices.Sorted(maps.Keys(cfg.Instances))
	var conns []*grpc.ClientConn
	defer func() {
		for _, conn := range conns {
			err = errors.Join(err, conn.Close())
		}
	}()
	for n, name := range instances {
		conn, err := api.Dial(cfg.Instances[name],
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second}))
		if err != nil {
			return err
		}
		conns = append(conns, conn)
		ids := marchv1.NewIDServiceClient(conn)
		for i, tag := range cfg.Tags {
			pace := l.pace(cfg.Rate/2/len(instances)/tags, n*tags+i)
			group.Go(func() error { return l.batches(ctx, ids, name, tag, pace) })
		}
		for i, tag := range cfg.Times {
			pace := l.pace(cfg.Rate/50/len(instances)/len(cfg.Times), 3000+n*len(cfg.Times)+i)
			pace.largest = timeBatch
			group.Go(func() error { return l.batches(ctx, ids, name, tag, pace) })
		}
		tag := cfg.Tags[n%tags]
		group.Go(func() error { return l.streams(ctx, ids, name, tag, cfg.Rate/20/len(instances)) })
	}
	for i, tag := range cfg.Tags {
		pace := l.pace(cfg.Rate*9/20/tags, 1000+i)
		group.Go(func() error { return l.client(ctx, tag, pace) })
	}
	for i, tag := range cfg.Times {
		pace := l.pace(cfg.Rate/100/len(cfg.Times), 2000+i)
		pace.largest = timeBatch
		group.Go(func() error { return l.client(ctx, tag, pace) })
	}
	err = group.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

type load struct {
	Config
	counts counts
}

// failed records a call that failed after it was sent.
func (l *load) failed(file *runlog.Writer, a runlog.Answer, err error) error {
	a.Received, a.Runs, a.Failed, a.Error = time.Now(), nil, kindOf(err), err.Error()
	l.counts.failed(a.Who(), err)
	return file.Add(a)
}

// got records the IDs that a caller got.
func (l *load) got(file *runlog.Writer, a runlog.Answer) error {
	if err := file.Add(a); err != nil {
		return err
	}
	l.counts.got(a.Who(), count(a.Runs))
	return nil
}

func (l *load) report(ctx context.Context) error {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	encoder := json.NewEncoder(l.Report)
	for {
		if err := encoder.Encode(l.counts.report()); err != nil {
			return fmt.Errorf("report: %w", err)
		}
		select {
		case <-ctx.Done():
			return encoder.Encode(l.counts.report())
		case <-ticker.C:
		}
	}
}

// file makes the file of one caller.
func (l *load) file(worker string) (*runlog.Writer, error) {
	return runlog.Create(l.Dir, "load-"+string(l.Room)+"-"+worker)
}

// pacer asks for batches of all sizes at a mean rate.
type pacer struct {
	rand    *rand.Rand
	rate    float64
	largest int64
	next    time.Time
}

func (l *load) pace(rate, worker int) *pacer {
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
func (l *load) batches(ctx context.Context, ids marchv1.IDServiceClient, name allocator.Instance,
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
		got := runlog.Answer{Sent: time.Now(), Room: l.Room, Instance: name, Tag: tag, Kind: runlog.Batch}
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

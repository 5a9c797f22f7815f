// Package traffic is the load of a chaos run. Its callers ask for IDs in each way that March has: by
// the rows of a table, and by streams. They record each ID (package runlog).
package traffic

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// Addresses are where callers reach an instance: over gRPC, and at its doors by their names.
type Addresses struct {
	GRPC  string
	Doors map[string]string
}

// Config describes the load and its target.
type Config struct {
	// Dir is the run's directory.
	Dir  string
	Room allocator.Room
	// Instances are the room's.
	Instances map[allocator.Instance]Addresses
	Tags      []allocator.Tag
	// Times are tags of time-ordered IDs, Others counters with periods, with texts or of doors.
	Times, Others []allocator.Tag
	// Texts has how the IDs of some tags are texts, and Keys the keys of these.
	Texts map[allocator.Tag]*texts.Text
	Keys  []format.Key
	TLS   *tlsfiles.Files
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
	// smallBatch is the same where many calls show more than many IDs.
	smallBatch = 100
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
	var places []*place
	defer func() {
		for _, at := range places {
			err = errors.Join(err, at.close())
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(l.Instances)) {
		at, err := newPlace(name, l.Instances[name], api.Credentials{TLS: l.TLS})
		if err != nil {
			return err
		}
		places = append(places, at)
	}
	for _, at := range places {
		for k := range machineClients {
			group.Go(func() error { return l.machines(ctx, at, k) })
		}
	}
	for k, row := range callers {
		tags, of := row.tags(l.Config), places
		if row.room {
			of = []*place{{}}
		}
		for n, at := range of {
			for i, tag := range tags {
				pace := l.pace(l.Rate*row.share/1000/len(of)/len(tags), 1000*k+n*len(tags)+i)
				pace.largest = row.largest
				own := *at // its stream, or its client
				group.Go(func() error { return l.asks(ctx, row, &own, tag, pace) })
			}
		}
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

// got records the IDs that a caller got. The log has runs of consecutive IDs only.
func (l *Load) got(file *runlog.Writer, a runlog.Answer) error {
	if slices.ContainsFunc(a.Runs, func(run allocator.Run) bool { return run.Stride > 1 }) {
		var single []allocator.Run
		for _, run := range a.Runs {
			for k := range run.Count {
				single = appendID(single, run.First+k*max(run.Stride, 1))
			}
		}
		a.Runs = single
	}
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
		rate: float64(max(rate, 1))}
}

// wait waits for a caller's next turn and returns how many IDs to ask for. A caller that was
// late does not catch up.
func (p *pacer) wait(ctx context.Context) (int64, bool) {
	n := 1 + p.rand.Int64N(p.largest)
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	if !store.Sleep(ctx, p.next.Sub(now)) {
		return 0, false
	}
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	return n, true
}

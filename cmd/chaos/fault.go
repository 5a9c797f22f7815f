package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// fault is a kind of fault.
type fault struct {
	kind, what string
	// begin draws its target from r, hurts it, and returns how to end that. An error is one of
	// this program; errSkip says that there is no target now.
	begin func(ctx context.Context, d *driver, r *rand.Rand) (*injury, error)
}

// injury is a fault that lasts.
type injury struct {
	target, detail string
	lasts          time.Duration
	// end ends it: the hurt processes are well again, or will be.
	end func(ctx context.Context) error
	// unhurt accepts callers whose calls must not fail meanwhile; nil for none.
	unhurt func(who string) bool
}

// errSkip says that a fault is not possible now; errHeld, that it needs what another part of the run holds.
var (
	errSkip = errors.New("nothing to hit now")
	errHeld = fmt.Errorf("%w: long pauses are held already", errSkip)
)

// deck returns the faults to draw from.
func deck(only []string) ([]fault, error) {
	all := allFaults()
	if len(only) == 0 {
		return all, nil
	}
	var chosen []fault
	for _, kind := range only {
		found := false
		for _, f := range all {
			if f.kind == kind {
				chosen, found = append(chosen, f), true
			}
		}
		if !found {
			var kinds []string
			for _, f := range all {
				kinds = append(kinds, f.kind)
			}
			return nil, allocator.Errorf(allocator.Invalid,
				"only: %q is no kind of fault; allowed: %s", kind, joined(kinds))
		}
	}
	return chosen, nil
}

// deck returns the faults that this run draws from.
func (d *driver) deck() ([]fault, error) {
	kinds, err := deck(d.config.only)
	if d.disk == nil {
		kinds = slices.DeleteFunc(kinds, func(f fault) bool {
			return slices.ContainsFunc(diskFaults(), func(disk fault) bool { return disk.kind == f.kind })
		})
	}
	if err == nil && len(kinds) == 0 {
		err = allocator.Errorf(allocator.Invalid,
			"only: %s: this machine does not let the run mount a disk; root on Linux may", joined(d.config.only))
	}
	return kinds, err
}

// faults is the main lane: one fault after the other, until lanes ends. A fault that is under
// way then ends in good order.
func (d *driver) faults(ctx, lanes context.Context) error {
	kinds, err := d.deck()
	if err != nil {
		return err
	}
	order := rand.New(rand.NewPCG(d.config.seed, 1))
	for number := 1; ; {
		order.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		if number == 1 { // a short run must have one of these: transactions that fail and are applied
			if i := slices.IndexFunc(kinds, func(f fault) bool { return f.kind == lostAnswers }); i > 2 {
				kinds[i], kinds[2] = kinds[2], kinds[i]
			}
		}
		again := make(map[string]int)
		for i := 0; i < len(kinds); i++ {
			f := kinds[i]
			if lanes.Err() != nil || ctx.Err() != nil {
				return ctx.Err()
			}
			// Each fault has a source of its own, so that what it draws changes no other.
			r := rand.New(rand.NewPCG(d.config.seed, 1_000+uint64(number)))
			err := d.inject(ctx, f, number, r)
			if err != nil && !errors.Is(err, errSkip) {
				return fmt.Errorf("fault %d, %s: %w", number, f.kind, err)
			}
			number++
			if errors.Is(err, errSkip) {
				d.log.Info("skipped", "kind", f.kind, "why", err)
				if i+1 < len(kinds) && again[f.kind] < 10 { // after the next one, again
					kinds[i], kinds[i+1] = kinds[i+1], kinds[i]
					i--
					again[f.kind]++
				}
				if !store.Sleep(ctx, 50*time.Millisecond) {
					return ctx.Err()
				}
			}
		}
	}
}

// inject is the life of one fault.
func (d *driver) inject(ctx context.Context, f fault, number int, r *rand.Rand) error {
	d.say("%s", f.kind)
	before := d.Counts()
	began := time.Now()
	beginning, cancel := context.WithTimeoutCause(ctx, beginWithin, fmt.Errorf("not within %v", beginWithin))
	hurt, err := f.begin(beginning, d, r)
	cancel()
	if err != nil {
		return err
	}
	d.note(runlog.Event{Time: began, What: runlog.FaultBegan, Fault: number, Kind: f.kind,
		Target: hurt.target, Detail: hurt.detail})
	d.injected.Add(1)
	d.mu.Lock()
	d.mu.kinds[f.kind]++
	d.mu.Unlock()
	store.Sleep(ctx, hurt.lasts)
	var failed int64
	var last string
	if hurt.unhurt != nil {
		failed, last = d.failed(before, hurt.unhurt)
	}
	ending, cancel := context.WithTimeoutCause(ctx, endWithin, fmt.Errorf("not within %v", endWithin))
	defer cancel()
	if err := hurt.end(ending); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	ended := time.Now()
	d.note(runlog.Event{Time: ended, What: runlog.FaultEnded, Fault: number, Kind: f.kind,
		Target: hurt.target, Took: ended.Sub(began)})
	if hurt.unhurt != nil {
		e := runlog.Event{What: runlog.CutOff, Fault: number, Kind: f.kind, Target: hurt.target,
			Took: hurt.lasts, Failed: failed}
		if failed > 0 {
			e.Violation = fmt.Sprintf("%d calls failed while the reserve lasted: %s", failed, last)
		}
		d.note(e)
	}
	return d.recovered(ctx, f, number, hurt, ended)
}

const (
	// beginWithin and endWithin bound how long the beginning and the end of a fault may take: a
	// restore of etcd begins within half a minute, and each room that is replaced may take more than
	// a minute. If an etcd does not come back, the run must not wait for ever.
	beginWithin = 10 * time.Minute
	endWithin   = 60 * time.Second
	// giveUp bounds the wait for IDs after the end.
	giveUp = 60 * time.Second
)

// recovered waits until all callers get IDs again, and returns how long it took.
func (d *driver) recovered(ctx context.Context, f fault, number int, hurt *injury, ended time.Time) error {
	waiting, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	slowest, took := "", time.Duration(0)
	late := d.awaitIssuing(waiting, ended, d.isPaused, func(who string, t time.Duration) {
		if t > took {
			slowest, took = who, t
		}
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	e := runlog.Event{What: runlog.Issuing, Fault: number, Kind: f.kind, Target: hurt.target, Took: took,
		Limit: limit, Detail: "last " + slowest}
	switch {
	case late != "":
		e.Took = giveUp
		e.Violation = fmt.Sprintf("%s is given no IDs %v after the fault: %s", late, giveUp, d.Counts()[late].Error)
	case took > limit:
		e.Violation = fmt.Sprintf("%s was given no IDs for %v after the fault; allowed: %v", slowest,
			took.Round(time.Millisecond), limit)
	}
	d.note(e)
	return nil
}

// between draws a duration.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

// pick draws one of several values.
func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// instance draws an instance that the lane of pauses leaves alone.
func (d *driver) instance(r *rand.Rand) (*cluster.Server, error) {
	s := pick(r, d.Instances)
	if d.isPaused(s) {
		return nil, fmt.Errorf("%w: %s is stopped", errSkip, s.ID)
	}
	d.touch(s.Room)
	return s, nil
}

// pauses is the lane of long pauses. It stops one instance or console after the other for up to
// a minute, and then lets it go on.
func (d *driver) pauses(ctx, lanes context.Context) error {
	if len(d.config.only) > 0 {
		return nil
	}
	r := rand.New(rand.NewPCG(d.config.seed, 2))
	servers := d.Servers()
	for number := 1; ; number++ {
		if !store.Sleep(lanes, between(r, time.Second, 10*time.Second)) {
			return nil
		}
		s, lasts := pick(r, servers), time.Duration(0)
		for range 3 { // short ones more often
			lasts = between(r, time.Second, 60*time.Second)
			if lasts < 20*time.Second {
				break
			}
		}
		lasts = min(lasts, d.config.time/4) // the rest of a short run is for other faults
		if err := d.longPause(ctx, lanes, s, lasts, number); err != nil {
			return err
		}
	}
}

// pausedFor is how long a server is still not measured after it went on.
const pausedFor = 10 * time.Second

func (d *driver) longPause(ctx, lanes context.Context, s *cluster.Server, lasts time.Duration, number int) error {
	const kind = "long pause"
	set := func(paused bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if paused {
			d.mu.paused[s] = true
		} else {
			delete(d.mu.paused, s)
		}
	}
	d.hold.Lock()
	set(true)
	d.hold.Unlock()
	if err := s.Signal(stopSignal); err != nil {
		return err
	}
	d.injected.Add(1)
	d.mu.Lock()
	d.mu.kinds[kind]++
	d.mu.Unlock()
	d.note(runlog.Event{What: runlog.FaultBegan, Fault: -number, Kind: kind, Target: s.ID, Took: lasts})
	select {
	case <-lanes.Done():
	case <-d.goesOn:
	case <-time.After(lasts):
	}
	if err := s.Signal(contSignal); err != nil {
		return err
	}
	ended := time.Now()
	d.note(runlog.Event{Time: ended, What: runlog.FaultEnded, Fault: -number, Kind: kind, Target: s.ID})
	if s.Room == "" {
		set(false)
		return nil
	}
	d.touch(s.Room)
	// Faults go on meanwhile, so this is measured without a limit.
	waiting, cancel := context.WithTimeout(ctx, pausedFor)
	defer cancel()
	took := time.Duration(0)
	late := d.awaitIssuing(waiting, ended, func(other *cluster.Server) bool {
		return other != s
	}, func(_ string, t time.Duration) { took = max(took, t) })
	if late != "" {
		took = pausedFor
	}
	d.note(runlog.Event{What: runlog.Issuing, Fault: -number, Kind: kind, Target: s.ID, Took: took})
	set(false)
	return nil
}

// names returns the names of servers.
func names(servers []*cluster.Server) string {
	var list []string
	for _, s := range servers {
		list = append(list, s.ID)
	}
	return strings.Join(list, ",")
}

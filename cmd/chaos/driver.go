package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/term"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/disk"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/cmd/chaos/internal/traffic"
)

// driver makes a run: it hurts a cluster, and watches it.
type driver struct {
	*cluster.Cluster
	config *config
	events *runlog.Events
	log    hclog.Logger
	admin  *admin

	background context.Context // of the parts that only watch
	stopWatch  context.CancelFunc
	watching   sync.WaitGroup

	injected, migrated atomic.Int64
	violated           atomic.Int64
	doing              atomic.Pointer[string]

	// Used by the main lane only:
	token       string          // etcd's cluster ID depends on it
	disk        *disk.Disk      // of the journals; nil if they have none of their own
	restores    uint64          // how many began
	upgrades    int             // how often all servers were replaced
	journalLost map[string]bool // instances, ROOM/NAME, that ever started without their journal

	hold   sync.Mutex    // held while no process may be stopped for long
	goesOn chan struct{} // ends a long pause

	mu struct {
		sync.Mutex
		began   time.Time                    // the earliest time of a fault
		paused  map[*cluster.Server]bool     // stopped by the lane of pauses: not measured
		touched map[allocator.Room]time.Time // when a room was last hurt
		kinds   map[string]int
		moved   map[string]bool // the moves that were made
	}
}

func newDriver(cfg *config, c *cluster.Cluster, events *runlog.Events, log hclog.Logger) *driver {
	d := &driver{Cluster: c, config: cfg, events: events, log: log, admin: newAdmin(c), token: cluster.Token,
		journalLost: make(map[string]bool), goesOn: make(chan struct{})}
	d.mu.paused = make(map[*cluster.Server]bool)
	d.mu.touched = make(map[allocator.Room]time.Time)
	d.mu.kinds = make(map[string]int)
	d.mu.moved = make(map[string]bool)
	d.background, d.stopWatch = context.WithCancel(context.Background())
	return d
}

// close ends the parts that only watch.
func (d *driver) close() error {
	d.stopWatch()
	d.watching.Wait()
	return d.admin.close()
}

// note records an event.
func (d *driver) note(e runlog.Event) {
	if e.Violation != "" {
		d.violated.Add(1)
		d.log.Error("violation", "event", fmt.Sprintf("%+v", e))
	} else {
		d.log.Info(e.What, "fault", e.Fault, "kind", e.Kind, "target", e.Target, "detail", e.Detail, "took", e.Took)
	}
	d.events.Add(e)
}

// say sets the current action in the progress line.
func (d *driver) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.doing.Store(&text)
}

// limit bounds how long an instance may issue nothing after a fault has ended.
const limit = 5 * time.Second

// whose reports whether callers belong to a server: its own callers, or programs with the Go
// client, which may ask it.
func whose(s *cluster.Server, who string) bool {
	return strings.HasPrefix(who, id(s)+" ") || strings.HasPrefix(who, runlog.Who(s.Room, "", ""))
}

// expected are the callers that should get IDs: all but those of servers that are left out.
func (d *driver) expected(leftOut func(*cluster.Server) bool) []string {
	who := make(map[string]bool)
	for _, s := range d.Instances {
		for _, tag := range d.Tags {
			if s.Room == spare {
				continue
			}
			who[runlog.Who(s.Room, allocator.Instance(s.ID), tag)] = true
			who[runlog.Who(s.Room, "", tag)] = true
		}
	}
	for _, s := range d.Instances {
		if leftOut != nil && leftOut(s) {
			maps.DeleteFunc(who, func(who string, _ bool) bool { return whose(s, who) })
		}
	}
	return slices.Sorted(maps.Keys(who))
}

// awaitIssuing waits until all callers got IDs after since, or ctx ends: then it returns a
// caller that did not. It calls each with every caller that did.
func (d *driver) awaitIssuing(ctx context.Context, since time.Time, leftOut func(*cluster.Server) bool,
	each func(who string, took time.Duration)) (late string) {
	waiting := make(map[string]bool)
	for _, who := range d.expected(leftOut) {
		waiting[who] = true
	}
	_ = cluster.Poll(ctx, "", func() bool { // the result shows what is left
		counts := d.Counts()
		for who := range waiting {
			if last := counts[who].Last; last.After(since) {
				delete(waiting, who)
				if each != nil {
					each(who, last.Sub(since))
				}
			}
		}
		for _, s := range d.Instances { // stopped meanwhile
			if leftOut != nil && leftOut(s) {
				for who := range waiting {
					if whose(s, who) {
						delete(waiting, who)
					}
				}
			}
		}
		return len(waiting) == 0
	})
	for who := range waiting {
		late = max(late, who)
	}
	return late
}

// id is an instance's name as operators write it.
func id(s *cluster.Server) string { return string(s.Room) + "/" + s.ID }

// touch notes that a room is hurt: for some time its callers then ask for more than before, to
// catch up, or ask another instance of it.
func (d *driver) touch(room allocator.Room) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.touched[room] = time.Now()
}

// settled reports whether no fault has hurt a room for a long time.
func (d *driver) settled(room allocator.Room) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(d.mu.touched[room]) > settleFor
}

// isPaused reports whether the lane of pauses has stopped a server.
func (d *driver) isPaused(s *cluster.Server) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.paused[s]
}

// unmeasured reports whether callers ask in the spare room, for a tag of time-ordered IDs, or one of the others. The
// run checks no promise about their times: the room may have no range; workers wait for clocks, which faults set wrong,
// and for windows that a restore brought back; some doors answer no error that says why.
func (d *driver) unmeasured(who string) bool {
	return strings.HasPrefix(who, spare+"/") ||
		slices.ContainsFunc(slices.Concat(d.Times, d.Others), func(tag allocator.Tag) bool {
			return strings.HasSuffix(who, " "+string(tag))
		})
}

// failed returns how many calls of the accepted callers have failed since before, and the last
// error of one of them.
func (d *driver) failed(before map[string]traffic.Count, accept func(who string) bool) (n int64, last string) {
	for who, now := range d.Counts() {
		if d.unmeasured(who) {
			continue
		}
		if more := now.Failed - before[who].Failed; more > 0 && accept(who) {
			n += more
			last = who + ": " + now.Error
		}
	}
	return n, last
}

// calm waits for a while in which no call fails. That must come within a minute; a busy machine
// may have failures before.
func (d *driver) calm(ctx context.Context, lasts time.Duration) error {
	for began := time.Now(); ; {
		before := d.Counts()
		if !store.Sleep(ctx, lasts) {
			return ctx.Err()
		}
		failed, last := d.failed(before, func(string) bool { return true })
		e := runlog.Event{What: runlog.Issuing, Kind: "calm", Took: time.Since(began), Failed: failed}
		if failed > 0 && time.Since(began) > calmWithin {
			e.Violation = fmt.Sprintf("%d calls failed though nothing was wrong: %s", failed, last)
		}
		if failed > 0 {
			e.Detail = last
		}
		d.note(e)
		if failed == 0 || e.Violation != "" {
			return nil
		}
	}
}

const calmWithin = time.Minute

// ready reports whether a server's health check passes.
func (d *driver) ready(ctx context.Context, s *cluster.Server) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.HTTP+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	transport := &http.Transport{TLSClientConfig: d.TLS.Client("127.0.0.1"), DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return false
	}
	return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

// progress prints the progress until the returned function is called: in place on a terminal, a
// line every few seconds elsewhere.
func (d *driver) progress(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	every, before, after := 5*time.Second, "", "\n"
	if f, ok := d.config.stderr.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		every, before, after = 200*time.Millisecond, "\r\x1b[K", ""
	}
	var printing sync.WaitGroup
	printing.Go(func() {
		for store.Sleep(ctx, every) {
			_, _ = fmt.Fprint(d.config.stderr, before+d.line()+after)
		}
		_, _ = fmt.Fprint(d.config.stderr, before)
	})
	return func() {
		cancel()
		printing.Wait()
	}
}

// line is the progress line.
func (d *driver) line() string {
	var ids, failed int64
	for _, count := range d.Counts() {
		ids += count.IDs
		failed += count.Failed
	}
	d.mu.Lock()
	began, kinds := d.mu.began, len(d.mu.kinds)
	d.mu.Unlock()
	elapsed := time.Duration(0)
	if !began.IsZero() {
		elapsed = time.Since(began).Round(time.Second)
	}
	return fmt.Sprintf("%v: %.1f million IDs, %d calls failed, %d faults of %d kinds, %d migrations, "+
		"%d violations; %s",
		elapsed, float64(ids)/1e6, failed, d.injected.Load(), kinds, d.migrated.Load(),
		d.violated.Load(), *d.doing.Load())
}

package console

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// snapshot is what a console knows of its cluster: see the package's comment. It never changes.
type snapshot struct {
	cluster
	answers sample
	etcd    etcdSize
	workers workerUse
	trends  trends
	tags    *tagIndex // nil before they were read
	driving driving

	away   time.Time // since when etcd has not answered; zero while it does
	silent []string  // the addresses of Config.Rooms that did not answer, while the cluster was not read yet
	// When the last read of answers and of tags ended, which may have failed; zero before.
	askedAt, searchedAt time.Time
	tagsErr             error         // why the last read of tags failed
	replaced            chan struct{} // closed when there is a newer snapshot
}

// cluster is the part of a snapshot that is read in etcd at once.
type cluster struct {
	admin.Cluster
	instances []instance   // as this console sees them; before the first read, those that answered at Config.Rooms
	halted    *record.Halt // nil if leasing is not
	at        time.Time    // when it was read; zero before the first read
	sent      time.Time    // when the read began that read it
	// When the last read began and ended, and why it failed.
	tried, ended time.Time
	err          error
}

// view is what the parts of a console share: its connections to etcd and to the instances, and the last snapshot.
type view struct {
	cfg    Config
	log    hclog.Logger
	ledger *ledger.Ledger
	admin  *admin.Admin
	rooms  *dialer

	process  string        // a ULID
	name     string        // of this process, unique
	host     string        // where it runs
	stopping chan struct{} // closed when the drain begins

	last         atomic.Pointer[snapshot] // never nil; publish replaces it
	mu           sync.Mutex               // held while the next snapshot is made; guards heartbeats
	heartbeats   heartbeats
	reads        chan struct{} // has an element for each read of the cluster that is under way
	wantsAnswers *demand
	turn         atomic.Int64 // of the silent instances that are asked in turn
}

func newView(cfg Config, host string) *view {
	v := &view{
		cfg: cfg, log: cfg.Logger, ledger: cfg.Ledger, admin: admin.New(cfg.Ledger, cfg.Admin),
		rooms:   &dialer{connect: cfg.Dial, tracer: cfg.Tracer, credentials: cfg.Credentials},
		process: ulid.Make().String(), host: host, stopping: make(chan struct{}),
		reads: make(chan struct{}, 2), wantsAnswers: newDemand(),
	}
	v.name = host + "-" + v.process
	v.last.Store(&snapshot{replaced: make(chan struct{})})
	return v
}

// publish makes the next snapshot, and returns it. change sets what is new in it.
func (s *view) publish(change func(next *snapshot)) *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.last.Load()
	next := *before
	next.replaced = make(chan struct{})
	change(&next)
	s.last.Store(&next)
	close(before.replaced)
	return &next
}

// await returns the first snapshot of which ok holds; after within, or when ctx ends, the last one.
func (s *view) await(ctx context.Context, within time.Duration, ok func(*snapshot) bool) *snapshot {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		now := s.last.Load()
		if ok(now) {
			return now
		}
		select {
		case <-ctx.Done():
			return s.last.Load()
		case <-now.replaced:
		}
	}
}

// fresh returns a snapshot whose cluster was read after the call began. Callers at the same time share reads, and the
// error of one that failed meanwhile. Two reads at once are enough for most callers not to wait for one that began
// before them. After an error the snapshot is the last one.
func (s *view) fresh(ctx context.Context) (*snapshot, error) {
	asked := time.Now()
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return s.last.Load(), allocator.Errorf(allocator.Unavailable, "the cluster was not read in time: %w", ctx.Err())
	}
	if now := s.last.Load(); now.tried.After(asked) || now.err != nil && now.ended.After(asked) {
		return now, now.err
	}
	return s.readCluster(ctx)
}

// readCluster reads the cluster for fresh.
func (s *view) readCluster(ctx context.Context) (*snapshot, error) {
	sent := time.Now()
	read, err := s.admin.Cluster(ctx)
	if err != nil && ctx.Err() != nil { // which says nothing about etcd
		return s.last.Load(), err
	}
	return s.publish(func(next *snapshot) {
		now := time.Now()
		if next.sent.After(sent) || err != nil && next.tried.After(sent) { // a later read overtook this one
			return
		}
		next.tried, next.ended, next.err = sent, now, err
		if err != nil {
			if allocator.KindOf(err) == allocator.Unavailable {
				next.etcdAway(true, now)
			}
			return
		}
		next.Cluster, next.at, next.sent, next.away, next.silent, next.halted = read, now, sent, time.Time{}, nil, nil
		if halt, halted := s.ledger.Halted(); halted {
			next.halted = &halt
		}
		next.instances = s.heartbeats.note(read.Instances, sent, now)
		if m := read.Migration; m != nil {
			s.heartbeats.waitFor(*m, next.instances, now)
		}
	}), err
}

func (n *snapshot) etcdAway(away bool, now time.Time) {
	if !away {
		n.away = time.Time{}
	} else if n.away.IsZero() {
		n.away = now
	}
}

// instances returns the registered instances, read after the call began.
func (s *view) instances(ctx context.Context) ([]instance, error) {
	now, err := s.fresh(ctx)
	return now.instances, err
}

// knows reports whether the console knows any instances while etcd does not answer.
func (s *view) knows(now *snapshot) bool { return !now.at.IsZero() || len(s.cfg.Rooms) > 0 }

// shown returns the snapshot for callers that only show it: that of fresh or, while etcd does not answer, the last one.
// outage says so then. Its error is that of fresh if nothing is known.
func (s *view) shown(ctx context.Context) (now *snapshot, outage []*marchv1.Problem, err error) {
	now = s.last.Load()
	if known := s.knows(now); now.away.IsZero() || !known {
		now, err = s.fresh(ctx)
		if allocator.KindOf(err) != allocator.Unavailable || ctx.Err() != nil || !known {
			return now, nil, err
		}
	}
	away := now.away
	if away.IsZero() { // it came back meanwhile
		away = time.Now()
	}
	shown := "This console has not read the cluster yet: it shows the instances of --rooms."
	if !now.at.IsZero() {
		shown = "Everything but the instances' own values is as of " +
			now.at.UTC().Format("2006-01-02 15:04:05 UTC") + "."
	}
	contact := s.ledger.Contact()
	outage = append(outage, problem.Away("console", "this console", shown+" An instance that cannot reach etcd, too, "+
		"goes on until its reserve ends.", contact.Members, contact.Cause, away, s.ledger.Etcdctl()))
	for _, address := range now.silent {
		outage = append(outage, problem.New(problem.NoRoom, address, time.Time{}))
	}
	return now, outage, nil
}

// wantedFor is how long a part that callers want is read after the last of them asked. It is longer than the interval
// at which a page asks again, so that a page which is open finds a fresh value each time.
const wantedFor = 10 * time.Second

// demand has a part of the snapshot read while callers want it. It must be made by newDemand.
type demand struct {
	last atomic.Pointer[time.Time] // when a caller asked last
	wake chan struct{}             // of size one: a read serves all callers
}

func newDemand() *demand { return &demand{wake: make(chan struct{}, 1)} }

// ask says that a caller wants the part, and returns when that was.
func (d *demand) ask() time.Time {
	now := time.Now()
	d.last.Store(&now)
	allocator.Wake(d.wake)
	return now
}

// run calls read while callers want the part, each time after the pause that it returned, until ctx ends. A read does
// not end with the call that wanted it, as it serves many.
func (d *demand) run(ctx context.Context, read func(context.Context) (pause time.Duration)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		for ctx.Err() == nil && time.Since(*d.last.Load()) < wantedFor {
			store.Sleep(ctx, read(ctx))
		}
	}
}

// every calls do until ctx ends, each time after the pause that it returned.
func every(ctx context.Context, do func(context.Context) time.Duration) {
	for ctx.Err() == nil {
		store.Sleep(ctx, do(ctx))
	}
}

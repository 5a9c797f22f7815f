package mirror

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

const (
	// checkEvery is how often a follower checks that its connection still stands, and writes its
	// file.
	checkEvery = time.Second
	// pageKeys is how many keys it reads at once.
	pageKeys = 2000
)

// Config are the settings of a Follower.
type Config struct {
	Cluster *record.Cluster
	// Gets reads keys in one transaction, from the cluster's own etcd.
	Gets func(context.Context, ...store.Op) (store.Answer, error)
	// Check probes whether etcd went back in time. While it fails, or leasing is halted, no view
	// begins.
	Check func(context.Context) error
	// File keeps the mirror on disk; nil for none.
	File *File
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// Follower fills a mirror from a cluster's store.
type Follower struct {
	cfg Config
	log hclog.Logger

	mu struct {
		sync.Mutex
		mirror *Mirror
	}
}

// NewFollower returns a follower that goes on with a mirror.
func NewFollower(m *Mirror, cfg Config) *Follower {
	f := &Follower{cfg: cfg, log: cfg.Logger}
	if f.log == nil {
		f.log = hclog.NewNullLogger()
	}
	f.mu.mirror = m
	return f
}

// with calls do with the mirror locked.
func (f *Follower) with(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// Report returns the present tick, and the parts with all that changed after another one. Its
// errors are Refused: the mirror has nothing that it could say.
func (f *Follower) Report(after uint32) (tick uint32, parts iter.Seq[Part], err error) {
	f.with(func() {
		switch m := f.mu.mirror; {
		case m.Full():
			err = allocator.Errorf(allocator.Refused,
				"this console keeps no mirror: the cluster has more than %d tags (--mirror-tags)", m.maxTags)
		case m.UUID() == "":
			err = allocator.Errorf(allocator.Refused, "this console's mirror has not seen the cluster yet")
		default:
			tick, parts = m.Turn(), m.Since(after, f.with)
		}
	})
	return tick, parts, err
}

// full reports whether the mirror has no room.
func (f *Follower) full() (full bool) {
	f.with(func() { full = f.mu.mirror.Full() })
	return full
}

var errFull = &allocator.Error{Kind: allocator.Refused, Msg: "the mirror has no room"}

// UUID returns the uuid of the mirror's cluster, empty if it has seen none.
func (f *Follower) UUID() (uuid string) {
	f.with(func() { uuid = f.mu.mirror.UUID() })
	return uuid
}

// Run follows the store until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	for {
		err := f.view(ctx)
		if f.full() {
			f.log.Warn("the mirror has no room: `march recover` cannot ask this console what it saw",
				"tags", f.mu.mirror.maxTags, "flag", "--mirror-tags")
			return
		}
		if err != nil && ctx.Err() == nil {
			f.log.Debug("the mirror's view ended, or none began", "error", err)
		}
		if !store.Sleep(ctx, checkEvery) {
			return
		}
	}
}

// connection reads over one connection only.
type connection struct {
	f      *Follower
	sender store.Sender
}

// gets reads until it is answered. A read without an answer shows nothing, and ends no view: the
// answer to the next one says whether the connection still stands.
func (c *connection) gets(ctx context.Context, ops ...store.Op) (store.Answer, error) {
	for {
		answer, err := c.f.cfg.Gets(ctx, ops...)
		switch {
		case errors.Is(err, allocator.Unavailable) && c.sender != (store.Sender{}) && store.Sleep(ctx, checkEvery):
			continue
		case err != nil:
			return answer, err
		case answer.Connection == 0 || c.sender != (store.Sender{}) && answer.Sender != c.sender:
			return answer, allocator.Errorf(allocator.Unavailable, "the connection to etcd broke")
		}
		c.sender = answer.Sender
		return answer, nil
	}
}

// view reads everything over one connection, and then follows its changes until the connection
// breaks. The changes are from the revision on at which the reading began: some may come twice,
// which does no harm.
func (f *Follower) view(ctx context.Context) error {
	k, c := f.cfg.Cluster.Keys, &connection{f: f}
	first, err := c.gets(ctx, store.OpGet(k.Identity()), store.OpGet(k.Epoch()))
	if err != nil {
		return err
	}
	if err := f.cfg.Check(ctx); err != nil {
		return err
	}
	epoch, err := f.attach(first)
	if err != nil {
		return err
	}
	for _, key := range []string{k.Epoch(), k.Layout()} {
		answer, err := c.gets(ctx, store.OpGet(key))
		if err != nil {
			return err
		}
		f.saw(answer.Got[0], false)
	}
	for _, kind := range []record.Kind{record.Tags, record.Marks, record.Windows, record.Workers, record.Clients,
		record.Machines, record.Registrations, record.Heartbeats} {
		if err := store.EachPage(ctx, c.gets, "", pageKeys, func(page []store.KV, _ string) error {
			if f.saw(page, false); f.full() {
				return errFull
			}
			return nil
		}, k.All(kind)); err != nil {
			return err
		}
	}
	if _, err := c.gets(ctx, store.OpGet(k.Epoch())); err != nil { // all pages came over this connection
		return err
	}
	f.with(func() { f.mu.mirror.BeginView(epoch, first.Revision, f.cfg.Cluster.Now()) })
	return f.follow(ctx, c, first.Revision)
}

// attach checks the store that answered, and returns the epoch in force.
func (f *Follower) attach(answer store.Answer) (string, error) {
	identity, _ := answer.One(0)
	epoch, _ := answer.One(1)
	var id record.Identity
	var e record.Epoch
	if err := record.Decode(identity, &id); err != nil {
		return "", err
	}
	if err := record.Decode(epoch, &e); err != nil {
		return "", err
	}
	if e.Epoch == "" {
		return "", allocator.Errorf(allocator.WentBack, "leasing is halted")
	}
	var err error
	f.with(func() { err = f.mu.mirror.Attach(id, e.Epoch, answer.Revision) })
	return e.Epoch, err
}

// saw adds keys to the mirror. It returns the latest of their revisions.
func (f *Follower) saw(kvs []store.KV, whole bool) (latest int64) {
	f.with(func() {
		for _, kv := range kvs {
			f.mu.mirror.Saw(f.cfg.Cluster.Keys, kv, whole)
			latest = max(latest, kv.ModRevision)
		}
	})
	return latest
}

// waiting is a check of the connection, whose answer's revision the changes have not reached.
type waiting struct {
	revision int64
	sent     time.Time
}

// follow takes the changes after a revision. All keys are one interval, so their changes come in
// the order of revisions: the latest one says how far the view reaches.
//
// A change counts for the view once a later read came over the view's connection: until then
// the client may have resumed the watch on another one, which may show another history.
func (f *Follower) follow(ctx context.Context, c *connection, from int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := store.Prefix(string(f.cfg.Cluster.Keys))
	changes := f.cfg.Cluster.Store.Watch(ctx, []store.Interval{all}, from+1)
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	reach, pending := from, waiting{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case change, ok := <-changes:
			if !ok {
				return allocator.Errorf(allocator.Unavailable, "the watch ended")
			}
			if change.Err != nil {
				return change.Err
			}
			if reach = max(reach, f.saw(change.KVs, true)); f.full() {
				return errFull
			}
		case <-tick.C:
			sent := f.cfg.Cluster.Now()
			answer, err := c.gets(ctx, store.OpGet(f.cfg.Cluster.Keys.Epoch()))
			if err != nil {
				return err
			}
			if pending.revision == 0 || answer.Revision <= reach {
				pending = waiting{answer.Revision, sent}
			}
			if pending.revision <= reach {
				f.with(func() { f.mu.mirror.Reached(reach, pending.sent) })
				pending = waiting{answer.Revision, sent}
			}
			f.sync()
		}
	}
}

// sync writes the file.
func (f *Follower) sync() {
	if f.cfg.File == nil {
		return
	}
	if err := f.cfg.File.Sync(f.mu.mirror, f.with); err != nil {
		f.log.Warn("the mirror's file cannot be written", "error", err)
	}
}

package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Config says which history is recorded, and where.
type Config struct {
	// Cluster is March's name in etcd.
	Cluster string
	// Dir is the folder of the run's log.
	Dir string
	// Store is etcd, without a proxy in between. It is not closed.
	Store store.Store
	// CheckEvery is how often the record is compared with etcd. Default 1 s.
	CheckEvery time.Duration
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

const (
	callTimeout = 2 * time.Second
	retryPause  = 100 * time.Millisecond
)

// Follow records until ctx ends, and then returns nil. Trouble with etcd is no error: it goes
// on when etcd answers again. Its errors are those of the configuration and of the file.
func Follow(ctx context.Context, cfg Config) error {
	keys, err := record.NewKeys(cfg.Cluster)
	if err != nil {
		return err
	}
	f := &follower{keys: keys, store: cfg.Store, every: cfg.CheckEvery, log: cfg.Logger}
	if f.log == nil {
		f.log = hclog.NewNullLogger()
	}
	if f.every == 0 {
		f.every = time.Second
	}
	if f.file, err = openLog(cfg.Dir); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	defer func() { _ = f.file.file.Close() }()
	for ctx.Err() == nil {
		err := f.session(ctx)
		if fatal := (*fileError)(nil); errors.As(err, &fatal) {
			return err
		}
		f.log.Debug("history: reading again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(min(retryPause, f.every)):
		}
	}
	return nil
}

// fileError is an error of the history's own file: Follow cannot go on.
type fileError struct{ err error }

func (e *fileError) Error() string { return "history: " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

type follower struct {
	keys  record.Keys
	store store.Store
	every time.Duration
	log   hclog.Logger
	file  *log

	looked int64 // the recorded revision at the last check

	// missing is a key that is in the record but was absent at a later revision of etcd: its
	// deletion is still to come, or this is another life.
	missing struct {
		key      string
		revision int64
	}
}

func (f *follower) add(l line) error {
	if err := f.file.add(l); err != nil {
		return &fileError{err}
	}
	return nil
}

// snapshot is all lasting keys at a revision.
type snapshot struct {
	clusterID uint64
	revision  int64
	index     uint64 // of raft, 0 if it is not known
	values    bool
	kvs       []kv
}

// snapshot reads a snapshot, without values if they are not wanted.
func (f *follower) snapshot(ctx context.Context, values bool) (snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all := store.Prefix(string(f.keys))
	answer, err := f.store.Txn(ctx, store.Txn{Then: []store.Op{{Get: &store.Get{Interval: all, KeysOnly: !values}}}})
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{clusterID: answer.ClusterID, revision: answer.Revision, values: values}
	// The member that answered has the log up to this index; another one may lag.
	if status, err := f.store.Status(ctx); err == nil && status.Sender == answer.Sender {
		s.index = status.RaftIndex
	}
	for _, found := range answer.Got[0] {
		if f.keys.Lasting(found.Key) {
			s.kvs = append(s.kvs, kv{found.Key, string(found.Value), found.ModRevision})
		}
	}
	return s, nil
}

// session reads etcd, then watches it until it has to read it again.
func (f *follower) session(ctx context.Context) error {
	now, err := f.snapshot(ctx, true)
	if err != nil {
		return err
	}
	if err := f.resume(now); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	changes := f.store.Watch(ctx, []store.Interval{store.Prefix(string(f.keys))}, f.file.seen+1)
	defer func() { // the watch has ended when its channel is closed
		cancel()
		for range changes {
		}
	}()
	ticker := time.NewTicker(f.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case change, ok := <-changes:
			switch {
			case !ok:
				return errors.New("the watch ended")
			case errors.Is(change.Err, store.ErrCompacted):
				return f.gap(ctx)
			case change.Err != nil:
				return change.Err
			}
			if err := f.changed(change.KVs); err != nil {
				return err
			}
		case <-ticker.C:
			if err := f.check(ctx); err != nil {
				return err
			}
		}
	}
}

// resume begins a life if now does not belong to the recorded one.
func (f *follower) resume(now snapshot) error {
	why := "first"
	if f.file.live {
		why = f.otherLife(now)
	}
	if why != "" {
		return f.begin(whatLife, why, now)
	}
	return f.checked(now)
}

func (f *follower) checked(now snapshot) error {
	return f.add(line{What: whatChecked, Revision: f.file.seen, Shown: now.revision, Index: now.index})
}

func (f *follower) begin(what, why string, now snapshot) error {
	f.log.Info("history: a "+what+" begins", "why", why, "revision", now.revision, "last_revision", f.file.seen)
	return f.add(line{What: what, Why: why, ClusterID: now.clusterID, Revision: now.revision,
		Index: now.index, KVs: now.kvs})
}

// gap records the present keys after changes that were compacted.
func (f *follower) gap(ctx context.Context) error {
	now, err := f.snapshot(ctx, true)
	if err != nil {
		return err
	}
	if why := f.otherLife(now); why != "" {
		return f.begin(whatLife, why, now)
	}
	if f.missing.key != "" && f.keys.Kept(f.missing.key) {
		return f.begin(whatLife, fmt.Sprintf("key %s is gone", f.missing.key), now)
	}
	return f.begin(whatGap, fmt.Sprintf("compacted after revision %d", f.file.seen), now)
}

// changed records changes. A resumed watch may repeat some.
func (f *follower) changed(changes []store.KV) error {
	l := line{What: whatChanges}
	for _, c := range changes {
		if f.keys.Lasting(c.Key) && (c.ModRevision == 0 || c.ModRevision > f.file.keys[c.Key].Revision) {
			l.KVs = append(l.KVs, kv{c.Key, string(c.Value), c.ModRevision})
		} else {
			f.file.seen = max(f.file.seen, c.ModRevision)
		}
	}
	if len(l.KVs) == 0 {
		return nil
	}
	return f.add(l)
}

// check compares the record with etcd. A missing answer of etcd shows nothing.
func (f *follower) check(ctx context.Context) error {
	now, err := f.snapshot(ctx, false)
	if err != nil {
		f.log.Debug("history: not checked", "error", err)
		return nil
	}
	if why := f.otherLife(now); why != "" {
		return errors.New(why) // the next session reads etcd again, and begins the life
	}
	behind := f.file.shown > f.file.seen && f.file.seen == f.looked
	f.looked = f.file.seen
	if err := f.checked(now); err != nil || !behind {
		return err
	}
	return fmt.Errorf("the watch stands at revision %d, etcd is at %d", f.file.seen, now.revision)
}

// otherLife returns why the present state of etcd cannot have followed from the record; empty
// if it can. It compares only the past: keys that were last written at revisions that are
// recorded in full.
func (f *follower) otherLife(now snapshot) string {
	switch was := f.file; {
	case now.clusterID != was.id:
		return fmt.Sprintf("etcd cluster %x answers, it was %x", now.clusterID, was.id)
	case now.revision < max(was.seen, was.shown):
		return fmt.Sprintf("etcd is at revision %d, it was at %d", now.revision, max(was.seen, was.shown))
	case now.index != 0 && now.index < was.index:
		return fmt.Sprintf("etcd's raft index is %d, it was %d", now.index, was.index)
	}
	there := make(map[string]bool, len(now.kvs))
	for _, k := range now.kvs {
		there[k.Key] = true
		if was := f.file.keys[k.Key]; k.Revision <= f.file.seen &&
			(k.Revision != was.Revision || now.values && k.Value != was.Value) {
			return fmt.Sprintf("key %s is of revision %d, it was of revision %d", k.Key, k.Revision, was.Revision)
		}
	}
	if was := f.missing; was.key != "" && !there[was.key] && f.file.keys[was.key] != (kv{}) &&
		f.file.seen >= was.revision {
		return fmt.Sprintf("key %s is gone, and was not deleted", was.key)
	}
	f.missing.key = ""
	for key := range f.file.keys {
		if !there[key] && (f.missing.key == "" || f.keys.Kept(key)) {
			f.missing.key, f.missing.revision = key, now.revision
		}
	}
	return ""
}

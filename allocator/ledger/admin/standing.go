package admin

import (
	"context"
	"strings"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Standing is what a console goes by when it makes the next move of the migration under way: one snapshot, which is
// also the check that a move needs.
type Standing struct {
	ledger.Checked
	Active    bool // whether a migration is under way
	Migration record.Migration
	// Instances are the registered instances, with Unreadable those among them that cannot be read. They are read
	// where the caller wants them.
	Instances  []record.Instance
	Unreadable []record.KeyError
}

// Standing reads how the migration under way stands, with the instances if the caller wants them.
func (a *Admin) Standing(ctx context.Context, instances bool) (s Standing, err error) {
	ops := a.readActive()
	fixed := len(ops)
	if instances {
		ops = append(ops, a.readInstances("")...)
	}
	if s.Checked, err = a.Ledger.CheckWith(ctx, ops...); err != nil {
		return s, err
	}
	if instances {
		s.Instances, s.Unreadable = a.instancesOf(s.Got[fixed:])
	}
	s.Migration, s.Active, err = a.activeOf(ctx, s.Got)
	return s, err
}

// followPause is the pause before a watch that ended is begun again.
const followPause = time.Second

// Follow calls changed, until ctx ends, after each change of a migration, or of a registration. It misses those from
// before it watches, and while etcd is away.
func (a *Admin) Follow(ctx context.Context, changed func(registration bool)) {
	for ctx.Err() == nil {
		a.follow(ctx, changed)
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
}

func (a *Admin) follow(ctx context.Context, changed func(registration bool)) {
	answer, err := a.Ledger.Gets(ctx, store.OpGet(a.keys.ActiveMigration()))
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := func(key string) store.Interval { return store.Interval{Key: key, End: store.PrefixEnd(key)} }
	changes := a.Ledger.Cluster().Store.Watch(ctx, []store.Interval{prefix(a.keys.Migrations()),
		prefix(a.keys.Registrations(""))}, answer.Revision+1)
	state, adopted := a.Ledger.State()
	for {
		select {
		case change, ok := <-changes:
			if !ok || change.Err != nil {
				return
			}
			changed(!strings.HasPrefix(change.KVs[0].Key, a.keys.Migrations()))
		case <-adopted:
			// The revisions of a restored etcd begin below those that were seen, so the watch would be silent for long.
			was := state.Epoch()
			if state, adopted = a.Ledger.State(); state.Epoch() != was {
				return
			}
		}
	}
}

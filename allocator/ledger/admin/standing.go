package admin

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
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
func (a *view) Standing(ctx context.Context, instances bool) (s Standing, err error) {
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

// Cluster is what is shown of a cluster, beside its tags and its history. A value that cannot be read is missing, and
// Bad names its key.
type Cluster struct {
	Layout    record.Layout // this and Unusable are as LastLayout returns them
	Unusable  error
	UUID      string
	Settings  *record.ClusterSettings
	Instances []record.Instance
	Migration *record.Migration // under way; nil for none
	Active    string            // the ID of a migration under way that cannot be read
	Bad       []record.KeyError // by key
	BadRooms  []record.KeyError // those of Bad that are of instances
}

// Cluster reads a cluster, to show it. Its errors are those of LastLayout.
func (a *view) Cluster(ctx context.Context) (c Cluster, err error) {
	passed := func(err error) error {
		if key, damaged := errors.AsType[*record.KeyError](err); damaged {
			c.Bad = append(c.Bad, *key)
			return nil
		}
		return err
	}
	ops := append(a.readActive(), store.OpGet(a.keys.Settings()))
	fixed := len(ops)
	var answer store.Answer
	var failed error
	var reading sync.WaitGroup // both reads take one round trip
	reading.Go(func() { answer, failed = a.Ledger.Gets(ctx, append(ops, a.readInstances("")...)...) })
	c.Layout, c.Unusable, err = a.LastLayout(ctx)
	reading.Wait()
	if either := cmp.Or(err, failed); either != nil {
		return c, either
	}
	_ = passed(c.Unusable) // it may be an error without a key
	c.UUID, err = a.Ledger.UUID(ctx)
	if fatal := passed(err); fatal != nil {
		return c, fatal
	}
	settings, err := record.DecodeSettings(answer.Got[fixed-1])
	if err == nil {
		c.Settings = &settings
	} else if fatal := passed(err); fatal != nil {
		return c, fatal
	}
	c.Instances, c.BadRooms = a.instancesOf(answer.Got[fixed:])
	m, active, err := a.activeOf(ctx, answer.Got)
	if active {
		c.Migration = &m
	}
	if key, damaged := errors.AsType[*record.KeyError](err); damaged {
		c.Active = path.Base(key.Key)
	}
	if fatal := passed(err); fatal != nil {
		return c, fatal
	}
	c.Bad = append(c.Bad, c.BadRooms...)
	slices.SortStableFunc(c.Bad, func(a, b record.KeyError) int { return cmp.Compare(a.Key, b.Key) })
	c.Bad = slices.CompactFunc(c.Bad, func(a, b record.KeyError) bool { return a.Key == b.Key })
	return c, nil
}

// followPause is the pause before a watch that ended is begun again.
const followPause = time.Second

// Follow calls changed, until ctx ends, after each change of a migration, or of a registration. It misses those from
// before it watches, and while etcd is away.
func (a *view) Follow(ctx context.Context, changed func(registration bool)) {
	for ctx.Err() == nil {
		a.follow(ctx, changed)
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
}

func (a *view) follow(ctx context.Context, changed func(registration bool)) {
	answer, err := a.Ledger.Gets(ctx, store.OpGet(a.keys.ActiveMigration()))
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := a.Ledger.Cluster().Store.Watch(ctx, []store.Interval{
		store.Prefix(a.keys.All(record.Migrations)), store.Prefix(a.keys.All(record.Registrations))}, answer.Revision+1)
	state, adopted := a.Ledger.State()
	for {
		select {
		case change, ok := <-changes:
			if !ok || change.Err != nil {
				return
			}
			changed(!strings.HasPrefix(change.KVs[0].Key, a.keys.All(record.Migrations)))
		case <-adopted:
			// The revisions of a restored etcd begin below those that were seen, so the watch would be silent for long.
			was := state.Epoch()
			if state, adopted = a.Ledger.State(); state.Epoch() != was {
				return
			}
		}
	}
}

package admin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// tagCount is about how many tags there are. For a count etcd visits all tags. So a
// process counts them at most every recountEvery, and adds those that it creates
// itself. At the bound it counts again after a second, because tags may have been
// deleted.
type tagCount struct {
	sync.Mutex
	tags int64
	at   time.Time // when they were counted
}

// MaxTags is the name of the limit on tags, as the flag and the metrics have it.
const MaxTags = "tags"

const (
	defaultMaxTags = 2_000_000
	recountEvery   = 10 * time.Second
	countFullEvery = time.Second
)

// CountTags returns how many tags there are, those that cannot be read included. etcd
// walks over all keys of tags for that. Its errors are those of ledger.Ledger.Attach, and Unavailable.
func (a *view) CountTags(ctx context.Context) (int64, error) {
	if err := a.Ledger.Attach(ctx); err != nil {
		return 0, err
	}
	within := store.Prefix(a.keys.All(record.Tags))
	answer, err := a.Ledger.Gets(ctx, store.Op{Get: &store.Get{Interval: within, Limit: 1, KeysOnly: true}})
	if err != nil {
		return 0, err
	}
	return answer.Counts[0], nil
}

// MaxTags returns the bound on the tags of the cluster.
func (a *Admin) MaxTags() int64 { return a.cfg.MaxTags }

// mayCreateTag returns TooMany if the cluster has MaxTags tags. Otherwise it counts
// the tag as created.
func (a *Admin) mayCreateTag(ctx context.Context, name allocator.Tag) error {
	c := &a.tagCount
	c.Lock()
	defer c.Unlock()
	every := recountEvery
	if c.tags >= a.cfg.MaxTags {
		every = countFullEvery
	}
	if c.at.IsZero() || time.Since(c.at) >= every {
		tags, err := a.CountTags(ctx)
		if err != nil {
			return err
		}
		c.tags, c.at = tags, time.Now()
	}
	if c.tags >= a.cfg.MaxTags {
		if a.cfg.TooManyTags != nil {
			a.cfg.TooManyTags()
		}
		return fmt.Errorf("tag %s is not created: %w; deleted tags count, too: `march tag list --deleted` lists them, and "+
			"`march tag forget TAG` forgets one", name, allocator.OverLimit("tags in the cluster", a.cfg.MaxTags, MaxTags))
	}
	c.tags++
	return nil
}

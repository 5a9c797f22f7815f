package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/cmd/chaos/internal/traffic"
)

// load has the callers of a room.
type load struct {
	*traffic.Load
	stop context.CancelFunc
	work errgroup.Group
}

func (c *Cluster) newLoad(room allocator.Room) *load {
	cfg := traffic.Config{Dir: c.Dir, Room: room, Instances: make(map[allocator.Instance]traffic.Addresses),
		Tags: c.Tags, Times: c.Times, Others: c.Others, Texts: c.Texts, Keys: []format.Key{c.Key}, TLS: c.TLS,
		Rate: c.Rate / len(c.Rooms), Seed: c.Seed}
	for _, s := range c.Instances {
		if s.Room == room {
			cfg.Instances[allocator.Instance(s.ID)] = traffic.Addresses{GRPC: s.Reached, Doors: s.Doors}
		}
	}
	return &load{Load: traffic.New(cfg), stop: func() {}}
}

// StartLoads starts the callers.
func (c *Cluster) StartLoads() {
	for _, l := range c.loads {
		var ctx context.Context
		ctx, l.stop = context.WithCancel(context.Background())
		l.work.Go(func() error { return l.Run(ctx) })
	}
}

// StopLoads ends the callers, and waits: then all IDs that they got are recorded. It may be called again.
func (c *Cluster) StopLoads() error {
	var errs []error
	for _, l := range c.loads {
		l.stop()
		if err := l.work.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("callers of room %s: %w", l.Room, err))
		}
	}
	return errors.Join(errs...)
}

// Counts returns the counts of all callers so far, by runlog.Who.
func (c *Cluster) Counts() map[string]traffic.Count {
	counts := make(map[string]traffic.Count)
	for _, l := range c.loads {
		maps.Copy(counts, l.Counts())
	}
	return counts
}

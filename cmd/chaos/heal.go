package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/cmd/internal/proxy"
)

// heal removes all faults that may be left, and checks that the cluster works: all instances
// lease and issue, migrations end, and then no call fails.
func (d *driver) heal(ctx context.Context) error {
	d.say("healing")
	began := time.Now()
	healing, cancel := context.WithTimeoutCause(ctx, healWithin,
		fmt.Errorf("not within %v of the last fault", healWithin))
	defer cancel()
	for _, l := range d.Links() {
		l.Set(proxy.Fault{})
	}
	for _, m := range d.Members {
		m.Keep(true)
		_ = m.Signal(contSignal)
	}
	for _, s := range d.Servers() {
		s.Keep(true)
		_ = s.Signal(contSignal)
	}
	if d.config.cell != nil && d.config.cell.residual() {
		return nil // no instance saw the restore, so the cluster does not heal from it
	}
	e := runlog.Event{What: runlog.Healed}
	if err := d.lives(healing); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		e.Violation = "after all faults had ended: " + err.Error()
	}
	e.Took = time.Since(began)
	d.note(e)
	if e.Violation != "" {
		return nil
	}
	return d.calm(ctx, 2*time.Second)
}

// lives waits until everything works again.
func (d *driver) lives(ctx context.Context) error {
	for _, m := range d.Members {
		if err := m.Await(ctx); err != nil {
			return err
		}
	}
	if late := d.awaitIssuing(ctx, time.Now(), nil, nil); late != "" {
		return fmt.Errorf("%s is given no IDs: %s", late, d.Counts()[late].Error)
	}
	if err := d.migrationsEnd(ctx); err != nil {
		return err
	}
	leasing, cancel := context.WithCancel(ctx)
	defer cancel()
	leases, leasing := errgroup.WithContext(leasing)
	for _, s := range d.Instances {
		if s.Room == spare { // it may have no range
			continue
		}
		leases.Go(func() error {
			if err := d.leases(leasing, s); err != nil {
				return fmt.Errorf("%s: %w", s.ID, err)
			}
			return nil
		})
	}
	// Their segments may last for minutes: a skip makes all instances lease again.
	for _, tag := range d.Tags {
		err := cluster.Poll(ctx, "a skip of tag "+string(tag), func() bool {
			_, err := d.skipBy(ctx, string(tag), 1, nil)
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return leases.Wait()
}

// leases waits until an instance has leased a segment of each tag.
func (d *driver) leases(ctx context.Context, s *cluster.Server) error {
	conn, err := api.Dial(s.Admin, d.Credentials().Options()...)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	refills := func(tag string) int64 {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		answer, err := marchv1.NewRoomServiceClient(conn).GetChain(ctx, &marchv1.GetChainRequest{Tag: tag})
		if err != nil {
			return -1
		}
		return answer.GetChain().GetRefills()
	}
	before := make(map[allocator.Tag]int64)
	for _, tag := range d.Tags {
		before[tag] = -1
	}
	return cluster.Poll(ctx, "a segment of each tag", func() bool {
		for tag, was := range before {
			n := refills(string(tag))
			switch {
			case was < 0:
				before[tag] = n
			case n > was:
				delete(before, tag)
			}
		}
		return len(before) == 0
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// The rooms of moves: the range of one never changes, one only grows, and one loses residues in
// every other move.
const (
	same  = allocator.Room("same")
	grows = allocator.Room("grows")
	loses = allocator.Room("loses")
)

// moves measures what 20 moves of the layout cost rooms that lose nothing by them: leases, and
// writes in etcd.
func moves(ctx context.Context, s sizes, add func(row)) (err error) {
	const count, every = 20, 50 // every 50th tag is active in the room that loses
	tags := min(s.tags, 100_000)
	c, err := startCluster(ctx, s.march, moved(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.fill(ctx, tags); err != nil {
		return err
	}
	addresses, err := c.startRooms(ctx, []allocator.Room{same, grows, loses})
	if err != nil {
		return err
	}
	steps := map[allocator.Room]int{same: 1, grows: 1, loses: every}
	group, activating := errgroup.WithContext(ctx)
	for room, step := range steps {
		group.Go(func() error { return activate(activating, addresses[room], tags, step) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	group, asking := errgroup.WithContext(ctx)
	asking, stop := context.WithCancel(asking)
	for room, step := range steps {
		group.Go(func() error { return keepActive(asking, addresses[room], tags, step) })
	}
	defer func() {
		stop()
		err = errors.Join(err, group.Wait())
	}()
	before, err := c.settled(ctx)
	if err != nil {
		return err
	}
	if n := len(before.marks[same]) + len(before.marks[grows]); n != 2*tags {
		return fmt.Errorf("%d marks of the rooms that lose nothing, not %d", n, 2*tags)
	}
	say("%d tags are active", tags)
	began := time.Now()
	for move := int64(1); move <= count; move++ {
		if err := c.move(ctx, moved(move)); err != nil {
			return err
		}
	}
	took := time.Since(began)
	after, err := c.settled(ctx)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d moves, %d active tags: ", count, tags)
	lost := written(before.marks[loses], after.marks[loses])
	if lost < tags/every {
		return fmt.Errorf("%d marks of the room that lost were written: it shows nothing", lost)
	}
	add(row{
		what: what + "tags leased by rooms that lost nothing",
		measured: float64(written(before.marks[same], after.marks[same]) + written(before.marks[grows],
			after.marks[grows])),
		note: fmt.Sprintf("%d by the room that lost; all moves took %.3g s", lost, took.Seconds()),
	})
	add(row{what: what + "more keys in etcd", measured: float64(after.keys - before.keys),
		note: fmt.Sprintf("than %d", before.keys)})
	add(row{
		// Numbers have more digits later: versions, revisions, counters of heartbeats.
		what: what + "more bytes in etcd", measured: float64(after.bytes - before.bytes), goal: 200, unit: "bytes",
		note: fmt.Sprintf("than %d, without the marks of the room that lost, and layouts/ and audit/ (%d "+
			"keys, then %d)",
			before.bytes, before.history, after.history),
	})
	return nil
}

// moved is the layout after a number of moves.
func moved(move int64) allocator.Layout {
	return allocator.Layout{Boundary: 1000, Ranges: map[allocator.Room]allocator.Range{
		same:  {Lower: 0, Upper: 300},
		grows: {Lower: 300, Upper: 400 + 10*(move/2)},
		loses: {Lower: 700 + 10*((move+1)/2), Upper: 1000},
	}}
}

// activate makes a room lease some of the tags, evenly spread. Their chains then hold less than
// their target: a second lease follows.
func activate(ctx context.Context, address string, tags, step int) error {
	const workers = 32
	conn, err := dial(address, "127.0.0.1")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := marchv1.NewIDServiceClient(conn)
	group, ctx := errgroup.WithContext(ctx)
	for k := range workers {
		group.Go(func() error {
			for i := k * step; i < tags; i += workers * step {
				err := again(ctx, func() error {
					_, err := client.Lease(ctx, &marchv1.LeaseRequest{Tag: string(tagName(i)), Count: 1})
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// keepActive makes callers ask a room for an ID of some of the tags, again and again until ctx
// ends: a tag without recent callers leases nothing after a move. These IDs are too few to
// cause a refill.
func keepActive(ctx context.Context, address string, tags, step int) error {
	const pause = 5 * time.Second
	conn, err := dial(address, "127.0.0.1")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := marchv1.NewIDServiceClient(conn)
	for ctx.Err() == nil {
		for i := 0; i < tags && ctx.Err() == nil; i += step {
			err := again(ctx, func() error {
				_, err := client.Next(ctx, &marchv1.NextRequest{Tag: string(tagName(i))})
				return err
			})
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// move changes the layout, and waits until all instances serve it.
func (c *cluster) move(ctx context.Context, to allocator.Layout) error {
	from, err := c.admin.Ledger.Refresh(ctx)
	if err != nil {
		return err
	}
	made, err := c.admin.ChangeLayout(ctx, from, to, "scale")
	if err != nil {
		return err
	}
	return await(ctx, fmt.Sprintf("all rooms to serve layout version %d", made.Layout.Version), func() (bool, error) {
		all, _, err := c.admin.Instances(ctx, "")
		done := err == nil && len(all) == len(c.rooms)
		for _, i := range all {
			done = done && i.Version == made.Layout.Version
		}
		return done, err
	})
}

// contents is the content of etcd.
type contents struct {
	keys, bytes int // without the history, and the marks of the room that loses
	history     int // keys of layouts/ and audit/
	marks       map[allocator.Room]map[string]int64
}

func (c *cluster) contents(ctx context.Context) (contents, error) {
	found := contents{marks: map[allocator.Room]map[string]int64{same: {}, grows: {}, loses: {}}}
	err := c.each(ctx, prefix, func(kv store.KV) {
		parts := strings.Split(strings.TrimPrefix(kv.Key, prefix), "/")
		if parts[0] == "marks" {
			found.marks[allocator.Room(parts[1])][parts[2]] = kv.ModRevision
		}
		switch {
		case parts[0] == "layouts", parts[0] == "audit":
			found.history++
		case parts[0] == "marks" && parts[1] == string(loses):
		default:
			found.keys, found.bytes = found.keys+1, found.bytes+len(kv.Key)+len(kv.Value)
		}
	})
	return found, err
}

// settled returns the content of etcd once no room has leased anything for some seconds.
func (c *cluster) settled(ctx context.Context) (now contents, err error) {
	err = await(ctx, "rooms to lease no more", func() (bool, error) {
		before, err := c.contents(ctx)
		if err != nil {
			return false, err
		}
		time.Sleep(3 * time.Second)
		if now, err = c.contents(ctx); err != nil {
			return false, err
		}
		return maps.EqualFunc(before.marks, now.marks, maps.Equal[map[string]int64]), nil
	})
	return now, err
}

// written returns how many marks were written between two readings.
func written(before, after map[string]int64) (n int) {
	for tag, revision := range after {
		if before[tag] != revision {
			n++
		}
	}
	return n
}

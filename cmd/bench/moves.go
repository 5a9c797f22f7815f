package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster"
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
func moves(p *part) {
	const count, every = 20, 50 // every 50th tag is active in the room that loses
	tags := min(p.tags, 100_000)
	c := p.processes(moved(0))
	c.fill(tags)
	addresses := c.startRooms(same, grows, loses)
	steps := map[allocator.Room]int{same: 1, grows: 1, loses: every}
	group, activating := errgroup.WithContext(p.ctx)
	for room, step := range steps {
		group.Go(func() error { return activate(activating, addresses[room], tags, step) })
	}
	p.check(group.Wait())
	for room, step := range steps {
		testcluster.Start(p, func(ctx context.Context) error { return keepActive(ctx, addresses[room], tags, step) })
	}
	before := c.settled()
	if n := len(before.marks[same]) + len(before.marks[grows]); n != 2*tags {
		p.Fatalf("%d marks of the rooms that lose nothing, not %d", n, 2*tags)
	}
	p.Logf("%d tags are active", tags)
	began := time.Now()
	for move := int64(1); move <= count; move++ {
		c.move(moved(move))
	}
	took := time.Since(began)
	after := c.settled()
	what := fmt.Sprintf("%d moves, %d active tags: ", count, tags)
	lost := written(before.marks[loses], after.marks[loses])
	if lost < tags/every {
		p.Fatalf("%d marks of the room that lost were written: it shows nothing", lost)
	}
	p.figure(row{what: what + "tags leased by rooms that lost nothing", atMost: true,
		note: fmt.Sprintf("%d by the room that lost; all moves took %.3g s", lost, took.Seconds())},
		float64(written(before.marks[same], after.marks[same])+written(before.marks[grows], after.marks[grows])))
	p.figure(row{what: what + "more keys in etcd", atMost: true, note: fmt.Sprintf("than %d", before.keys)},
		float64(after.keys-before.keys))
	// Numbers have more digits later: versions, revisions, counters of heartbeats.
	p.figure(row{what: what + "more bytes in etcd", goal: 200, atMost: true, unit: "bytes",
		note: fmt.Sprintf("than %d, without marks of the room that lost, and layouts/ and audit/ (%d keys, then %d)",
			before.bytes, before.history, after.history)}, float64(after.bytes-before.bytes))
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
	return onTags(ctx, address, tags, step, 32, leaseOne)
}

// keepActive makes a caller ask a room for an ID of some of the tags, again and again until ctx
// ends: a tag without recent callers leases nothing after a move. These IDs are too few to
// cause a refill.
func keepActive(ctx context.Context, address string, tags, step int) error {
	const pause = 5 * time.Second
	for ctx.Err() == nil {
		if err := onTags(ctx, address, tags, step, 1, next); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// move changes the layout, and waits until all instances serve it.
func (c *processes) move(to allocator.Layout) {
	made := must(c.admin.ChangeLayout(c.ctx, must(c.admin.Ledger.Refresh(c.ctx)), to, "scale"))
	c.await(fmt.Sprintf("all rooms to serve layout version %d", made.Layout.Version), func() bool {
		all, _, err := c.admin.Instances(c.ctx, "")
		done := err == nil && len(all) == len(c.rooms)
		for _, i := range all {
			done = done && i.Version == made.Layout.Version
		}
		return done
	})
}

// contents is the content of etcd.
type contents struct {
	keys, bytes int // without the history, and the marks of the room that loses
	history     int // keys of layouts/ and audit/
	marks       map[allocator.Room]map[string]int64
}

func (c *processes) contents() contents {
	found := contents{marks: map[allocator.Room]map[string]int64{same: {}, grows: {}, loses: {}}}
	c.each(prefix, func(kv store.KV) {
		parts := strings.Split(strings.TrimPrefix(kv.Key, prefix), "/")
		if record.Kind(parts[0]) == record.Marks {
			found.marks[allocator.Room(parts[1])][parts[2]] = kv.ModRevision
		}
		switch {
		case record.Kind(parts[0]) == record.Layouts, record.Kind(parts[0]) == record.Audits:
			found.history++
		case record.Kind(parts[0]) == record.Marks && parts[1] == string(loses):
		default:
			found.keys, found.bytes = found.keys+1, found.bytes+len(kv.Key)+len(kv.Value)
		}
	})
	return found
}

// settled returns the content of etcd once no room has leased anything for some seconds.
func (c *processes) settled() (now contents) {
	c.await("rooms to lease no more", func() bool {
		before := c.contents()
		time.Sleep(3 * time.Second)
		now = c.contents()
		return maps.EqualFunc(before.marks, now.marks, maps.Equal[map[string]int64])
	})
	return now
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

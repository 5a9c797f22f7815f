package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/internal/proxy"
)

const (
	// leaseWithin is how long a room that receives nothing from etcd may take to send it a
	// lease all the same. Then the room is let go: without answers it soon sends none.
	leaseWithin = time.Second
	// leaseTries is how many rooms are tried, one after the other and again.
	leaseTries = 15
)

// loseAnswers keeps etcd's answers from all instances of a room until etcd has done a lease of
// theirs, and then cuts their connections. So a transaction failed, as far as its sender can
// tell, and was applied. Other faults may cause the same; this one has seen it in etcd.
func loseAnswers(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
	rooms := slices.Clone(d.Rooms)
	r.Shuffle(len(rooms), func(i, j int) { rooms[i], rooms[j] = rooms[j], rooms[i] })
	lasts := between(r, 0, time.Second)
	for n := range leaseTries {
		room := rooms[n%len(rooms)]
		of := d.instancesOf(room)
		if slices.ContainsFunc(of, d.isPaused) {
			continue
		}
		d.touch(room.Name)
		var links []*proxy.Link
		for _, s := range of {
			links = append(links, s.Etcd...)
		}
		i := d.hurtLinks(links, proxy.Fault{HoldDown: true}, 0, true, &injury{target: names(of), lasts: lasts})
		leased, err := d.awaitLease(ctx, r, room.Name)
		if err == nil && leased != "" {
			i.detail = "to a lease: " + leased
			return i, nil
		}
		if endErr := i.end(ctx); endErr != nil {
			return nil, endErr
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		d.log.Debug("no lease to lose", "room", room.Name, "error", err)
		store.Sleep(ctx, leaseWithin/2)
	}
	return nil, fmt.Errorf("%w: no room leased anything in %d times %v", errSkip, leaseTries, leaseWithin)
}

// awaitLease waits until a room has leased a segment and returns the mark's key, empty if it
// did not within leaseWithin.
func (d *driver) awaitLease(ctx context.Context, r *rand.Rand, room allocator.Room) (leased string, err error) {
	client, err := d.etcd(r)
	if err != nil {
		return "", err
	}
	keys, err := record.NewKeys(clusterName)
	if err != nil {
		return "", err
	}
	marks := store.Prefix(keys.In(room, record.Marks))
	waiting, cancel := context.WithTimeout(ctx, leaseWithin)
	defer cancel()
	newest := func() (key string, revision int64, err error) {
		answer, err := client.Get(waiting, marks.Key, append(clientv3.WithLastRev(), clientv3.WithRange(marks.End),
			clientv3.WithKeysOnly())...)
		if err != nil || len(answer.Kvs) == 0 {
			return "", 0, err
		}
		return string(answer.Kvs[0].Key), answer.Kvs[0].ModRevision, nil
	}
	_, before, err := newest()
	if err != nil {
		return "", err
	}
	_ = cluster.Poll(waiting, "", func() bool { // the result shows the lease
		key, revision, err := newest()
		if err == nil && revision > before {
			leased = key
		}
		return leased != ""
	})
	return leased, ctx.Err()
}

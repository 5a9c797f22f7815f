package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// cluster is a whole cluster: etcd, and an instance of each room. These are the march that
// users run, in processes of their own.
type cluster struct {
	dir, march string
	etcd       *process
	store      store.Store
	admin      *admin.Admin
	rooms      map[allocator.Room]*exec.Cmd
	// roomsAt and consoleAt are where rooms and the console reach etcd; empty for its own address.
	roomsAt, consoleAt string
}

// prefix is the prefix of all keys of the cluster.
const prefix = "/march/default/"

// model is the tag that all others are copies of.
const model = allocator.Tag("model")

// patience bounds each wait.
const patience = 5 * time.Minute

// startCluster starts etcd and makes a cluster with a layout, and the model.
func startCluster(ctx context.Context, march string, layout allocator.Layout) (*cluster, error) {
	if _, err := os.Stat(march); err != nil {
		return nil, fmt.Errorf("%w; build it first (make build), or say where it is (-march)", err)
	}
	c, err := newCluster(ctx, false, layout)
	if err != nil {
		return nil, err
	}
	c.march = march
	if _, err = c.admin.CreateTag(ctx, model, record.DefaultTag(), "scale"); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// newCluster starts etcd, which syncs its log or not, with settings of its environment, and
// makes a cluster with a layout.
func newCluster(ctx context.Context, sync bool, layout allocator.Layout, env ...string) (_ *cluster, err error) {
	dir, err := os.MkdirTemp("", "scale") // a short path: a unix socket's path is limited
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, rooms: make(map[allocator.Room]*exec.Cmd)}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.etcd, err = startEtcd(ctx, dir, "", sync, env...); err != nil {
		return nil, err
	}
	if c.store, err = store.NewEtcd(store.EtcdConfig{Endpoints: []string{c.etcd.Address}}); err != nil {
		return nil, err
	}
	l, err := newLedger(c.store)
	if err != nil {
		return nil, err
	}
	c.admin = admin.New(l, admin.DefaultConfig())
	_, err = c.admin.Init(ctx, layout, "scale")
	return c, err
}

// newLedger returns a ledger with long timeouts, for a busy machine.
func newLedger(etcd store.Store) (*ledger.Ledger, error) {
	cfg := ledger.DefaultConfig()
	cfg.TryTimeout = 30 * time.Second
	return ledger.New(etcd, cfg)
}

func (c *cluster) close() error {
	errs := []error{c.stopRooms()}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	if c.etcd != nil {
		errs = append(errs, c.etcd.close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// startRooms starts an instance of each room, and returns their addresses once all answer. They
// have no journals: those would share the disk with etcd here, and a recover does not read the
// journal of an instance that runs.
func (c *cluster) startRooms(ctx context.Context, rooms []allocator.Room) (map[allocator.Room]string, error) {
	for _, room := range rooms {
		if err := c.launch(ctx, room); err != nil {
			return nil, err
		}
	}
	addresses := make(map[allocator.Room]string)
	err := await(ctx, "all rooms to register", func() (bool, error) {
		all, _, err := c.admin.Instances(ctx, "")
		for _, i := range all {
			addresses[i.Room] = i.Address
		}
		return len(addresses) == len(rooms), err
	})
	if err != nil {
		return nil, err
	}
	for room, address := range addresses {
		if err := c.awaitRoom(ctx, room, address); err != nil {
			return nil, err
		}
	}
	return addresses, nil
}

// launch starts an instance of a room, with more flags, and does not wait for it.
func (c *cluster) launch(ctx context.Context, room allocator.Room, flags ...string) error {
	cmd, err := c.begin(ctx, string(room), append([]string{"room", string(room), "--name", "one",
		"--etcd", cmp.Or(c.roomsAt, c.etcd.Address), "--grpc", "127.0.0.1:0", "--http", "", "--journal", "off",
		"--idle-after", "24h"}, flags...)...)
	if err == nil {
		c.rooms[room] = cmd
	}
	return err
}

// begin starts march, with a log by this name.
func (c *cluster) begin(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join(c.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.CommandContext(ctx, c.march, args...)
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Start()
	return cmd, err
}

// awaitRoom waits until an instance answers.
func (c *cluster) awaitRoom(ctx context.Context, room allocator.Room, address string) error {
	conn, err := dial(address, "127.0.0.1")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := marchv1.NewRoomServiceClient(conn)
	return await(ctx, fmt.Sprintf("room %s to answer", room), func() (bool, error) {
		_, err := client.ListChains(ctx, &marchv1.ListChainsRequest{})
		return err == nil, nil
	})
}

// stopRooms stops all instances cleanly.
func (c *cluster) stopRooms() error {
	var errs []error
	for room, cmd := range c.rooms {
		errs = append(errs, cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
		delete(c.rooms, room)
	}
	return errors.Join(errs...)
}

// fill creates tags that are copies of the model: of its settings, and of its mark in each room
// that leased it.
func (c *cluster) fill(ctx context.Context, tags int) error {
	const atOnce, ops = 8, 120
	var like []store.KV
	err := c.each(ctx, prefix, func(kv store.KV) {
		if strings.HasSuffix(kv.Key, "/"+string(model)) {
			like = append(like, kv)
		}
	})
	if err != nil {
		return err
	}
	each := ops / len(like) // tags in one transaction
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for from := 0; from < tags && ctx.Err() == nil; from += each {
		group.Go(func() error {
			var txn store.Txn
			for i := from; i < min(from+each, tags); i++ {
				for _, kv := range like {
					key := strings.TrimSuffix(kv.Key, string(model)) + string(tagName(i))
					txn.Then = append(txn.Then, store.Op{Put: &store.Put{Key: key, Value: kv.Value}})
				}
			}
			_, err := c.store.Txn(ctx, txn)
			return err
		})
	}
	return group.Wait()
}

// each calls use with all keys that begin with start, in their order.
func (c *cluster) each(ctx context.Context, start string, use func(store.KV)) error {
	const page = 10_000
	end := start[:len(start)-1] + string(start[len(start)-1]+1)
	for from := start; ; {
		get := &store.Get{Interval: store.Interval{Key: from, End: end}, Limit: page}
		answer, err := c.store.Txn(ctx, store.Txn{Then: []store.Op{{Get: get}}})
		if err != nil {
			return err
		}
		for _, kv := range answer.Got[0] {
			use(kv)
			from = kv.Key + "\x00"
		}
		if len(answer.Got[0]) < page {
			return nil
		}
	}
}

// restore takes etcd back to a backup. The rooms run on.
func (c *cluster) restore(ctx context.Context, backup string) (err error) {
	if err := c.etcd.close(); err != nil {
		return err
	}
	c.etcd, err = startEtcd(ctx, c.dir, backup, true)
	return err
}

// equal returns a layout with equal ranges.
func equal(rooms ...allocator.Room) (allocator.Layout, error) {
	slices.Sort(rooms)
	return allocator.EqualLayout(int64(100*len(rooms)), rooms)
}

// await polls until done returns true, or returns an error if that takes too long.
func await(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ok, err := done()
		if ok && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("waiting for %s: %w", what, ctx.Err()), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

package writes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// counter counts the writes through a store.
type counter struct {
	store.Store
	counted *counted
}

// counted are the counts of all stores of a cluster.
type counted struct {
	sync.Mutex
	began  time.Time
	series Series
}

// Txn implements ledger.Store.
func (c *counter) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	if ledgertest.Writes(txn) {
		c.counted.Lock()
		c.counted.series.add(int(time.Since(c.counted.began)/time.Second), txn)
		c.counted.Unlock()
	}
	return c.Store.Txn(ctx, txn)
}

// cluster is a simulated cluster.
type cluster struct {
	t       *testing.T
	spec    Spec
	mem     *ledgertest.Fake
	counted *counted
	admin   *admin.Admin
	rooms   []allocator.Room

	mu struct { // written by run, read by issued
		sync.Mutex
		servers []*room.Server
	}
}

func tagName(i int) allocator.Tag { return allocator.Tag(fmt.Sprintf("t%07d", i)) }

func newCluster(t *testing.T, spec Spec) *cluster {
	c := &cluster{t: t, spec: spec, mem: ledgertest.NewFake(t),
		counted: &counted{began: time.Now(), series: make(Series)}}
	for i := range spec.Rooms {
		c.rooms = append(c.rooms, allocator.Room(fmt.Sprintf("r%02d", i)))
	}
	c.admin = admin.New(c.ledger(), admin.DefaultConfig())
	if _, err := c.admin.Init(t.Context(), c.layout(0), "scale"); err != nil {
		t.Fatal(err)
	}
	settings := record.DefaultTag()
	if spec.Reserve > 0 {
		settings.Reserve = record.DurationOf(spec.Reserve)
	}
	for i := range spec.Tags {
		if _, err := c.admin.CreateTag(t.Context(), tagName(i), settings, "scale"); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// ledger returns a ledger for one process.
func (c *cluster) ledger() *ledger.Ledger {
	l, err := ledger.New(&counter{c.mem.Open(), c.counted}, ledger.DefaultConfig())
	if err != nil {
		c.t.Fatal(err)
	}
	return l
}

// layout returns the layout in which the first room has given moved residues to the second.
func (c *cluster) layout(moved int64) allocator.Layout {
	const width = 100
	l, err := allocator.EqualLayout(int64(width*len(c.rooms)), c.rooms)
	if err != nil {
		c.t.Fatal(err)
	}
	l.Ranges[c.rooms[0]] = allocator.Range{Lower: 0, Upper: width - moved}
	l.Ranges[c.rooms[1]] = allocator.Range{Lower: width - moved, Upper: 2 * width}
	return l
}

// starting is the time in which instances start. Callers begin after it.
const starting = time.Minute

// spread returns the k-th of n evenly spaced times, in an order in which neighbours are far
// apart.
func spread(within time.Duration, k, n int) time.Duration {
	const prime = 7_368_787
	return within * time.Duration(k*prime%n) / time.Duration(n)
}

// run starts all instances and their callers, and stops them when ctx ends.
func (c *cluster) run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	for i := range c.spec.Instances {
		in, place := i%c.spec.Rooms, i/c.spec.Rooms
		listener := testcluster.NewSilent()
		cfg := room.DefaultConfig()
		cfg.Room, cfg.Name, cfg.Ledger, cfg.GRPC = c.rooms[in],
			allocator.Instance(fmt.Sprintf("i%04d", i)), c.ledger(), listener
		cfg.Advertise = fmt.Sprintf("192.0.2.1:%d", i+1)
		server, err := room.New(cfg)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.mu.servers = append(c.mu.servers, server)
		c.mu.Unlock()
		running.Go(func() error {
			if !store.Sleep(ctx, spread(starting, i, c.spec.Instances)) {
				return nil
			}
			return server.Run(ctx)
		})
		here := (c.spec.Instances - in + c.spec.Rooms - 1) / c.spec.Rooms // instances of the room
		var groups [slots][]caller
		for tag := place; tag < c.spec.Tags; tag += here {
			pair := tag*c.spec.Rooms + in
			begins := starting + spread(c.spec.Spread, pair, c.spec.Pairs())
			groups[pair%slots] = append(groups[pair%slots], caller{string(tagName(tag)), begins})
		}
		for slot, callers := range groups {
			if len(callers) == 0 {
				continue
			}
			running.Go(func() error {
				select {
				case <-listener.Serving():
					return c.call(ctx, server, slot, callers)
				case <-ctx.Done():
					return nil
				}
			})
		}
	}
	return running.Wait()
}

// caller asks for a tag, from some time after the start on.
type caller struct {
	tag    string
	begins time.Duration
}

// slots is the number of equal parts of the time between two calls. Callers call at one time in
// each part.
const slots = 4

// call makes the calls of all callers of an instance in a slot until ctx ends.
func (c *cluster) call(ctx context.Context, server *room.Server, slot int, callers []caller) error {
	const every = time.Second / callsPerSecond
	passed := time.Since(c.counted.began)
	if !store.Sleep(ctx, passed.Truncate(every)+every*time.Duration(slots+slot)/slots-passed) {
		return nil
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		passed := time.Since(c.counted.began)
		for _, one := range callers {
			if passed < one.begins {
				continue
			}
			request := &marchv1.NextBatchRequest{Tag: one.tag, Count: c.spec.Rate / callsPerSecond}
			if _, err := server.NextBatch(ctx, request); err != nil && ctx.Err() == nil {
				return fmt.Errorf("tag %s: %w", one.tag, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// issued returns how many IDs all instances issued so far.
func (c *cluster) issued() (n int64, err error) {
	c.mu.Lock()
	servers := slices.Clone(c.mu.servers)
	c.mu.Unlock()
	for _, server := range servers {
		answer, err := server.GetInstance(c.t.Context(), &marchv1.GetInstanceRequest{})
		if err != nil {
			return 0, err
		}
		n += answer.GetStatus().GetIssued()
	}
	return n, nil
}

// move gives residues of the first room to the second.
func (c *cluster) move(ctx context.Context) (version int64, err error) {
	from, err := c.admin.Ledger.Refresh(ctx)
	if err != nil {
		return 0, err
	}
	made, err := c.admin.ChangeLayout(ctx, from, c.layout(10), "scale")
	return made.Layout.Version, err
}

// served returns an error if an instance does not report the layout of a version.
func (c *cluster) served(ctx context.Context, version int64) error {
	all, _, err := c.admin.Instances(ctx, "")
	if err == nil && len(all) != c.spec.Instances {
		err = fmt.Errorf("%d instances are registered, not %d", len(all), c.spec.Instances)
	}
	for _, i := range all {
		if i.Version != version {
			err = errors.Join(err, fmt.Errorf("instance %s reports version %d, not %d", i.Name, i.Version, version))
		}
	}
	return err
}

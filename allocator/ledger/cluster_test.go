package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

const prefix = "/march/default/"

// manage returns the administration of a ledger's cluster.
func manage(l *ledger.Ledger) *admin.Admin { return admin.New(l, admin.DefaultConfig()) }

var bg = context.Background()

// eventually polls until ok, for at most ten seconds.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("not within a minute: %s", what)
		}
	}
}

// cluster is a cluster in memory with the tag t, and what the tests of instances do in it.
type cluster struct{ *memcluster.Cluster }

func newCluster(tb ledgertest.TB, layout string) *cluster {
	tb.Helper()
	return &cluster{memcluster.New(tb, layout)}
}

// process is an instance with a connection of its own.
type process struct {
	*memcluster.Process
	c *cluster
}

// process returns an instance that has not joined yet.
func (c *cluster) process() *process { return &process{c.Process(), c} }

func (c *cluster) start(room allocator.Room, change ...func(*ledger.Config)) *process {
	c.Helper()
	return &process{c.Start(room, change...), c}
}

func (c *cluster) startAs(room allocator.Room, name allocator.Instance) *process {
	c.Helper()
	return &process{c.StartAs(room, name), c}
}

// markOf returns the mark of a tag in a room.
func (c *cluster) markOf(room allocator.Room, tag allocator.Tag) record.Mark {
	c.Helper()
	m, err := record.DecodeMark(store.KV{Key: "test", Value: c.Value("marks/" + string(room) + "/" + string(tag))})
	if err != nil {
		c.Fatalf("%v", err)
	}
	return m
}

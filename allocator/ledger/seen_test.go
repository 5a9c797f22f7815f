package ledger_test

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// An instance remembers each process that is registered once, whether it read all
// registrations together or a watch told it of one, and which of them left.
func TestSeesEachProcessOnce(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	const some = 7
	name := func(i int) allocator.Instance { return allocator.Instance(fmt.Sprint("i", i)) }
	for i := range some {
		c.startAs("b", name(i))
	}
	p := c.start("a")
	ctx, stop := context.WithCancel(bg)
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return p.Ledger.Run(ctx, func(ledger.TagChange) {}, nil) })
	running.Go(func() error { return p.Run(ctx) })
	defer func() {
		stop()
		if err := running.Wait(); err != nil {
			t.Error(err)
		}
	}()
	seen := func() map[string]record.SeenInstance {
		all := make(map[string]record.SeenInstance)
		for _, s := range p.Memory(bg, record.Question{}).Seen {
			if _, twice := all[s.Incarnation]; twice {
				t.Errorf("%s was remembered twice", s.Name)
			}
			all[s.Incarnation] = s
		}
		return all
	}
	eventually(t, "it reads which are there", func() bool { return len(seen()) == some+1 })
	eventually(t, "its watch is there", func() bool {
		if len(seen()) == some+1 {
			c.startAs("b", "late") // each is a process of its own
		}
		return len(seen()) > some+1
	})
	for i := some; i < 2*some; i++ {
		c.startAs("b", name(i))
	}
	q := c.startAs("b", "leaves")
	if err := q.Leave(bg); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its watch tells of others, and that one left", func() bool {
		there := make(map[allocator.Instance]bool)
		for _, s := range seen() {
			there[s.Name] = (s.Left > 0) == (s.Name == "leaves")
		}
		for i := range 2 * some {
			if !there[name(i)] {
				return false
			}
		}
		return there["leaves"]
	})
}

// A leave covers up to 100 earlier processes of its instance. Of these an instance notes only those
// that it knows: others would push processes out of its list that recover must ask.
func TestCoveredProcessesTakeNoPlace(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	shown := func(revision int64, v record.Registration) {
		p.Watched([]store.KV{{Key: prefix + "rooms/b/i1", Value: record.Encode(&v), ModRevision: revision}})
	}
	shown(c.Mem.Revision()+1, record.Registration{Incarnation: "known", Address: "i1.test:1"})
	covers := []string{"known"}
	for k := range 99 {
		covers = append(covers, fmt.Sprint("unknown", k))
	}
	shown(c.Mem.Revision()+2, record.Registration{Incarnation: "leaver", Address: "i1.test:1", Leaving: true,
		Covers: covers})
	left := make(map[string]bool)
	for _, s := range p.Memory(bg, record.Question{}).Seen {
		if s.Name == "i1" && s.Room == "b" {
			left[s.Incarnation] = s.Left != 0
		}
	}
	if len(left) != 2 || !left["known"] || !left["leaver"] {
		t.Errorf("noted, and whether they left: %v", left)
	}
}

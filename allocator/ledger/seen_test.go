package ledger_test

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
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
	running.Go(func() error { return p.Ledger.Run(ctx, func(ledger.TagChange) {}) })
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

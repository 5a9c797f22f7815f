package console

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

var bg = context.Background()

// nowhere is a listener that is never used.
type nowhere struct{ net.Listener }

// forgetAfter is how long an instance is silent before the consoles of a bubble forget it.
const forgetAfter = time.Hour

// bubble is a cluster whose consoles take a step only when a test says so.
type bubble struct {
	*memcluster.Cluster
	t *testing.T
}

func newBubble(t *testing.T) *bubble {
	return &bubble{memcluster.New(t, "100 a=0-50 b=50-100"), t}
}

// layout gives room a the residues below at, and room b the rest of a hundred.
func (b *bubble) layout(at int64) allocator.Layout {
	return allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: at},
		"b": {Lower: at, Upper: 100}}}
}

func (b *bubble) console() *Server {
	b.Helper()
	return b.consoleOver(b.Mem.Open())
}

func (b *bubble) consoleOver(etcd store.Store) *Server {
	b.Helper()
	cfg := DefaultConfig()
	cfg.Ledger, cfg.GRPC, cfg.ForgetAfter = ledgertest.Open(b, etcd), nowhere{}, forgetAfter
	s := must(New(cfg))(b.t)
	return s
}

func (b *bubble) join(in allocator.Room, name allocator.Instance, hold time.Duration) *ledger.Instance {
	b.Helper()
	i := must(ledgertest.Open(b, b.Mem.Open()).Join(bg, ledger.Registration{Room: in, Name: name,
		Address: "127.0.0.1:1", Hold: hold}))(b.t)
	return i
}

// beating runs an instance until the test ends.
func (b *bubble) beating(i *ledger.Instance) {
	ctx, stop := context.WithCancel(bg)
	var work sync.WaitGroup
	work.Go(func() {
		if err := i.Run(ctx); err != nil {
			b.Errorf("Run: %v", err)
		}
	})
	b.t.Cleanup(func() { stop(); work.Wait() })
}

// registered returns the instances that a console lists, with ! for the silent.
func (b *bubble) registered(s *Server) string {
	b.Helper()
	list := must(s.instances(bg))(b.t)
	var all []string
	for _, i := range list {
		text := string(i.ID())
		if !i.Alive {
			text += "!"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// looks has consoles look for silent instances for a while, as a running console does.
func (b *bubble) looks(d time.Duration, consoles ...*Server) {
	b.Helper()
	for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(silenceEvery) {
		for _, s := range consoles {
			if err := s.forgetSilent(bg); err != nil {
				b.Fatalf("after %v: %v", d-time.Until(until), err)
			}
		}
	}
}

// migrate starts a migration that gives residues of room a to b.
func (b *bubble) migrate(hold time.Duration) record.Migration {
	b.Helper()
	from := must(b.Admin.Ledger.Refresh(bg))(b.t)
	planned := must(plan.New(from.Layout, b.layout(25), false))(b.t)
	m := must(b.Admin.StartMigration(bg, from, record.Migration{From: planned.From, Target: planned.Target,
		Moves: record.MovesOf(planned.Moves...), Hold: record.DurationOf(hold)}, "test"))(b.t)
	return m
}

func (b *bubble) read(id string) record.Migration {
	b.Helper()
	m := must(b.Admin.Migration(bg, id))(b.t)
	return m
}

// steps has consoles take their steps for a while.
func (b *bubble) steps(d time.Duration, consoles ...*Server) {
	b.Helper()
	for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(time.Second) {
		for _, s := range consoles {
			if _, err := s.driveOnce(bg); err != nil {
				b.Fatalf("step: %v", err)
			}
		}
	}
}

// must returns the value of a call that may not fail: must(call())(t).
func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}

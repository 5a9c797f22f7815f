package ledger_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// beating runs p's heartbeats in a bubble; stop ends them and returns Run's
// error.
func beating(p *process) (stop func() error) {
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-done
	}
}

// heard returns when the last heartbeat of an instance was sent, and what tells it
// from others.
func (c *cluster) heard(id record.InstanceID) (time.Time, string) {
	c.Helper()
	all, _, err := c.Admin.Instances(bg, "")
	if err != nil {
		c.Fatalf("instances: %v", err)
	}
	for _, i := range all {
		if i.ID() == id {
			return i.LastSeen, i.Beat
		}
	}
	c.Fatalf("%s is not registered", id)
	return time.Time{}, ""
}

// A first try to register that comes late must not throw out the second.
func TestJoinUnknownOutcome(t *testing.T) {
	for _, fate := range ledgertest.Unknown {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "10 a=0-5 b=5-10")
			p := c.process()
			p.Ledger = ledgertest.Open(t, p.Conn)
			p.Conn.Next(ledgertest.Fate{Name: fate, N: 1000}, 1, ledgertest.PutsUnder("rooms/"))
			as := ledger.Registration{Room: "a", Name: "one", Address: "127.0.0.1:1", Build: "test"}
			var err error
			if p.Instance, err = p.Ledger.Join(bg, as); fate != ledgertest.Twice {
				ledgertest.WantKind(t, err, allocator.Unavailable)
				p.Instance, err = p.Ledger.Join(bg, as)
			}
			if err != nil {
				t.Fatal(err)
			}
			c.Mem.Arrive()
			p.Lease(10)
			for _, version := range []int64{1, 1} {
				p.Conn.Next(ledgertest.Fate{Name: fate, N: 1000}, 1, ledgertest.PutsUnder("rooms/"))
				if err := p.Serve(bg, version); err != nil {
					ledgertest.WantKind(t, err, allocator.Unavailable)
					_ = p.Serve(bg, version) // may first learn that it was done
					if err := p.Serve(bg, version); err != nil {
						t.Errorf("Serve, for the third time: %v", err)
					}
				}
				c.Mem.Arrive()
				p.Lease(10)
			}
			p.Conn.Next(ledgertest.Fate{Name: fate, N: 1000}, 1, func(txn store.Txn) bool {
				return len(txn.Then) > 0 && txn.Then[0].Delete != ""
			})
			if err := p.Leave(bg); err != nil {
				ledgertest.WantKind(t, err, allocator.Unavailable)
				if err := p.Leave(bg); err != nil {
					t.Errorf("leaving again: %v", err)
				}
			}
			if keys := c.Mem.Keys(prefix + "rooms/"); len(keys) > 0 {
				t.Errorf("left behind: %v", keys)
			}
			c.Check()
		})
	}
}

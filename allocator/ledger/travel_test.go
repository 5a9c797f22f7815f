package ledger_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// isHalted returns what halted the cluster, empty where nothing did.
func (c *cluster) isHalted() string {
	v := c.Value("epoch")
	if !bytes.Contains(v, []byte(`"halted"`)) {
		return ""
	}
	return string(v)
}

// A log that is just born grows to many times its index within seconds. The beat
// follows it, in few writes: so a restore is seen that comes before the beat is old.
func TestBeatFollowsAYoungLog(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	backup, written := int64(0), map[string]bool{}
	for i := range 2000 {
		if i == 1500 {
			backup = c.Mem.Revision()
		}
		p.Ledger.Uncheck()
		p.Lease(1)
		written[string(c.Value("beat"))] = true
	}
	if len(written) > 12 {
		t.Errorf("%d beats were written", len(written))
	}
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	for i := range 500 { // what others write before a process looks that would know
		c.Corrupt("surprise", fmt.Append(nil, i))
	}
	c.Corrupt("surprise", nil)
	_, err := c.startAs("a", "new").TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.WentBack, "raft index is", "restored")
}

// twoMembers answers statuses from another member than transactions.
type twoMembers struct{ *ledgertest.Conn }

func (s twoMembers) Status(ctx context.Context) (store.Status, error) {
	status, err := s.Conn.Status(ctx)
	status.MemberID++
	return status, err
}

// Beat and status of two members say nothing: nothing is leased behind a
// balancer, nor halted.
func TestBeatThroughABalancer(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	_, err := ledgertest.Open(t, twoMembers{c.Mem.Open()}).Join(bg, ledger.Registration{Room: "a", Name: "one"})
	ledgertest.WantKind(t, err, allocator.Unavailable, "the member that answers, changed")
	if why := c.isHalted(); why != "" {
		t.Errorf("halted: %s", why)
	}
	c.Check()
}

// Halt, under every fate of its transaction: halted once, and said so.
func TestHalt(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			p := c.start("a")
			p.Lease(10)
			from, _ := c.Admin.Ledger.Refresh(bg)
			conn := c.Mem.Open()
			met := 0
			conn.Fate(func(txn store.Txn) ledgertest.Fate {
				if met++; ledgertest.PutsUnder("epoch")(txn) && met < 10 {
					met = 10
					return ledgertest.Fate{Name: fate, N: 3}
				}
				return ledgertest.Fate{}
			})
			l := ledgertest.Open(t, conn)
			h, err := l.Halt(bg, "ann", "a restore")
			if err != nil { // unknown, or wrong cluster: again, as an operator would
				h, err = l.Halt(bg, "ann", "a restore")
			}
			if err != nil || h.By != "ann" || h.Why != "a restore" || met < 10 {
				t.Fatalf("%+v, %v, fault met %v", h, err, met >= 10)
			}
			c.Mem.Arrive()
			was := c.isHalted()
			if h, err := c.Admin.Ledger.Halt(bg, "bob", "me too"); err != nil || h.By != "ann" {
				t.Errorf("a second halt: %+v, %v", h, err)
			}
			if c.isHalted() != was || was == "" {
				t.Errorf("halted %s, then %s", was, c.isHalted())
			}
			_, err = p.TryLease("t", 10)
			ledgertest.WantKind(t, err, allocator.WentBack, "halted by ann", "a restore")
			_, err = p.TryLease("t", 10)
			ledgertest.WantKind(t, err, allocator.WentBack, "halted by ann")
			// No process changes a layout meanwhile, whether it has heard of the halt or not.
			_, err = c.Admin.ChangeLayout(bg, from, ledgertest.Lay(t, "10 a=0-10"), "test")
			ledgertest.WantKind(t, err, allocator.WentBack, "halted by ann")
			halts := 0
			audits, _, _ := c.Admin.Audits(bg, "", 100)
			for _, a := range audits {
				if a.Action == "halt" && a.Actor == "ann" {
					halts++
				}
			}
			if halts != 1 {
				t.Errorf("%d audit entries", halts)
			}
			c.Check()
		})
	}
}

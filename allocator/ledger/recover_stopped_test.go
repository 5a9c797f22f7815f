package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

func stopped(ids ...record.InstanceID) func(*recovery.Config) {
	return func(cfg *recovery.Config) { cfg.Stopped = ids }
}

// Where the operator says that the machines of all lost instances are off, time-ordered IDs go on
// half a minute later, and not after 20 minutes; but not where a caller's process may have a worker.
func TestRecoverOfStoppedMachines(t *testing.T) {
	const whole, short = record.LongestWindow + 2*record.MaxAhead, 3*record.MaxAhead + time.Second
	for _, test := range []struct {
		name   string
		saw    bool // a mirror saw all
		lent   bool // and that the room lent a worker
		named  func(*recovery.Config)
		after  time.Duration
		reason string
	}{
		{"left out", true, false, without("b/i2"), whole, "--stopped b/i2"},
		{"off", true, false, stopped("b/i2"), short, "clocks may differ"},
		{"off, and unseen", false, false, stopped("b/i2"), whole, "no mirror saw all"},
		{"off, and a lender", true, true, stopped("b/i2"), whole, "workers that room b lent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			a, b := c.start("a"), c.start("b")
			a.Lease(10)
			b.Lease(10)
			saw := c.mirror()
			if test.lent {
				id := record.WorkerID{Bits: 10, Number: 600}
				lent := record.Worker{Room: "b", Instance: "i2", Incarnation: "x", From: 1, Until: 2, Clock: 1,
					Caller: true, Stamp: record.Stamp{Epoch: "e", Revision: 1}}
				c.Corrupt("windows/b/"+id.Padded(), lent.Encode())
				saw.look()
			}
			ask := []func(*recovery.Config){test.named, margin(2)}
			if test.saw {
				ask = append(ask, witness(saw))
			}
			clock := &wall{time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)}
			report := c.recoverAt(clock, []*process{a}, ask...)
			if got := report.NotBefore.Sub(clock.Time); got != test.after ||
				!strings.Contains(report.Waits, test.reason) {
				t.Errorf("windows begin after %v, as %q; want %v, as %q", got, report.Waits, test.after, test.reason)
			}
			if epoch := value[record.Epoch](c, "epoch"); epoch.NotBefore != report.NotBefore.UnixMilli() {
				t.Errorf("the epoch has %d", epoch.NotBefore)
			}
		})
	}
}

// --stopped is refused for an instance that answered, and for a name of a room that never was, with
// nothing changed.
func TestStoppedIsRefused(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.start("a"), c.start("b")
	a.Lease(10)
	b.Lease(10)
	before := string(c.Value("epoch"))
	for id, want := range map[record.InstanceID]string{a.id(): "--stopped " + string(a.id()) + ": it answered",
		"c/i2": "--stopped c/i2: there never was a room c"} {
		_, err := c.recover(c.Mem.Open(), []*process{a, b}, stopped(id), margin(1))
		ledgertest.WantKind(t, err, allocator.Refused, want)
	}
	if now := string(c.Value("epoch")); now != before {
		t.Errorf("the epoch is %s", now)
	}
}

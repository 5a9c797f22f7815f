package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// An instance that does not answer is named, and nothing goes on without it until
// the operator says so; nothing is halted before that. An instance that was
// restarted without its memory counts as not answered.
func TestRecoverNamesWhatDidNotAnswer(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.startAs("a", "one"), c.startAs("b", "two")
	a.Lease(10)
	b.Lease(10)
	backup := c.Mem.Revision()
	a.Lease(1000)
	b.Lease(1000)
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	again := c.startAs("b", "two") // in place of b, whose registration the store still has
	mark, halted := c.Mark("a"), c.isHalted()
	report, err := c.recover(c.Mem.Open(), []*process{again})
	ledgertest.WantKind(t, err, allocator.Refused, "not every instance answered",
		"--journal FILE", "\n  --stopped a/one if its machine is off, otherwise --without a/one",
		"\n  --without b/two: it answers, without the memory")
	if got := missing(report); !slices.Equal(got, []string{"a/one", "b/two"}) ||
		!strings.Contains(report.Missing[0].Why, "no process is at") ||
		!strings.Contains(report.Missing[1].Why, "does not have this process's memory") {
		t.Errorf("missing: %+v", report.Missing)
	}
	if after := c.Mark("a"); after.Next != mark.Next || c.isHalted() != halted {
		t.Errorf("the mark went from %+v to %+v; halted %q", mark, after, c.isHalted())
	}
	_, err = c.recover(c.Mem.Open(), []*process{again}, without("a/one"))
	ledgertest.WantKind(t, err, allocator.Refused, "--without b/two")
	report = c.mustRecover([]*process{again}, without("a/one", "b/two"), margin(2))
	if report.Margin < 2 || report.Total != report.Margin {
		t.Errorf("margin %d, total %d", report.Margin, report.Total)
	}
	again.hear()
	again.Lease(10)
	fresh := c.startAs("a", "new")
	fresh.Lease(10)
	c.Check()
	report, err = c.recover(c.Mem.Open(), []*process{again, fresh})
	if err != nil || len(report.Missing) > 0 {
		t.Errorf("the next recover: %+v, %v", report.Missing, err)
	}
}

// An instance that answered at first, and then does not accept the barrier, counts as
// not answered: what it leased in between is not known. Where the operator said to go
// on without it, the margin is for it, too, though none was shown before the halt.
func TestRecoverLeavesAMarginForWhatFallsSilent(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.startAs("a", "one"), c.startAs("b", "two")
	a.Lease(10)
	b.Lease(10)
	all := asking([]*process{a, b})
	report := c.mustRecover(nil, without("b/two"), margin(2), func(cfg *recovery.Config) {
		cfg.Ask = func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			if q.Barrier != nil && s.Name == "two" {
				return record.Memory{}, allocator.Errorf(allocator.Unavailable, "it fell silent")
			}
			return all(ctx, s, q, use)
		}
	})
	if got := missing(report); !slices.Equal(got, []string{"b/two"}) || report.Margin < 1 ||
		report.Total != report.Margin {
		t.Errorf("missing %v, margin %d, total %d", got, report.Margin, report.Total)
	}
}

// Recover names the memories that are lost, however often their process was started again
// since. It names none if the journal is there.
func TestRecoverNamesLostMemories(t *testing.T) {
	for _, journal := range []bool{false, true} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		dir := ""
		if journal {
			dir = t.TempDir()
		}
		start := func() *process {
			p := c.mustStartWith(t, "a", "one", dir)
			p.Lease(10)
			return p
		}
		p := start()
		backup := c.Mem.Revision()
		for range 2 {
			_ = p.Close()
			p = start()
		}
		_ = p.Close()
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		p = c.mustStartWith(t, "a", "one", dir) // sees it and halts
		_ = p.Close()
		p = c.mustStartWith(t, "a", "one", dir)
		report, err := c.recover(c.Mem.Open(), []*process{p})
		switch {
		case journal && err != nil:
			t.Errorf("with the journal: %+v, %v", report.Missing, err)
		case !journal && (allocator.KindOf(err) != allocator.Refused || len(report.Missing) != 2):
			// The one that the backup knows, and the one that was started after it.
			t.Errorf("without: %+v, %v", report.Missing, err)
		}
	}
}

// Instances that left in good order before the backup are not asked, and those that
// left after it are; no answer of 500 remembered addresses holds the recover up while
// leasing is halted. Each of them once had to be named, and was asked one by one
// under the halt.
func TestRecoverAsksOnlyWhatMayHaveLeased(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	ctx, stop := context.WithCancel(bg)
	ran := make(chan error, 1)
	go func() { ran <- p.Ledger.Run(ctx, func(ledger.TagChange) {}) }()
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	p.Lease(10)
	knows := func(name allocator.Instance, left bool) bool {
		return slices.ContainsFunc(p.Memory(bg, record.Question{}).Seen, func(s record.SeenInstance) bool {
			return s.Name == name && (s.Left > 0) == left
		})
	}
	eventually(t, "its watch is there", func() bool { c.startAs("b", "first"); return knows("first", false) })
	leave := func(name allocator.Instance) {
		q := c.startAs("b", name)
		q.Lease(10)
		eventually(t, "it sees "+string(name), func() bool { return knows(name, false) })
		if err := q.Leave(bg); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it sees "+string(name)+" leave", func() bool { return knows(name, true) })
	}
	leave("before")
	c.Corrupt("beat", nil)
	p.hear()
	p.Lease(10) // writes a beat
	backup := c.Mem.Revision()
	leave("after")
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	var mu sync.Mutex
	asked := make(map[string]int)
	count := func(cfg *recovery.Config) {
		ask := cfg.Ask
		cfg.Ask = func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			mu.Lock()
			asked[string(s.Name)]++
			mu.Unlock()
			return ask(ctx, s, q, use)
		}
		memory := record.Memory{UUID: p.Memory(bg, record.Question{}).UUID, Room: "b", Name: "second",
			Incarnations: []string{"second"}}
		for i := range 500 {
			name := fmt.Sprint("silent-", i)
			memory.Seen = append(memory.Seen, record.SeenInstance{Room: "b", Name: allocator.Instance(name),
				Incarnation: name, Address: name + ":1"})
			cfg.Without = append(cfg.Without, record.InstanceID("b/"+name))
		}
		cfg.Memories = []record.Memory{memory}
		cfg.Without = append(cfg.Without, "b/first")
	}
	delete(c.Issued["t"], "b") // no memory has that
	report, err := c.recover(c.Mem.Open(), []*process{p}, count)
	ledgertest.WantKind(t, err, allocator.Refused, "--without b/after")
	if !slices.Equal(report.LeftBefore, []record.InstanceID{"b/before"}) {
		t.Errorf("left before: %v", report.LeftBefore)
	}
	clear(asked)
	c.mustRecover([]*process{p}, count, margin(2), func(cfg *recovery.Config) {
		cfg.Without = append(cfg.Without, "b/after")
	})
	if asked["before"] != 0 || asked["after"] != 1 || asked["silent-7"] != 1 || asked[string(p.Name())] != 3 {
		t.Errorf("asked: before %d, after %d, silent %d, alive %d", asked["before"], asked["after"],
			asked["silent-7"], asked[string(p.Name())])
	}
	c.Check()
}

// Instances are not forgotten while leasing is halted, nor do they leave: recover must
// know of them.
func TestNoInstanceIsForgottenWhileHalted(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.startAs("a", "one")
	p.Lease(10)
	if _, err := c.Admin.Ledger.Halt(bg, "ann", "a restore"); err != nil {
		t.Fatal(err)
	}
	ledgertest.WantKind(t, c.Admin.Forget(bg, "a", "one", "bob"), allocator.WentBack, "halted by ann",
		"march recover --without")
	ledgertest.WantKind(t, p.Leave(bg), allocator.WentBack, "halted by ann")
	if all := c.instances("a"); len(all) != 1 {
		t.Fatalf("%+v", all)
	}
	c.mustRecover([]*process{p})
	p.hear()
	p.Lease(10)
	if err := p.Leave(bg); err != nil {
		t.Error(err)
	}
	c.Check()
}

package ledger_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// An instance that does not answer is named, and nothing goes on without it,
// until that is said. One that was restarted without its memory counts as not
// answered.
func TestRecoverNamesWhoDidNotAnswer(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	a, b := c.startAs("a", "one"), c.startAs("b", "two")
	a.lease(10)
	b.lease(10)
	backup := c.mem.Revision()
	a.lease(1000)
	b.lease(1000)
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	again := c.startAs("b", "two") // in place of b, whose registration the store still has
	mark := c.mark("a")
	report, err := c.recover(c.mem.Open(), []*process{again})
	wantKind(t, err, allocator.Refused, "not all instances answered", "--journal FILE", "--without a/one,b/two")
	if got := missing(report); !slices.Equal(got, []string{"a/one", "b/two"}) || !strings.Contains(report.Missing[0].Why, "nobody is at") ||
		!strings.Contains(report.Missing[1].Why, "does not have this process's memory") {
		t.Errorf("missing: %+v", report.Missing)
	}
	if c.mark("a") != mark || c.isHalted() == "" {
		t.Errorf("the mark went from %+v to %+v; halted %q", mark, c.mark("a"), c.isHalted())
	}
	_, err = c.recover(c.mem.Open(), []*process{again}, without("a/one"))
	wantKind(t, err, allocator.Refused, "not all instances answered")
	if _, err = c.recover(c.mem.Open(), []*process{again}, without("a/one", "b/two")); err != nil {
		t.Fatal(err)
	}
	again.lease(10)
	fresh := c.startAs("a", "new")
	fresh.lease(10)
	c.check()
	// The next recover has nothing to do with that, be there somebody who looked
	// around before b/two has registered under the new epoch.
	seer := c.startAs("a", "seer")
	ctx, stop := context.WithCancel(bg)
	ran := make(chan error, 1)
	go func() { ran <- seer.Run(ctx) }()
	eventually(t, "somebody looked around", func() bool {
		m, err := seer.Report(false)
		return err == nil && len(m.Seen) == 3
	})
	stop()
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if err := again.Serve(bg, again.Version()); err != nil {
		t.Fatal(err)
	}
	report, err = c.recover(c.mem.Open(), []*process{again, fresh, seer})
	if err != nil || len(report.Missing) > 0 {
		t.Errorf("the next recover: %+v, %v", report.Missing, err)
	}
}

// What nobody remembers any longer is named, however often the process was
// started again since; where its journal is there, nothing is.
func TestRecoverNamesLostMemories(t *testing.T) {
	for _, journal := range []bool{false, true} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		dir := ""
		if journal {
			dir = t.TempDir()
		}
		start := func() *process {
			p := c.mustStartWith(t, "a", "one", dir)
			p.lease(10)
			return p
		}
		p := start()
		backup := c.mem.Revision()
		for range 2 {
			_ = p.Close()
			p = start()
		}
		_ = p.Close()
		c.mem.Restore(backup, 0, ledgertest.ClusterID)
		p = c.mustStartWith(t, "a", "one", dir) // sees it and halts
		_ = p.Close()
		p = c.mustStartWith(t, "a", "one", dir)
		report, err := c.recover(c.mem.Open(), []*process{p})
		switch {
		case journal && err != nil:
			t.Errorf("with the journal: %+v, %v", report.Missing, err)
		case !journal && (allocator.KindOf(err) != allocator.Refused || len(report.Missing) != 2):
			// The one that the backup knows, and the one that was started after it.
			t.Errorf("without: %+v, %v", report.Missing, err)
		}
	}
}

// A small tag that the margin brings to its limit is named before that is done.
func TestRecoverNamesTagsAtTheirLimit(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.tag("small", func(s *ledger.TagSettings) { s.Limit = 5000 })
	p := c.start("a")
	p.lease(10)
	for margin, want := range map[int64][]allocator.Tag{0: {"small"}, 100: nil} {
		report, err := c.recover(c.mem.Open(), []*process{p}, func(cfg *ledger.RecoverConfig) { cfg.Apply, cfg.Margin = false, margin })
		if err != nil || !slices.Equal(report.AtLimit, want) {
			t.Errorf("margin %d: %v, %v", margin, report.AtLimit, err)
		}
	}
}

// A limit that was raised since the backup does not cut the margin, as the backup
// has it or known to be passed: who did not answer may have leased above it. The
// tag is exhausted until somebody raises its limit, and goes on above all then.
func TestRecoverAboveAnOldLimit(t *testing.T) {
	for _, known := range []bool{false, true} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		c.update("t", func(s *ledger.TagSettings) { s.Limit = 5000; s.Chain.MaxStep = 1000; s.Chain.MinStep = 10 })
		a, b, lost := c.start("a"), c.start("b"), c.start("a")
		for _, p := range []*process{a, b, lost} {
			p.lease(10)
		}
		backup := c.mem.Revision()
		c.update("t", func(s *ledger.TagSettings) { s.Limit = 1_000_000 })
		a.lease(2700) // to 5420
		if known {
			a.lease(10)
		}
		held := lost.lease(500).Last()
		c.mem.Restore(backup, 0, ledgertest.ClusterID)
		living := []*process{b}
		if known {
			living = append(living, a)
		}
		report, err := c.recover(c.mem.Open(), living, without("a/i1", "a/i3"), func(cfg *ledger.RecoverConfig) { cfg.Margin = 10_000 })
		if err != nil || !known && !slices.Equal(report.AtLimit, []allocator.Tag{"t"}) {
			t.Fatalf("%+v, %v", report, err)
		}
		verify(t, c)
		_, err = b.tryLease("t", 10)
		wantKind(t, err, allocator.Exhausted, "limit 5000")
		c.update("t", func(s *ledger.TagSettings) { s.Limit = 1_000_000 })
		if seg := b.lease(10); seg.First <= held {
			t.Errorf("known %v: leased %v, a process that did not answer holds up to %d", known, seg, held)
		}
		verify(t, c)
		c.check()
	}
}

// Nobody is forgotten while leasing is halted, nor leaves: recover must know of
// them.
func TestNobodyIsForgottenWhileHalted(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.startAs("a", "one")
	p.lease(10)
	if _, err := c.admin.Halt(bg, "ann", "a restore"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, c.admin.Forget(bg, "a", "one", "bob"), allocator.WentBack, "halted by ann", "march recover --without")
	wantKind(t, p.Leave(bg), allocator.WentBack, "halted by ann")
	instances, err := c.admin.Instances(bg, "")
	if err != nil || len(instances) != 1 {
		t.Fatalf("%+v, %v", instances, err)
	}
	if _, err := c.recover(c.mem.Open(), []*process{p}); err != nil {
		t.Fatal(err)
	}
	p.lease(10)
	if err := p.Leave(bg); err != nil {
		t.Error(err)
	}
	c.check()
}

// Who stops right after a restore that nobody has seen yet sees it, and stays
// registered.
func TestLeaveSeesARestore(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.startAs("a", "one")
	p.lease(10)
	backup := c.mem.Revision()
	p.lease(10)
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	p.ledger.Uncheck() // the connection broke
	wantKind(t, p.Leave(bg), allocator.WentBack, "halted by instance a/one")
	if instances, err := c.admin.Instances(bg, ""); err != nil || len(instances) != 1 {
		t.Errorf("%+v, %v", instances, err)
	}
	if _, err := c.recover(c.mem.Open(), []*process{p}); err != nil {
		t.Fatal(err)
	}
	c.start("a").lease(10)
	c.check()
}

// A registration that was found gone, and is there again by the time that etcd was
// looked at, is not lost: another goroutine of ours wrote it.
func TestRegisteredAgainMeanwhile(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.startAs("a", "one")
	p.lease(10)
	value, met := c.value("rooms/a/one"), false
	c.corrupt("rooms/a/one", nil)
	p.conn.Fate(func(txn ledger.Txn) ledgertest.Fate {
		if !met && len(txn.Then) == 1 && txn.Then[0].Delete == prefix+"beat" { // the look
			met = true
			c.corrupt("rooms/a/one", value)
		}
		return ledgertest.Fate{}
	})
	if err := p.Serve(bg, 1); !met || err != nil && allocator.KindOf(err) == allocator.Refused {
		t.Errorf("looked %v, %v", met, err)
	}
	p.lease(10)
	c.check()
}

// Forget compares the epoch: that a mod revision is the same says nothing after
// a restore.
func TestForgetComparesTheEpoch(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.startAs("a", "one")
	p.lease(10)
	conn := c.mem.Open()
	conn.Fate(func(txn ledger.Txn) ledgertest.Fate {
		if len(txn.Then) > 0 && txn.Then[0].Delete != "" {
			c.corrupt("epoch", epochValue(2))
		}
		return ledgertest.Fate{}
	})
	wantKind(t, open(t, conn).Forget(bg, "a", "one", "bob"), allocator.Conflict, "the epoch changed")
	conn.Fate(nil)
	p.lease(10)
	if err := open(t, conn).Forget(bg, "a", "one", "bob"); err != nil {
		t.Error(err)
	}
}

// Of two recovers at once, the one that another overtakes ends, whatever it was
// doing, and takes nothing with it: not what it found, nor who it asked. The
// other one is whole.
func TestRecoversAtOnce(t *testing.T) {
	overtaken := 0
	for at := 1; ; at++ {
		c := newCluster(t, "100 a=0-50 b=50-100")
		a, b := c.start("a"), c.start("b")
		a.lease(10)
		b.lease(10)
		backup := c.mem.Revision()
		a.lease(1000)
		c.mem.Restore(backup, 0, ledgertest.ClusterID)
		living := []*process{a, b}
		conn := c.mem.Open()
		met, other := 0, (*ledger.RecoverReport)(nil)
		conn.Fate(func(ledger.Txn) ledgertest.Fate {
			if met++; met == at {
				var err error
				if other, err = c.recover(c.mem.Open(), living); err != nil {
					t.Errorf("the other one, before transaction %d: %v", at, err)
				}
				for _, p := range living {
					p.ledger.Uncheck()
					p.lease(10)
				}
			}
			return ledgertest.Fate{}
		})
		report, err := c.recover(conn, living)
		if err != nil {
			wantKind(t, err, allocator.Conflict)
			overtaken++
			report = other
		}
		// It may have ended just before the other one began.
		if is := string(c.value("epoch")); report == nil || !strings.Contains(is, report.Epoch) && (other == nil || !strings.Contains(is, other.Epoch)) {
			t.Fatalf("before transaction %d: %v, the epoch is %s, the report %+v", at, err, is, report)
		}
		for _, p := range living {
			p.lease(10)
		}
		verify(t, c)
		c.check()
		if met < at {
			break // there was no such transaction
		}
	}
	if overtaken < 5 {
		t.Errorf("%d were overtaken", overtaken)
	}
}

// A recover that another overtakes while it asks bars nobody any longer: who was
// barred in the epoch that the other one began would lease nothing in it.
func TestOvertakenRecoverBarsNobody(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	living := []*process{c.start("a"), c.start("a"), c.start("b")}
	asked := 0
	_, err := c.recover(c.mem.Open(), living, func(cfg *ledger.RecoverConfig) {
		ask := cfg.Ask
		cfg.Ask = func(ctx context.Context, s ledger.SeenInstance, bar bool) (ledger.Memory, error) {
			m, err := ask(ctx, s, bar)
			if asked++; asked == 1 {
				if _, err := c.recover(c.mem.Open(), living); err != nil {
					t.Errorf("the other one: %v", err)
				}
				for _, p := range living {
					p.lease(10)
				}
			}
			return m, err
		}
	})
	wantKind(t, err, allocator.Conflict, "another `march recover`")
	if asked != 1 {
		t.Errorf("%d were asked", asked)
	}
	for _, p := range living {
		p.lease(10)
	}
	c.check()
}

// Who registered after the backup was made, and does not run any longer, is known
// by those that watched, at once: it is named.
func TestRecoverKnowsWhoCameLate(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	ctx, cancel := context.WithCancel(bg)
	ran := make(chan error, 1)
	go func() { ran <- p.ledger.Run(ctx, func(ledger.TagChange) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	p.lease(10)
	knows := func(name allocator.Instance) bool {
		m, err := p.Report(false)
		return err == nil && slices.ContainsFunc(m.Seen, func(s ledger.SeenInstance) bool { return s.Name == name })
	}
	eventually(t, "its watch is there", func() bool { c.startAs("b", "first"); return knows("first") })
	backup := c.mem.Revision()
	c.startAs("b", "late").lease(10)
	eventually(t, "it is told of a registration", func() bool { return knows("late") })
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	report, err := c.recover(c.mem.Open(), []*process{p}, func(cfg *ledger.RecoverConfig) { cfg.Without = []ledger.InstanceID{"b/first"} })
	wantKind(t, err, allocator.Refused, "b/late")
	if !slices.Contains(missing(report), "b/late") {
		t.Errorf("%+v", report)
	}
}

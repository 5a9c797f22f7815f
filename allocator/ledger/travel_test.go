package ledger_test

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// isHalted returns what halted the cluster, empty where nothing did.
func (c *cluster) isHalted() string {
	v := c.value("epoch")
	if !bytes.Contains(v, []byte(`"halted"`)) {
		return ""
	}
	return string(v)
}

// A process that lived on sees that etcd was restored, whatever it remembers, and so does
// a process without any memory. Leasing is halted for all.
func TestRestoreIsSeen(t *testing.T) {
	for _, bump := range []int64{0, 1_000_000_000} {
		for name, alive := range map[string]bool{"by a process that lived on": true, "by a newcomer": false} {
			for _, leased := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, bump %d, leased since %v", name, bump, leased), func(t *testing.T) {
					c := newCluster(t, "100 a=0-50 b=50-100")
					p := c.start("a")
					p.lease(10)
					backup := c.mem.Revision()
					if leased {
						p.lease(10)
					}
					c.start("b").lease(10)
					p.ledger.Uncheck()
					p.lease(10)
					c.mem.Restore(backup, bump, ledgertest.ClusterID)
					if !alive {
						p = c.startAs("a", "new")
					}
					seg, err := p.tryLease("t", 10)
					wantKind(t, err, allocator.WentBack, "halted by instance a/")
					if c.isHalted() == "" {
						t.Errorf("not halted; leased %v", seg)
					}
					if _, err := c.admin.CreateTag(bg, "u", record.DefaultTag(), "test"); err != nil {
						t.Fatal(err)
					}
					_, err = p.tryLease("u", 1)
					wantKind(t, err, allocator.WentBack)
					audits, _, err := c.admin.Audits(bg, "", 10)
					if err != nil || len(audits) < 2 || audits[1].Action != "halt" || audits[1].Object != "epoch" {
						t.Errorf("audit: %+v, %v", audits, err)
					}
				})
			}
		}
	}
}

// A restart of etcd is none of that, nor is another connection.
func TestRestartIsNoRestore(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	for range 3 {
		p.lease(10)
		c.mem.Break()
		p.lease(10)
		p.ledger.Uncheck()
		p.lease(10)
	}
	if why := c.isHalted(); why != "" {
		t.Errorf("halted: %s", why)
	}
	c.check()
}

// A lease that went through another connection than the one that was checked is
// lost, not issued.
func TestLeaseThroughAnUncheckedConnection(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.lease(10)
	before := c.mark("a").Next
	p.conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if writes("marks/")(txn) && c.mark("a").Next == before {
			c.mem.Break()
		}
		return ledgertest.Fate{}
	})
	if seg := p.lease(10); seg.First == before || c.mark("a").Next <= seg.First {
		t.Errorf("leased %v, the mark was %d", seg, before)
	}
	c.check()
}

// An epoch that is there again after another is time going back; a new one is
// not, and begins revisions and layout versions anew.
func TestEpochs(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.lease(10)
	first := c.value("epoch")
	second := c.mustRecover([]*process{p}).Epoch
	p.hear()
	p.lease(10)
	c.corrupt("epoch", first)
	p.ledger.Uncheck()
	_, err := p.tryLease("t", 10)
	wantKind(t, err, allocator.WentBack, "is in force again, after "+second)
	if why := c.isHalted(); !strings.Contains(why, "in force again") {
		t.Errorf("halted: %q", why)
	}
	c.mustRecover([]*process{p})
	p.hear()
	p.lease(10)
	c.check()
}

// After a restore and a new epoch a process that lived on goes on by itself: revisions
// are below those that it saw, and so are layout versions.
func TestGoesOnUnderANewEpoch(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.lease(10)
	ctx, cancel := context.WithCancel(bg)
	ran := make(chan error, 1)
	go func() { ran <- p.ledger.Run(ctx, func(ledger.TagChange) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	backup := c.mem.Revision()
	c.move("100 a=0-60 b=60-100")
	c.move("100 a=0-70 b=70-100")
	p.lease(10)
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	_, err := p.tryLease("t", 10)
	wantKind(t, err, allocator.WentBack)
	if r, _ := p.ledger.Layout(); r.Layout.Version != 3 {
		t.Errorf("while it is halted, layout version %d is served; want 3, as before", r.Layout.Version)
	}
	wantKind(t, p.ledger.Leasable(), allocator.WentBack)
	version := c.mustRecover([]*process{p}).Layout.Version
	eventually(t, "the watch tells of the new epoch", func() bool { r, _ := p.ledger.Layout(); return r.Layout.Version == version })
	if seg := p.lease(10); seg.Version != version {
		t.Errorf("leased %v", seg)
	}
	c.admin = manage(open(t, c.mem.Open()))
	c.move("100 a=0-80 b=80-100")
	eventually(t, "the watch goes on", func() bool { r, _ := p.ledger.Layout(); return r.Layout.Version == version+1 })
}

// The beat is written where there is none, and where it is old; and never
// downwards.
func TestBeat(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	read := func() (index int, at string) {
		m := regexp.MustCompile(`"raft_index":"(\d+)".*"time":"([^"]*)"`).FindSubmatch(c.value("beat"))
		if m == nil {
			t.Fatalf("beat: %s", c.value("beat"))
		}
		_, _ = fmt.Sscan(string(m[1]), &index)
		return index, string(m[2])
	}
	look := func() {
		p.ledger.Uncheck()
		p.lease(1)
	}
	first, at := read()
	look()
	if again, then := read(); again != first || then != at {
		t.Errorf("a fresh beat was written again: %d at %s, then %d at %s", first, at, again, then)
	}
	for _, time := range []string{"2020-01-02T03:04:05Z", "2999-01-02T03:04:05Z"} {
		c.corrupt("beat", fmt.Appendf(nil, `{"format":2,"raft_index":"5","raft_term":"2","revision":"2","time":"%s"}`, time))
		look()
		if index, at := read(); index <= first || at == time {
			t.Errorf("the beat of %s is now %d at %s", time, index, at)
		}
	}
	if why := c.isHalted(); why != "" {
		t.Errorf("halted: %s", why)
	}
	c.corrupt("beat", []byte(`{"format":2,"raft_index":"1000000","raft_term":"2","revision":"2","time":"2020-01-02T03:04:05Z"}`))
	p.ledger.Uncheck()
	_, err := p.tryLease("t", 1)
	wantKind(t, err, allocator.WentBack, "raft index is", "was 1000000 at 2020-01-02T03:04:05Z", "restored")
	c.check()
}

// A log that is just born grows to many times its index within seconds. The beat
// follows it, in few writes: so a restore is seen that comes before the beat is old.
func TestBeatFollowsAYoungLog(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	backup, written := int64(0), map[string]bool{}
	for i := range 2000 {
		if i == 1500 {
			backup = c.mem.Revision()
		}
		p.ledger.Uncheck()
		p.lease(1)
		written[string(c.value("beat"))] = true
	}
	if len(written) > 12 {
		t.Errorf("%d beats were written", len(written))
	}
	c.mem.Restore(backup, 0, ledgertest.ClusterID)
	for i := range 500 { // what others write before a process looks that would know
		c.corrupt("surprise", fmt.Append(nil, i))
	}
	c.corrupt("surprise", nil)
	_, err := c.startAs("a", "new").tryLease("t", 10)
	wantKind(t, err, allocator.WentBack, "raft index is", "restored")
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
	_, err := open(t, twoMembers{c.mem.Open()}).Join(bg, ledger.Registration{Room: "a", Name: "one"})
	wantKind(t, err, allocator.Unavailable, "the member that answers, changed")
	if why := c.isHalted(); why != "" {
		t.Errorf("halted: %s", why)
	}
	c.check()
}

// Another cluster's uuid, or another etcd's data, stops the process that meets it and no other
// else.
func TestAnotherClusterStopsOnlyItself(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	p.lease(10)
	was := c.value("identity")
	other := regexp.MustCompile(`"uuid":"[^"]*"`).ReplaceAll(was, []byte(`"uuid":"00000000-0000-4000-8000-000000000000"`))
	c.corrupt("identity", other)
	p.ledger.Uncheck()
	_, err := p.tryLease("t", 10)
	wantKind(t, err, allocator.Refused, "00000000-0000-4000-8000-000000000000", "belongs to cluster")
	c.corrupt("identity", nil)
	_, err = p.tryLease("t", 10)
	wantKind(t, err, allocator.Refused, "identity is missing")
	c.corrupt("identity", was)
	p.lease(10)
	p.conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.WrongCluster} })
	_, err = p.tryLease("t", 10)
	wantKind(t, err, allocator.WentBack, "fedcba9876543211")
	p.conn.Fate(nil)
	p.lease(10)
	if why := c.isHalted(); why != "" {
		t.Errorf("halted: %s", why)
	}
	c.check()
}

// Halt, under every fate of its transaction: halted once, and said so.
func TestHalt(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			p := c.start("a")
			p.lease(10)
			from, _ := c.admin.Ledger.Refresh(bg)
			conn := c.mem.Open()
			met := 0
			conn.Fate(func(txn store.Txn) ledgertest.Fate {
				if met++; writes("epoch")(txn) && met < 10 {
					met = 10
					return ledgertest.Fate{Name: fate, N: 3}
				}
				return ledgertest.Fate{}
			})
			l := open(t, conn)
			h, err := l.Halt(bg, "ann", "a restore")
			if err != nil { // unknown, or wrong cluster: again, as an operator would
				h, err = l.Halt(bg, "ann", "a restore")
			}
			if err != nil || h.By != "ann" || h.Why != "a restore" || met < 10 {
				t.Fatalf("%+v, %v, fault met %v", h, err, met >= 10)
			}
			c.mem.Arrive()
			was := c.isHalted()
			if h, err := c.admin.Ledger.Halt(bg, "bob", "me too"); err != nil || h.By != "ann" {
				t.Errorf("a second halt: %+v, %v", h, err)
			}
			if c.isHalted() != was || was == "" {
				t.Errorf("halted %s, then %s", was, c.isHalted())
			}
			_, err = p.tryLease("t", 10)
			wantKind(t, err, allocator.WentBack, "halted by ann", "a restore")
			_, err = p.tryLease("t", 10)
			wantKind(t, err, allocator.WentBack, "halted by ann")
			// No process changes a layout meanwhile, whether it has heard of the halt or not.
			_, err = c.admin.ChangeLayout(bg, from, lay(t, "10 a=0-10"), "test")
			wantKind(t, err, allocator.WentBack, "halted by ann")
			halts := 0
			audits, _, _ := c.admin.Audits(bg, "", 100)
			for _, a := range audits {
				if a.Action == "halt" && a.Actor == "ann" {
					halts++
				}
			}
			if halts != 1 {
				t.Errorf("%d audit entries", halts)
			}
			c.check()
		})
	}
}

// A stale read that shows a halt which was recovered from is no halt: a process that believed
// it would take the epoch that followed it for one that is in force again.
func TestStaleReadOfAHalt(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	conn := c.mem.Open()
	l := open(t, conn)
	refresh := func() {
		t.Helper()
		if _, err := l.Refresh(bg); err != nil && allocator.KindOf(err) != allocator.WentBack {
			t.Fatal(err)
		}
	}
	refresh()
	if _, err := c.admin.Ledger.Halt(bg, "ann", "a fence"); err != nil {
		t.Fatal(err)
	}
	halted := c.mem.Revision()
	refresh()
	if _, err := c.recover(c.mem.Open(), nil); err != nil {
		t.Fatal(err)
	}
	refresh()
	if err := l.Leasable(); err != nil {
		t.Fatalf("after the recover: %v", err)
	}
	conn.Fate(func(store.Txn) ledgertest.Fate {
		return ledgertest.Fate{Name: ledgertest.StaleRead, N: int(c.mem.Revision() - halted)}
	})
	refresh()
	conn.Fate(nil)
	refresh()
	if err := l.Leasable(); err != nil {
		t.Errorf("after a stale read: %v", err)
	}
}

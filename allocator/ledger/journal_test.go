package ledger_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// startWith starts an instance with a journal.
func (c *cluster) startWith(room allocator.Room, name allocator.Instance, dir string,
	change ...func(*ledger.Registration)) (*process, error) {
	p := c.process()
	r := ledger.Registration{Room: room, Name: name, Address: string(name) + ".test:7010", Journal: dir}
	for _, f := range change {
		f(&r)
	}
	var err error
	p.Instance, err = p.Ledger.Join(bg, r)
	return p, err
}

// mustStartWith is startWith; the instance is closed at the end of the test.
func (c *cluster) mustStartWith(t *testing.T, room allocator.Room, name allocator.Instance, dir string,
	change ...func(*ledger.Registration)) *process {
	t.Helper()
	p, err := c.startWith(room, name, dir, change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// An instance remembers the epoch in which it leases, also where its ledger met that epoch
// before the instance joined, as a room's does that waited for etcd.
func TestReportsAnEpochFromBefore(t *testing.T) {
	for name, before := range map[string]func(*ledger.Ledger) error{
		"nothing":  func(*ledger.Ledger) error { return nil },
		"attached": func(l *ledger.Ledger) error { return l.Attach(bg) },
		"read":     func(l *ledger.Ledger) error { _, err := l.Refresh(bg); return err },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			dir := t.TempDir()
			p := c.process()
			if err := before(p.Ledger); err != nil {
				t.Fatal(err)
			}
			var err error
			if p.Instance, err = p.Ledger.Join(bg, ledger.Registration{Room: "a", Name: "one", Address: "one.test:7010",
				Journal: dir}); err != nil {
				t.Fatal(err)
			}
			p.Lease(10)
			t.Cleanup(func() { _ = p.Close() })
			memory := p.Memory(bg, record.Question{})
			if len(memory.Epochs) != 1 || !strings.Contains(string(c.Value("epoch")), memory.Epochs[0]) {
				t.Errorf("the instance reports epochs %q; etcd has %s", memory.Epochs, c.Value("epoch"))
			}
		})
	}
}

// An instance that does not run is known by its journal: recover needs not go on
// without it.
func TestRecoverByJournal(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	dir := t.TempDir()
	p := c.mustStartWith(t, "a", "one", dir)
	p.Lease(10)
	backup := c.Mem.Revision()
	c.Move("100 a=0-60 b=60-100")
	p.Lease(300_000_000)
	held := p.Last("t")
	_ = p.Close()
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	_, err := c.recover(c.Mem.Open(), nil)
	ledgertest.WantKind(t, err, allocator.Refused)
	files, err := filepath.Glob(filepath.Join(dir, "*", "a", "one.journal"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	memory, err := ledger.ReadJournal(files[0])
	if err != nil || memory.Version != 2 {
		t.Fatalf("%+v, %v", memory, err)
	}
	memory.Version = 1 << 50 // above what the clock says
	report, err := c.recover(c.Mem.Open(), nil, func(cfg *recovery.Config) { cfg.Memories = []record.Memory{memory} })
	if err != nil || report.Layout.Version != memory.Version+1000 {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, room := range []allocator.Room{"b", "a"} {
		if seg := c.start(room).Lease(10); seg.First <= held {
			t.Errorf("room %s leased %v, %d was leased", room, seg, held)
		}
	}
	c.Check()
}

// Without its journal an instance leases nothing; two processes do not share
// one; and another instance's is refused.
func TestJournalIsNeeded(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	dir := t.TempDir()
	p := c.mustStartWith(t, "a", "one", dir)
	p.Lease(10)
	_, err := c.startWith("a", "one", dir)
	ledgertest.WantKind(t, err, allocator.Refused, "another process has it", "--name")
	c.mustStartWith(t, "a", "two", dir).Lease(10)
	_ = p.Close()
	seg, err := p.TryLease("t", 10)
	ledgertest.WantKind(t, err, allocator.Unavailable, "cannot be written, nothing is leased")
	if seg.Count != 0 || strings.Contains(err.Error(), "march recover") {
		t.Errorf("%v, %v", seg, err)
	}
	c.Check()
}

// A lease whose caller gives up while the journal is written is not lost: on a disk that
// takes a second for each write every other lease was a gap.
func TestLeaseWaitsForTheJournal(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	ctx, cancel := context.WithCancel(t.Context())
	armed := false
	l := ledgertest.Open(t, c.Mem.Open(), func(cfg *ledger.Config) {
		cfg.Observe = func(time.Duration, error) {
			if armed {
				cancel() // etcd has given the IDs, and nothing is written yet
			}
		}
	})
	i, err := l.Join(bg, ledger.Registration{Room: "a", Name: "one", Address: "one.test:7010", Journal: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = i.Close() }()
	source, _, err := i.Source(bg, "t")
	if err == nil {
		_, err = source.Lease(bg, 10)
	}
	if err != nil {
		t.Fatal(err)
	}
	armed = true
	seg, err := source.Lease(ctx, 10)
	if err != nil || ctx.Err() == nil {
		t.Fatalf("%v, %v; given up: %v", seg, err, ctx.Err())
	}
	marks := i.Memory(bg, record.Question{}).Marks
	if len(marks) != 1 || marks[0].Next != seg.Last()+1 {
		t.Errorf("leased %v, and it remembers %v", seg, marks)
	}
}

package ledger_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
)

// An instance remembers the epoch in which it leases, also where its ledger met that epoch
// before the instance joined, as a room's does that waited for etcd, and could not read its key since.
func TestReportsAnEpochFromBefore(t *testing.T) {
	read := func(_ *cluster, l *ledger.Ledger) error { _, err := l.Refresh(bg); return err }
	for name, before := range map[string]func(*cluster, *ledger.Ledger) error{
		"nothing":  func(*cluster, *ledger.Ledger) error { return nil },
		"attached": func(_ *cluster, l *ledger.Ledger) error { return l.Attach(bg) },
		"read":     read,
		"read, and not since": func(c *cluster, l *ledger.Ledger) error {
			err, epoch := read(c, l), c.Value("epoch")
			c.Corrupt("epoch", []byte("{"))
			ledgertest.WantKind(t, read(c, l), allocator.Refused, "epoch")
			c.Corrupt("epoch", epoch)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			dir := t.TempDir()
			p := c.process()
			if err := before(c, p.Ledger); err != nil {
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

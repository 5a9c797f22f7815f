package ledger_test

import (
	"fmt"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Each fault of the lease transaction, in both of its states: the first lease
// of a room, which begins an era, and a later one. Unique always; what is lost
// is a gap.
func TestLeaseUnderEachFault(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		for _, before := range []int{0, 1} {
			t.Run(fmt.Sprintf("%v after %d leases", fate, before), func(t *testing.T) {
				c := newCluster(t, "100 a=0-50 b=50-100")
				p := c.start("a")
				for range before {
					p.Lease(10)
				}
				was := c.Mark("a").Next
				met := p.Conn.Next(ledgertest.Fate{Name: fate, N: 3}, 1, ledgertest.PutsUnder("marks/"))
				seg, err := p.TryLease("t", 10)
				want := map[ledgertest.FateName]allocator.Kind{
					ledgertest.DoneAnswerLost: allocator.Unavailable, ledgertest.NotDone: allocator.Unavailable,
					ledgertest.Late:     allocator.Unavailable,
					ledgertest.NoLeader: allocator.Unavailable, ledgertest.NoSpaceButApplied: allocator.Unavailable,
					ledgertest.WrongCluster: allocator.WentBack, ledgertest.OldRevision: allocator.WentBack,
				}
				if kind, fails := want[fate]; fails {
					ledgertest.WantKind(t, err, kind, "lease of tag t in room a")
				} else if err != nil || seg.Count != 10 {
					t.Errorf("lease: %v, %v", seg, err)
				}
				if *met == 0 {
					t.Error("the fault was not met")
				}
				lost := fate == ledgertest.DoneAnswerLost || fate == ledgertest.NoSpaceButApplied ||
					fate == ledgertest.WrongCluster || fate == ledgertest.OldRevision
				if lost && c.Mark("a").Next <= was {
					t.Errorf("the mark is still %d: the fault did nothing", was)
				}
				for range 5 { // a Late one comes somewhere in between
					p.Lease(10)
				}
				if fate == ledgertest.Twice && seg.First < was+10 {
					t.Errorf("the first sending's IDs were issued: %v after %d", seg, was)
				}
				other := c.start("b")
				other.Lease(10)
				p.Lease(10)
				c.Check()
			})
		}
	}
}

// A floor that is answered from the past, or not at all, is not used.
func TestFloorReadUnderFaults(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			a, b := c.start("a"), c.start("b")
			a.Lease(1000)
			b.Lease(10)
			c.Move("100 a=50-100 b=0-50")
			floors := func(txn store.Txn) bool { return len(txn.If) == 2 && !ledgertest.Writes(txn) }
			met := b.Conn.Next(ledgertest.Fate{Name: fate, N: 3}, 1, floors)
			if _, err := b.TryLease("t", 10); err != nil {
				b.Lease(10)
			}
			a.Lease(10)
			if *met == 0 {
				t.Error("the fault was not met")
			}
			c.Check()
		})
	}
}

func TestEndOfTheSpace(t *testing.T) {
	const end = allocator.MaxID
	for _, layout := range []string{"1 a=0-1", "10 a=0-5 b=5-10", "9223372036854775807 a=0-9223372036854775806 " +
		"b=9223372036854775806-9223372036854775807", "9223372036854775806 a=0-7 b=7-9223372036854775806"} {
		t.Run(layout, func(t *testing.T) {
			c := newCluster(t, layout)
			c.Tag("end", func(s *record.TagSettings) { s.Start = end - 1000 })
			for room := range ledgertest.Lay(t, layout).Ranges {
				p, exhausted := c.start(room), false
				for range 400 {
					seg, err := p.TryLease("end", 7)
					if err != nil {
						ledgertest.WantKind(t, err, allocator.Exhausted)
						exhausted = true
						break
					}
					if seg.First < end-1000 || seg.Last() >= end || seg.Last() < seg.First {
						t.Fatalf("segment %v", seg)
					}
				}
				if !exhausted {
					t.Errorf("room %s was not exhausted", room)
				}
				for range 3 {
					_, err := p.TryLease("end", 1<<62)
					ledgertest.WantKind(t, err, allocator.Exhausted, "end")
				}
			}
			c.Check()
		})
	}
}

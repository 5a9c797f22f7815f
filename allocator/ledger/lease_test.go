package ledger_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

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
					p.lease(10)
				}
				was := c.mark("a").Next
				met := p.next(ledgertest.Fate{Name: fate, N: 3}, writes("marks/"))
				seg, err := p.tryLease("t", 10)
				want := map[ledgertest.FateName]allocator.Kind{
					ledgertest.DoneAnswerLost: allocator.Unavailable, ledgertest.NotDone: allocator.Unavailable, ledgertest.Late: allocator.Unavailable,
					ledgertest.NoLeader: allocator.Unavailable, ledgertest.NoSpaceButApplied: allocator.Unavailable,
					ledgertest.WrongCluster: allocator.WentBack, ledgertest.OldRevision: allocator.WentBack,
				}
				if kind, fails := want[fate]; fails {
					wantKind(t, err, kind, "lease of tag t in room a")
				} else if err != nil || seg.Count != 10 {
					t.Errorf("lease: %v, %v", seg, err)
				}
				if *met == 0 {
					t.Error("the fault was not met")
				}
				lost := fate == ledgertest.DoneAnswerLost || fate == ledgertest.NoSpaceButApplied || fate == ledgertest.WrongCluster || fate == ledgertest.OldRevision
				if lost && c.mark("a").Next <= was {
					t.Errorf("the mark is still %d: the fault did nothing", was)
				}
				for range 5 { // a Late one comes somewhere in between
					p.lease(10)
				}
				if fate == ledgertest.Twice && seg.First < was+10 {
					t.Errorf("the first sending's IDs were issued: %v after %d", seg, was)
				}
				other := c.start("b")
				other.lease(10)
				p.lease(10)
				c.check()
			})
		}
	}
}

// A late transaction comes after the same IDs were leased anew: it must not
// take effect.
func TestLateLeaseAfterAnotherOne(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, q := c.start("a"), c.start("a")
	p.lease(10)
	p.next(ledgertest.Fate{Name: ledgertest.Late, N: 1000}, writes("marks/"))
	if _, err := p.tryLease("t", 1000); err == nil {
		t.Fatal("no error")
	}
	q.lease(5)
	before := c.mark("a")
	c.mem.Arrive()
	if after := c.mark("a"); !reflect.DeepEqual(after, before) {
		t.Errorf("the late lease took effect: %+v, then %+v", before, after)
	}
	p.lease(5)
	q.lease(5)
	c.check()
}

// A floor that is answered from the past, or not at all, is not used.
func TestFloorReadUnderFaults(t *testing.T) {
	for _, fate := range ledgertest.Fates() {
		t.Run(fate.String(), func(t *testing.T) {
			c := newCluster(t, "100 a=0-50 b=50-100")
			a, b := c.start("a"), c.start("b")
			a.lease(1000)
			b.lease(10)
			c.move("100 a=50-100 b=0-50")
			floors := func(txn store.Txn) bool { return len(txn.If) == 2 && !ledgertest.Writes(txn) }
			met := b.next(ledgertest.Fate{Name: fate, N: 3}, floors)
			if _, err := b.tryLease("t", 10); err != nil {
				b.lease(10)
			}
			a.lease(10)
			if *met == 0 {
				t.Error("the fault was not met")
			}
			c.check()
		})
	}
}

func TestTwoInstancesOfARoomContend(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p, q := c.start("a"), c.start("a")
	// Whenever p is about to write the mark, q leases first: p always loses, and
	// gives up with an error that may be retried.
	busy, rounds := false, 0
	p.conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if writes("marks/")(txn) && !busy && rounds > 0 {
			busy, rounds = true, rounds-1
			q.lease(3)
			busy = false
		}
		return ledgertest.Fate{}
	})
	rounds = 5
	p.lease(7)
	rounds = 1000
	_, err := p.tryLease("t", 7)
	wantKind(t, err, allocator.Unavailable, "lost the race")
	rounds = 0
	p.lease(7)
	q.lease(7)
	c.check()
}

func TestLeaseCount(t *testing.T) {
	c := newCluster(t, "1000 a=0-1 b=1-2")
	p := c.start("a")
	for _, n := range []int64{0, -1, -1 << 63} {
		_, err := p.tryLease("t", n)
		wantKind(t, err, allocator.Invalid, "1 or more")
	}
	if seg := p.lease(1); seg.First != 1000 { // the first in a's range from 1 on
		t.Errorf("first segment %v", seg)
	}
	c.check()
}

func TestUnknownTag(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p := c.start("a")
	_, err := p.tryLease("none", 1)
	wantKind(t, err, allocator.NotFound, "march tag create none")
	if _, ok := c.mem.Value(prefix + "marks/a/none"); ok {
		t.Error("an unknown tag got a mark")
	}
}

// A tag that is deleted stops at once, also for an instance that remembers it; under the
// same name it goes on above what was leased.
func TestDeletedTagGoesOnAbove(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p, q := c.start("a"), c.start("b")
	p.lease(100)
	q.lease(10)
	if err := c.admin.DeleteTag(bg, "t", "test"); err != nil {
		t.Fatal(err)
	}
	_, err := p.tryLease("t", 1)
	wantKind(t, err, allocator.NotFound)
	c.tag("t", func(s *record.TagSettings) { s.Start = 3 })
	p.lease(10)
	q.lease(10)
	c.start("b").lease(10)
	c.check()
}

func TestLimitHoldsForWhoRemembers(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p := c.start("a")
	p.lease(10) // to 20
	c.update("t", func(s *record.TagSettings) { s.Limit = 23 })
	if seg := p.lease(10); seg.Last() >= 23 {
		t.Errorf("above the limit of 23: %v", seg)
	}
	_, err := p.tryLease("t", 1)
	wantKind(t, err, allocator.Exhausted, "23")
	c.update("t", func(s *record.TagSettings) { s.Limit = 40 })
	p.lease(10) // at once, though p had seen the old limit last
	c.check()
}

func TestEndOfTheSpace(t *testing.T) {
	const end = allocator.MaxID
	for _, layout := range []string{"1 a=0-1", "10 a=0-5 b=5-10", "9223372036854775807 a=0-9223372036854775806 b=9223372036854775806-9223372036854775807", "9223372036854775806 a=0-7 b=7-9223372036854775806"} {
		t.Run(layout, func(t *testing.T) {
			c := newCluster(t, layout)
			c.tag("end", func(s *record.TagSettings) { s.Start = end - 1000 })
			for room := range lay(t, layout).Ranges {
				p, exhausted := c.start(room), false
				for range 400 {
					seg, err := p.tryLease("end", 7)
					if err != nil {
						wantKind(t, err, allocator.Exhausted)
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
					_, err := p.tryLease("end", 1<<62)
					wantKind(t, err, allocator.Exhausted, "end")
				}
			}
			c.check()
		})
	}
}

func TestReplacedLeasesNothing(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p := c.startAs("a", "one")
	p.lease(10)
	again := c.startAs("a", "one")
	again.lease(10)
	was := c.mark("a")
	_, err := p.tryLease("t", 10)
	wantKind(t, err, allocator.Refused, "another process registered as instance one")
	wantKind(t, p.Run(bg), allocator.Refused, "another process")
	wantKind(t, p.Serve(bg, 1), allocator.Refused)
	if now := c.mark("a"); !reflect.DeepEqual(now, was) {
		t.Errorf("the mark went from %+v to %+v", was, now)
	}
	c.check()
}

// A source that etcd does not answer says so. It said that the layout had changed 20
// times.
func TestSourceSaysThatEtcdIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		p := c.start("a")
		p.conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NoLeader} })
		_, _, err := p.Source(bg, "t")
		wantKind(t, err, allocator.Unavailable, "tag t", "no leader")
		if err != nil && strings.Contains(err.Error(), "changed") {
			t.Error(err)
		}
		p.conn.Fate(nil)
		p.lease(10)
		c.check()
	})
}

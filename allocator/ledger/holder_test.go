package ledger_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// ordered is a process of a room that wants to hold the tag o, whose hold is 3 s.
type ordered struct {
	*process
	source allocator.Source
}

// startOrdered starts a process of room a that confirms its tenures.
func (c *cluster) startOrdered(t *testing.T) *ordered { return c.startOrderedIn(t, "a") }

func (c *cluster) startOrderedIn(t *testing.T, room allocator.Room) *ordered {
	t.Helper()
	p := &ordered{process: c.start(room)}
	ctx, stop := context.WithCancel(t.Context())
	running := make(chan error)
	go func() { running <- p.Run(ctx) }()
	t.Cleanup(func() { stop(); <-running })
	return p
}

// hold reads the tag, and takes it.
func (p *ordered) hold(t *testing.T, silent string) (*ledger.Tenure, *record.Holder) {
	t.Helper()
	p.read(t)
	return p.take(t, silent)
}

// read reads the tag.
func (p *ordered) read(t *testing.T) {
	t.Helper()
	source, _, err := p.Source(t.Context(), "o")
	if err != nil {
		t.Fatal(err)
	}
	p.source = source
}

// take takes the tag as it was read.
func (p *ordered) take(t *testing.T, silent string) (*ledger.Tenure, *record.Holder) {
	t.Helper()
	tenure, other, err := p.Hold(t.Context(), p.source, record.DefaultTenureHold.Duration(), silent)
	if err != nil {
		t.Fatal(err)
	}
	return tenure, other
}

// lease leases n IDs in the tenure.
func (p *ordered) lease(t *testing.T, n int64) allocator.Segment {
	t.Helper()
	seg, err := p.source.Lease(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return seg
}

func strictly(s *record.TagSettings) {
	s.StrictOrder, s.TenureHold = record.OrderRoom, record.DefaultTenureHold
}

func inOrder(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	ordering(t, strictly, test)
}

// overAllRooms is inOrder for a tag that is ordered over all rooms.
func overAllRooms(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	ordering(t, func(s *record.TagSettings) {
		s.StrictOrder, s.TenureHold, s.Home = record.OrderCluster, record.DefaultTenureHold, "a"
	}, test)
}

func ordering(t *testing.T, order func(*record.TagSettings), test func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "100 a=0-50 b=50-100")
		c.Tag("o", order)
		test(t, c)
		c.Check()
	})
}

func wantAdmits(t *testing.T, tenure *ledger.Tenure, want bool) {
	t.Helper()
	if err := tenure.Admits(); (err == nil) != want {
		t.Errorf("admits: %v; want %v", err, want)
	}
}

func TestTenureWaitsAndIsConfirmed(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		p, q := c.startOrdered(t), c.startOrdered(t)
		first, _ := p.hold(t, "")
		p.lease(t, 10)
		time.Sleep(3299 * time.Millisecond)
		wantAdmits(t, first, false)
		time.Sleep(time.Millisecond)
		wantAdmits(t, first, true)
		if _, other := q.hold(t, ""); other == nil || other.Instance != p.Name() {
			t.Fatalf("the tag is held by %+v", other)
		}
		time.Sleep(time.Minute) // confirmed all the while
		wantAdmits(t, first, true)
		p.Conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NotDone} })
		time.Sleep(3 * time.Second)
		wantAdmits(t, first, false)
		p.Conn.Fate(nil)
		time.Sleep(10 * time.Second)
		wantAdmits(t, first, true) // the key still shows it
	})
}

func TestTenureEndsAsAnotherBegins(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		p, q := c.startOrdered(t), c.startOrdered(t)
		first, _ := p.hold(t, "")
		p.lease(t, 10)
		_, other := q.hold(t, "")
		second, _ := q.hold(t, other.Nonce) // p is silent
		ended := make(chan struct{})
		first.OnEnd(func() { close(ended) })
		if seg := q.lease(t, 10); seg.First < 11 {
			t.Errorf("leased %v", seg)
		}
		_, err := p.source.Lease(t.Context(), 10)
		ledgertest.WantKind(t, err, allocator.Conflict, "its tenure here has ended")
		<-ended
		wantAdmits(t, first, false)
		wantAdmits(t, second, false)
		time.Sleep(3300 * time.Millisecond)
		wantAdmits(t, second, true)
	})
}

func TestReleaseLeavesTheRest(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		p, q := c.startOrdered(t), c.startOrdered(t)
		first, _ := p.hold(t, "")
		seg := p.lease(t, 10)
		_, rest := seg.Split(4)
		held := func() []allocator.Segment { return []allocator.Segment{rest} }
		first.Release(held) // it waits: the key stays
		time.Sleep(time.Second)
		if _, other := q.hold(t, ""); other == nil {
			t.Fatal("a tenure was released that had not opened")
		}
		first, _ = p.hold(t, "")
		seg = p.lease(t, 10)
		_, rest = seg.Split(4)
		time.Sleep(3300 * time.Millisecond)
		first.Release(held)
		time.Sleep(time.Second)
		wantAdmits(t, first, false)
		second, _ := q.hold(t, "")
		wantAdmits(t, second, true) // at once
		if got := q.lease(t, 100); got.First != rest.First || got.Count != rest.Count {
			t.Errorf("leased %v, and the rest is %v", got, rest)
		}
		if got := q.lease(t, 10); got.First != rest.Last()+1 {
			t.Errorf("leased %v after the rest %v", got, rest)
		}
	})
}

func TestRestIsAGapUnderAnotherLayoutOrEpoch(t *testing.T) {
	for name, change := range map[string]func(c *cluster){
		"layout": func(c *cluster) { c.Move("100 a=0-40 b=50-100") },
		"epoch":  func(c *cluster) { c.Move("100 a=0-40 b=50-100"); c.Began(1) },
	} {
		t.Run(name, func(t *testing.T) {
			inOrder(t, func(t *testing.T, c *cluster) {
				p := c.startOrdered(t)
				tenure, _ := p.hold(t, "")
				seg := p.lease(t, 10)
				time.Sleep(3300 * time.Millisecond)
				tenure.Release(func() []allocator.Segment { return []allocator.Segment{seg} })
				time.Sleep(time.Second)
				change(c)
				next, _ := p.hold(t, "")
				wantAdmits(t, next, name == "layout")
				if got := p.lease(t, 10); got.First <= seg.Last() {
					t.Errorf("leased %v after %v", got, seg)
				}
			})
		})
	}
}

// holdFor takes the tag for a hold of its own.
func (p *ordered) holdFor(t *testing.T, tag allocator.Tag, hold time.Duration, silent string) *ledger.Tenure {
	t.Helper()
	source, _, err := p.Source(t.Context(), tag)
	if err != nil {
		t.Fatal(err)
	}
	tenure, other, err := p.Hold(t.Context(), source, hold, silent)
	if err != nil || other != nil {
		t.Fatalf("%v, or held by %+v", err, other)
	}
	return tenure
}

func TestTakerWaitsForTheLongerHold(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		p, q := c.startOrdered(t), c.startOrdered(t)
		p.holdFor(t, "o", 10*time.Second, "")
		_, other := q.hold(t, "")
		next := q.holdFor(t, "o", 3*time.Second, other.Nonce) // a next life, with a shorter hold
		time.Sleep(10999 * time.Millisecond)
		wantAdmits(t, next, false)
		time.Sleep(time.Millisecond)
		wantAdmits(t, next, true)
	})
}

func TestTakerOfATakerWaitsForTheLongerHold(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		p, q, r := c.startOrdered(t), c.startOrdered(t), c.startOrdered(t)
		first := p.holdFor(t, "o", 60*time.Second, "")
		time.Sleep(66 * time.Second)
		p.Conn.Fate(func(store.Txn) ledgertest.Fate { return ledgertest.Fate{Name: ledgertest.NotDone} })
		_, other := q.hold(t, "")
		q.holdFor(t, "o", 3*time.Second, other.Nonce) // the next life, which ends in its wait
		_, other = r.hold(t, "")
		last := r.holdFor(t, "o", 3*time.Second, other.Nonce)
		for range 660 {
			time.Sleep(100*time.Millisecond - time.Microsecond)
			if first.Admits() == nil && last.Admits() == nil {
				t.Fatal("two tenures issue at the same time")
			}
		}
		time.Sleep(time.Minute)
		wantAdmits(t, last, true)
		_, other = q.hold(t, "") // the longer hold is long over
		next := q.holdFor(t, "o", 3*time.Second, other.Nonce)
		time.Sleep(3300 * time.Millisecond)
		wantAdmits(t, next, true)
	})
}

func TestHoldIsOfTheTagThatWasRead(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		p := c.startOrdered(t)
		source, settings, err := p.Source(t.Context(), "o")
		if err != nil {
			t.Fatal(err)
		}
		c.Update("o", func(s *record.TagSettings) { s.MaxStep++ })
		_, _, err = p.Hold(t.Context(), source, settings.TenureHold.Duration(), "")
		if !errors.Is(err, error(allocator.ErrClosed)) {
			t.Errorf("held: %v", err)
		}
	})
}

func TestOwnReleaseComesBeforeTheNextTake(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		p := c.startOrdered(t)
		first, _ := p.hold(t, "")
		seg := p.lease(t, 10)
		time.Sleep(3300 * time.Millisecond)
		first.Release(func() []allocator.Segment { return []allocator.Segment{seg} })
		next, _ := p.hold(t, "")
		wantAdmits(t, next, true)
		if got := p.lease(t, 10); got.First != seg.First {
			t.Errorf("leased %v, and the rest is %v", got, seg)
		}
	})
}

func TestSlowConfirmationsHoldUpNoOthers(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		c.Tag("short", func(s *record.TagSettings) { s.StrictOrder, s.TenureHold = record.OrderRoom, "1s" })
		p := c.startOrdered(t)
		long := p.holdFor(t, "o", 10*time.Second, "")
		p.holdFor(t, "short", time.Second, "")
		p.Conn.Fate(func(store.Txn) ledgertest.Fate {
			time.Sleep(1100 * time.Millisecond)
			return ledgertest.Fate{Name: ledgertest.Done}
		})
		time.Sleep(time.Minute)
		wantAdmits(t, long, true)
	})
}

func TestFirstLeaseOfATenureIsAboveAllRooms(t *testing.T) {
	overAllRooms(t, func(t *testing.T, c *cluster) {
		p, q := c.startOrderedIn(t, "a"), c.startOrderedIn(t, "b")
		first, _ := q.hold(t, "")
		q.lease(t, 10) // so that its mark is of the stamp in force
		p.hold(t, "")
		p.lease(t, 100)
		q.read(t)
		last := p.lease(t, 100).Last()
		second, _ := q.take(t, "")
		if seg := q.lease(t, 10); seg.First <= last {
			t.Errorf("leased %v after %d", seg, last)
		}
		last = c.markOf("b", "o").Next - 1
		if seg := q.lease(t, 10); seg.First <= last {
			t.Errorf("leased %v after %d", seg, last)
		}
		_, err := p.source.Lease(t.Context(), 10)
		ledgertest.WantKind(t, err, allocator.Conflict, "its tenure here has ended")
		time.Sleep(3300 * time.Millisecond)
		wantAdmits(t, first, false)
		wantAdmits(t, second, true)
	})
}

func TestFirstLeaseOfATenureReadsNoStaleMarks(t *testing.T) {
	overAllRooms(t, func(t *testing.T, c *cluster) {
		p, q := c.startOrderedIn(t, "a"), c.startOrderedIn(t, "b")
		q.hold(t, "")
		q.lease(t, 10)
		p.hold(t, "")
		last := p.lease(t, 100).Last()
		q.hold(t, "")
		stale := 1
		q.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if stale > 0 && !ledgertest.Writes(txn) {
				stale--
				return ledgertest.Fate{Name: ledgertest.StaleRead, N: 2} // from before p's lease
			}
			return ledgertest.Fate{Name: ledgertest.Done}
		})
		if seg := q.lease(t, 10); seg.First <= last || stale > 0 {
			t.Errorf("leased %v after %d, and %d reads were not stale", seg, last, stale)
		}
	})
}

func TestKeyOfAllRoomsHasNoRest(t *testing.T) {
	overAllRooms(t, func(t *testing.T, c *cluster) {
		p := c.startOrdered(t)
		tenure, _ := p.hold(t, "")
		seg := p.lease(t, 10)
		time.Sleep(3300 * time.Millisecond)
		tenure.Release(func() []allocator.Segment { return []allocator.Segment{seg} })
		time.Sleep(time.Second)
		// Another room puts one there, of IDs that were issued.
		key := prefix + "orders/o"
		value, _ := c.Mem.Value(key)
		was, err := record.ReadAs[record.Holder](record.Keys(prefix), store.KV{Key: key, Value: value})
		if err != nil || was.Rest != nil {
			t.Fatalf("the key has the rest %v: %v", was.Rest, err)
		}
		was.Rest = &record.Era{Version: seg.Version, Epoch: was.Epoch, First: seg.First, End: seg.Last() + 1}
		c.Mem.Corrupt(store.OpPut(key, record.Encode(&was)))
		tenure, _ = p.hold(t, "")
		wantAdmits(t, tenure, true) // at once
		if got := p.lease(t, 10); got.First <= seg.Last() {
			t.Errorf("leased %v after %v", got, seg)
		}
	})
}

func TestHolderOfAllRoomsIsRegisteredInTheHome(t *testing.T) {
	overAllRooms(t, func(t *testing.T, c *cluster) {
		p, q, r := c.startOrderedIn(t, "a"), c.startOrderedIn(t, "a"), c.startOrderedIn(t, "b")
		p.hold(t, "")
		if held, err := r.Holder(t.Context(), "o", "a"); err != nil || held == nil || held.Instance != p.Name() {
			t.Errorf("held by %+v: %v", held, err)
		}
		key := prefix + "orders/o"
		value, _ := c.Mem.Value(key)
		was, err := record.ReadAs[record.Holder](record.Keys(prefix), store.KV{Key: key, Value: value})
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range []func(h *record.Holder){
			func(h *record.Holder) { h.Room, h.Instance = "b", r.Name() },
			func(h *record.Holder) { h.Incarnation = "another" },
		} {
			now := was
			change(&now)
			now.Address = "evil:1"
			c.Mem.Corrupt(store.OpPut(key, record.Encode(&now)))
			if held, err := q.Holder(t.Context(), "o", "a"); err != nil || held != nil {
				t.Errorf("held by %+v: %v", held, err)
			}
			tenure, other := q.hold(t, "")
			if other != nil {
				t.Fatalf("held by %+v", other)
			}
			wantAdmits(t, tenure, false)
		}
	})
}

func TestHolderIsKnownToAMemberThatIsBehind(t *testing.T) {
	overAllRooms(t, func(t *testing.T, c *cluster) {
		q := c.startOrderedIn(t, "a")
		p := c.startOrderedIn(t, "a")
		p.hold(t, "")
		start, registration := time.Now(), prefix+"rooms/a/"+string(p.Name())
		q.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
			if len(txn.Then) == 1 && txn.Then[0].Get != nil && txn.Then[0].Get.Key == registration &&
				time.Since(start) < time.Second/2 {
				return ledgertest.Fate{Name: ledgertest.StaleRead, N: 1000} // before p registered
			}
			return ledgertest.Fate{Name: ledgertest.Done}
		})
		if held, err := q.Holder(t.Context(), "o", "a"); err != nil || held == nil || held.Instance != p.Name() {
			t.Errorf("held by %+v: %v", held, err)
		}
		start = time.Now()
		if _, other := q.hold(t, ""); other == nil {
			t.Error("the key of a process was taken that is registered, as a member of etcd was behind")
		}
	})
}

func TestHomeIsARoomOfTheLayout(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	s := record.DefaultTag()
	s.StrictOrder, s.TenureHold = record.OrderCluster, record.DefaultTenureHold
	for home, says := range map[allocator.Room]string{"": "the room whose instances", "c": "room c has no range"} {
		s.Home = home
		_, err := c.Admin.CreateTag(t.Context(), "o", s, "ann")
		ledgertest.WantKind(t, err, allocator.Invalid, says)
	}
	s.Home = "b"
	if _, err := c.Admin.CreateTag(t.Context(), "o", s, "ann"); err != nil {
		t.Fatal(err)
	}
	home := func(room allocator.Room) error {
		change := func(s *record.TagSettings) error { s.Home = room; return nil }
		_, err := c.Admin.UpdateTag(t.Context(), "o", change, "ann")
		return err
	}
	if err := home("a"); err != nil {
		t.Error(err)
	}
	ledgertest.WantKind(t, home("c"), allocator.Invalid, "room c has no range")
	layout, err := c.Admin.Ledger.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Admin.ChangeLayout(t.Context(), layout, ledgertest.Lay(t, "100 b=50-100"), "ann")
	ledgertest.WantKind(t, err, allocator.Refused, "([o], the first by name)",
		"`march tag update o --home ROOM`")
	// Another operator takes the range of the new home just before that is written.
	conn := c.Mem.Open()
	other, moved := manage(ledgertest.Open(t, conn)), false
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if ledgertest.Writes(txn) && !moved {
			moved = true
			c.Move("100 a=0-50")
		}
		return ledgertest.Fate{Name: ledgertest.Done}
	})
	change := func(s *record.TagSettings) error { s.Home = "b"; return nil }
	_, err = other.UpdateTag(t.Context(), "o", change, "bob")
	ledgertest.WantKind(t, err, allocator.Invalid, "room b has no range")
}

func TestYoungTenureIsStickyForTheOneThatItWasTakenFrom(t *testing.T) {
	inOrder(t, func(t *testing.T, c *cluster) {
		p, q, r := c.startOrdered(t), c.startOrdered(t), c.startOrdered(t)
		time.Sleep(time.Minute) // a process that has just started knows no ages
		p.hold(t, "")
		_, other := q.hold(t, "")
		if q.Sticky("o", other) {
			t.Error("a tenure is sticky for a process that had none")
		}
		q.hold(t, other.Nonce)
		if _, other = r.hold(t, ""); !r.Sticky("o", other) {
			t.Error("a tenure that was taken from a young one is not sticky for a third process")
		}
		time.Sleep(time.Second) // p's confirmation shows that
		_, other = p.hold(t, "")
		time.Sleep(3299 * time.Millisecond)
		if !p.Sticky("o", other) {
			t.Error("a tenure of 4.3 s is not young")
		}
		time.Sleep(6 * time.Second) // a heartbeat has shown its revision for long enough
		if p.Sticky("o", other) {
			t.Error("a tenure of 10 s is young")
		}
		_, was := q.hold(t, "")
		if was != nil {
			t.Fatalf("held by %+v", was)
		}
		time.Sleep(time.Minute)
		p.hold(t, "")
		q.hold(t, "")
		if _, other = p.hold(t, ""); p.Sticky("o", other) {
			t.Error("a tenure is sticky for a process from which another one took it a minute ago")
		}
	})
}

func TestOrderedTagIsLeasedInATenureOnly(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.start("a")
	c.Tag("o", strictly)
	_, err := p.TryLease("o", 10)
	ledgertest.WantKind(t, err, allocator.Refused, "this process does not hold it")
}

func TestOrderNeedsItsFormats(t *testing.T) {
	m := ledgertest.NewFake(t)
	a := admin.New(ledgertest.Open(t, m.Open()), admin.Config{Formats: 1})
	if _, err := a.Init(t.Context(), ledgertest.Lay(t, "100 a=0-50 b=50-100"), "ann"); err != nil {
		t.Fatal(err)
	}
	s := record.DefaultTag()
	s.StrictOrder, s.TenureHold = record.OrderRoom, record.DefaultTenureHold
	_, err := a.CreateTag(t.Context(), "o", s, "ann")
	ledgertest.WantKind(t, err, allocator.Refused, "march cluster upgrade")
	if _, err := a.Upgrade(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.CreateTag(t.Context(), "o", s, "ann"); err != nil {
		t.Error(err)
	}
	_, err = a.UpdateTag(t.Context(), "o", func(s *record.TagSettings) error { s.TenureHold = "5s"; return nil }, "ann")
	ledgertest.WantKind(t, err, allocator.Invalid, "strict_order, tenure_hold: cannot be changed")
}

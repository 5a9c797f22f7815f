package allocator_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/race"
)

// TestKeeps compares Keeps and Outdates with a list of residues.
func TestKeeps(t *testing.T) {
	drawRange := func(t *rapid.T, boundary int64) allocator.Range {
		lower := rapid.Int64Range(0, boundary-1).Draw(t, "lower")
		return allocator.Range{Lower: lower, Upper: rapid.Int64Range(lower+1, boundary).Draw(t, "upper")}
	}
	rapid.Check(t, func(t *rapid.T) {
		from := allocator.Layout{Version: 1, Boundary: rapid.Int64Range(1, 12).Draw(t, "boundary")}
		from.Ranges = map[allocator.Room]allocator.Range{room: drawRange(t, from.Boundary)}
		base := rapid.OneOf(rapid.Int64Range(0, 40), rapid.Int64Range(allocator.MaxID-100,
			allocator.MaxID-50)).Draw(t, "base")
		seg, err := from.Segment(room, base, rapid.Int64Range(1, 30).Draw(t, "n"), allocator.MaxID)
		if err != nil {
			t.Fatal(err)
		}
		to := allocator.Layout{Version: rapid.Int64Range(1, 3).Draw(t, "version"), Boundary: from.Boundary}
		if rapid.IntRange(0, 3).Draw(t, "another boundary") == 0 {
			to.Boundary = rapid.Int64Range(1, 24).Draw(t, "boundary")
		}
		if rapid.IntRange(0, 5).Draw(t, "a range") > 0 {
			to.Ranges = map[allocator.Room]allocator.Range{room: drawRange(t, to.Boundary)}
		}
		has := make(map[int64]bool)
		for residue := to.Ranges[room].Lower; residue < to.Ranges[room].Upper; residue++ {
			has[residue] = true
		}
		all := to.Boundary == from.Boundary
		for residue := seg.Range.Lower; residue < seg.Range.Upper; residue++ {
			all = all && has[residue]
		}
		part := to.Part(room)
		if got := part.Keeps(seg); got != all {
			t.Fatalf("%v keeps %v: %t, want %t", part, seg, got, all)
		}
		if got := part.Outdates(seg); got != (!all && to.Version > seg.Version) {
			t.Fatalf("%v outdates %v: %t", part, seg, got)
		}
		for id := range seg.IDs() {
			if of, ok := to.RoomOf(id); all && (!ok || of != room) {
				t.Fatalf("%v keeps %v, whose ID %d is not the room's", part, seg, id)
			}
		}
		if !seg.Part().Keeps(seg) || (allocator.Part{}).Outdates(seg) {
			t.Fatalf("%v", seg)
		}
	})
}

// TestRenewKeepsWhatFits: a chain keeps the segments that the new layout allows. Before,
// each layout made every chain drop its IDs and lease again, even where the room's
// range had grown or was the same.
func TestRenewKeepsWhatFits(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 10)
		time.Sleep(time.Second)
		c.Observe()
		time.Sleep(time.Second) // it holds its target again
		before, leases := c.Status(), m.leases()
		for _, r := range []allocator.Range{{Lower: 300, Upper: 700}, {Lower: 300, Upper: 800}, {Lower: 0, Upper: 1000},
			{Lower: 300, Upper: 700}} {
			part := m.setRange(r)
			if !c.RenewIfKept(part) || !c.Renewed(part) || c.Outdated(part) {
				w.Errorf("%v: the chain does not keep its segments", part)
			}
			c.Renew(part)
			time.Sleep(time.Minute)
		}
		if s := c.Status(); s.Dropped != 0 || m.leases() != leases ||
			s.Version != before.Version || s.Held != before.Held {
			w.Errorf("%d leases, %+v; before %+v", m.leases()-leases, s, before)
		}
		if first := w.take(c, 1)[0].First; first != 310 {
			w.Errorf("%d, want the next ID of the segment that stayed", first)
		}

		// One residue less: the chain leases fresh IDs first, then drops all old ones.
		part := m.setRange(allocator.Range{Lower: 300, Upper: 699})
		if c.RenewIfKept(part) || c.Renewed(part) {
			w.Error("the chain keeps a segment of which the room lost a residue")
		}
		c.Renew(part)
		time.Sleep(time.Second)
		if s := c.Status(); !c.Renewed(part) || s.Version != part.Version || s.Dropped != before.Held-1 {
			w.Errorf("%+v after the range shrank; %+v before", s, before)
		}
		w.balance(c, m)
	})
}

// TestRenewKeepsALeaseUnderWay: a chain keeps a segment that was leased under the old
// layout and arrives after Renew if the segment fits the new layout. An order to renew
// is cancelled if a newer layout makes it unnecessary.
func TestRenewKeepsALeaseUnderWay(t *testing.T) {
	virtual(t, func(w *world) {
		c, m := w.chain(settings(1000, 1_000_000, time.Minute))
		w.take(c, 1)
		time.Sleep(time.Second)
		m.fault(nil, late)
		w.take(c, c.Status().Held) // asks for more, which is leased at once and answered late
		time.Sleep(time.Millisecond)
		c.Renew(m.setRange(allocator.Range{Lower: 300, Upper: 400}))
		c.Renew(m.setRange(allocator.Range{Lower: 300, Upper: 900}))
		leases := m.leases()
		time.Sleep(2 * time.Second)
		if s := c.Status(); s.Dropped != 0 || s.Version == 0 || m.leases() > leases+1 {
			w.Errorf("%+v", s)
		}
		w.balance(c, m)
	})
}

// TestManyChainsKeep moves many chains 20 times to layouts under which their
// room loses nothing: no chain leases, and none drops an ID.
func TestManyChainsKeep(t *testing.T) {
	virtual(t, func(w *world) {
		many := 100_000
		if race.Enabled || !programs.All() { // .ci/run has 100,000
			many = 2000
		}
		leases := &gauge{}
		chains := make([]*allocator.Chain, many)
		for i := range chains {
			m := newMemory(w, strided())
			m.gauge = leases
			chains[i] = newChain(w, w.refiller, m, settings(10, 100, time.Minute))
			w.take(chains[i], 10) // the rest is less than the target
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		for _, c := range chains {
			c.Observe()
		}
		time.Sleep(time.Minute)
		before := leases.asked.Load()
		for version := int64(2); version <= 21; version++ {
			part := allocator.Part{Version: version, Boundary: 1000,
				Range: allocator.Range{Lower: 301 - version/2, Upper: 699 + version/2}}
			for _, c := range chains {
				if !c.RenewIfKept(part) || !c.Renewed(part) {
					w.Fatalf("%v keeps not all of %v", part, c.Segments())
				}
			}
			time.Sleep(time.Second)
		}
		for _, c := range chains {
			if s := c.Status(); s.Dropped != 0 || s.Version != 1 {
				w.Fatalf("%+v", s)
			}
		}
		if n := leases.asked.Load() - before; n != 0 || before < int64(many) {
			w.Errorf("%d leases over 20 moves, %d before", n, before)
		}
	})
}

package admin_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/ledgertest/draw"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// drawScaled draws a layout of rooms, small, or with a boundary up to the largest.
func drawScaled(t *rapid.T, rooms []allocator.Room) allocator.Layout {
	l := draw.Layout(t, rooms)
	most := allocator.MaxID / l.Boundary
	by := rapid.SampledFrom([]int64{1, 1, 7, 1000, 1 << 40, 1 << 52, most / 3, most}).Draw(t, "scale")
	l.Boundary *= by
	for room, r := range l.Ranges {
		l.Ranges[room] = allocator.Range{Lower: r.Lower * by, Upper: r.Upper * by}
	}
	return l
}

// orders returns every order of rooms.
func orders(rooms []allocator.Room) (all [][]allocator.Room) {
	if len(rooms) == 0 {
		return [][]allocator.Room{nil}
	}
	for i, room := range rooms {
		for _, rest := range orders(slices.Delete(slices.Clone(rooms), i, i+1)) {
			all = append(all, append([]allocator.Room{room}, rest...))
		}
	}
	return all
}

// forecasts is a cluster with a tag of which rooms leased, and what was forecast.
type forecasts struct {
	*memcluster.Cluster
	tag    record.Tag
	marks  map[allocator.Room]record.Mark
	steps  map[allocator.Room]int64
	record record.Layout
}

// drawForecasts makes a cluster of several layouts and leases, and an epoch or two.
func drawForecasts(t *rapid.T, rooms []allocator.Room) *forecasts {
	f := &forecasts{Cluster: memcluster.New(t, "10 a=0-3 b=3-6 c=6-8 d=8-10"), marks: map[allocator.Room]record.Mark{},
		steps: map[allocator.Room]int64{}}
	f.Cluster.Tag("f", func(s *record.TagSettings) {
		s.Start = rapid.SampledFrom([]int64{0, 1, 500}).Draw(t, "start")
		s.Limit = rapid.SampledFrom([]int64{2000, 1 << 50, allocator.MaxID}).Draw(t, "limit")
		s.MinStep, s.MaxStep = 1, 40
		s.MaxJump = allocator.MaxID
		s.Skips = map[allocator.Room]int64{}
		for _, room := range rooms {
			if rapid.IntRange(0, 4).Draw(t, "skips") == 0 {
				s.Skips[room] = rapid.Int64Range(s.Start+1, 1500).Draw(t, "skip")
			}
		}
	})
	for range rapid.IntRange(0, 3).Draw(t, "layouts") {
		f.leases(t, rooms)
		f.MoveTo(draw.Layout(t, rooms))
	}
	if total := rapid.SampledFrom([]int64{0, 0, 2}).Draw(t, "margin total"); total > 0 {
		f.Began(total)
	}
	f.leases(t, rooms)
	for _, room := range rooms {
		f.steps[room] = rapid.Int64Range(1, 40).Draw(t, "step")
	}
	var err error
	if f.record, err = f.Admin.Ledger.Refresh(bg); err != nil {
		t.Fatal(err)
	}
	_, err = f.Admin.EachTag(bg, func(tag record.Tag, marks map[allocator.Room]record.Mark) error {
		if tag.Name == "f" {
			f.tag = tag
			maps.Copy(f.marks, marks)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *forecasts) leases(t *rapid.T, rooms []allocator.Room) {
	for _, room := range rapid.SliceOfN(rapid.SampledFrom(rooms), 0, 4).Draw(t, "rooms that lease") {
		_, _ = f.Start(room).TryLease("f", rapid.Int64Range(1, 40).Draw(t, "count"))
	}
}

// slowFirst returns the first ID of a room that leases after others in the worst
// order, allocator.MaxID where none is left, and that order.
func (f *forecasts) slowFirst(to allocator.Layout, floor int64,
	room allocator.Room) (first int64, worst []allocator.Room) {
	base := func(of allocator.Room) int64 {
		return max(floor, f.marks[of].Next, f.tag.Start, f.tag.Skips[of])
	}
	others := slices.DeleteFunc(to.Rooms(), func(other allocator.Room) bool { return other == room })
	first = -1
	for _, order := range orders(others) {
		at, most := int64(0), int64(allocator.MaxID)
		for _, other := range order {
			if seg, err := to.Segment(other, max(at, base(other)), f.steps[other], f.tag.Limit); err == nil {
				at = max(at, seg.Last()+1)
			}
		}
		if seg, err := to.Segment(room, max(at, base(room)), 1, f.tag.Limit); err == nil {
			most = seg.First
		}
		if most > first {
			first, worst = most, order
		}
	}
	return first, worst
}

// hold holds a room's lease to its forecast.
func (f *forecasts) hold(t *rapid.T, to allocator.Layout, room allocator.Room, says admin.RoomForecast, exactly bool) {
	seg, err := f.Start(room).TryLease("f", f.steps[room])
	switch {
	case err != nil && allocator.KindOf(err) != allocator.Exhausted:
		t.Fatalf("room %s: %v", room, err)
	case err != nil && (says.First != 0 || says.Left != 0):
		t.Fatalf("room %s: %v; forecast: %+v", room, err, says)
	case err != nil:
		return
	case says.First == 0 && !exactly:
		return
	case exactly && seg.First != says.First || seg.First > says.First:
		t.Fatalf("room %s leased %v; forecast: %+v", room, seg, says)
	}
	first, r := max(seg.First, says.First), to.Ranges[room]
	if left := to.CountIDs(r, first, f.tag.Limit); left != says.Left {
		t.Fatalf("room %s has %d IDs left; forecast: %+v", room, left, says)
	}
	if first-says.Next > 100_000 {
		return
	}
	skipped := int64(0)
	for id := says.Next; id < first; id++ {
		if r.Contains(id % to.Boundary) {
			skipped++
		}
	}
	if skipped != says.Skipped {
		t.Fatalf("room %s skips %d IDs; forecast: %+v", room, skipped, says)
	}
}

// TestForecastAgainstACluster holds what is forecast of a change of layout to what
// the rooms of a cluster then lease: in any order no room goes on further, and there
// is an order in which a room goes on exactly there.
func TestForecastAgainstACluster(t *testing.T) {
	weak := map[string]int{}
	enough := func() bool { return weak["nothing left"] > 0 && weak["large, exactly"] > 0 }
	draw.CheckUntil(t, enough, func(t *rapid.T) {
		rooms := []allocator.Room{"a", "b", "c", "d"}
		f := drawForecasts(t, rooms)
		to := drawScaled(t, rooms)
		says := f.Admin.Forecaster(f.record, to).Tag(f.tag, f.marks, f.steps)
		room := rapid.SampledFrom(to.Rooms()).Draw(t, "room")
		first, worst := f.slowFirst(to, says.Floor, room)
		if got := says.Rooms[room].First; got != first && (got != 0 || first != allocator.MaxID) {
			t.Fatalf("room %s: forecast %+v, but the worst first ID is %d, after %v; layout %v, floor %d, steps %v",
				room, says.Rooms[room], first, worst, to, says.Floor, f.steps)
		}
		exactly := rapid.Bool().Draw(t, "in the worst order")
		if !exactly {
			worst = rapid.Permutation(to.Rooms()).Draw(t, "order")
			worst = slices.DeleteFunc(worst, func(other allocator.Room) bool { return other == room })
		}
		f.MoveTo(to)
		for _, other := range worst {
			f.hold(t, to, other, says.Rooms[other], false)
		}
		f.hold(t, to, room, says.Rooms[room], exactly)
		f.Check()
		weak["all"]++
		if says.Rooms[room].Left == 0 {
			weak["nothing left"]++
		}
		if to.Boundary > 1<<40 && exactly {
			weak["large, exactly"]++
		}
	})
	t.Logf("%v", weak)
	if !enough() {
		t.Errorf("weak: %v", weak)
	}
}

// TestForecastOfSeveralMoves: where the rooms lease under each of several layouts, no
// room goes on further than is forecast.
func TestForecastOfSeveralMoves(t *testing.T) {
	draw.CheckInBubble(t, func(t *rapid.T) {
		rooms := []allocator.Room{"a", "b", "c", "d", "e", "f", "g", "h"} // above 6 it is a bound
		rooms = rooms[:rapid.SampledFrom([]int{2, 3, 8}).Draw(t, "rooms")]
		f := drawForecasts(t, rooms)
		moves := []allocator.Layout{draw.Layout(t, rooms), draw.Layout(t, rooms), drawScaled(t, rooms)}
		says := f.Admin.Forecaster(f.record, moves...).Tag(f.tag, f.marks, f.steps)
		for _, to := range moves[:2] {
			f.MoveTo(to)
			for _, room := range rapid.Permutation(to.Rooms()).Draw(t, "order") {
				_, _ = f.Start(room).TryLease("f", f.steps[room])
			}
		}
		to := moves[2]
		f.MoveTo(to)
		for _, room := range rapid.Permutation(to.Rooms()).Draw(t, "order") {
			f.hold(t, to, room, says.Rooms[room], false)
		}
		f.Check()
	})
}

// TestForecastOfALargerBoundary has the cases that were wrong by eight orders.
func TestForecastOfALargerBoundary(t *testing.T) {
	for _, test := range []struct {
		to          string
		a, b        int64 // first IDs at the latest
		nothingLeft allocator.Room
	}{
		{"100000000000000 a=0-50000000000000 b=50000000000000-100000000000000",
			100_000_000_000_000, 50_000_000_000_000, ""},
		{fmt.Sprintf("%d a=0-%d b=%d-%d", int64(allocator.MaxID), 1<<62, 1<<62, int64(allocator.MaxID)),
			0, 1 << 62, "a"},
	} {
		c := memcluster.New(t, "1000 a=0-500 b=500-1000")
		a, b := c.Start("a"), c.Start("b")
		a.Lease(160_000)
		b.Lease(160_000)
		tag, err := c.Admin.Tag(bg, "t")
		if err != nil {
			t.Fatal(err)
		}
		marks := map[allocator.Room]record.Mark{"a": c.Mark("a"), "b": c.Mark("b")}
		from, err := c.Admin.Ledger.Refresh(bg)
		if err != nil {
			t.Fatal(err)
		}
		says := c.Admin.Forecaster(from, ledgertest.Lay(t, test.to)).Tag(tag, marks,
			map[allocator.Room]int64{"a": 1000, "b": 1000})
		if ra, rb := says.Rooms["a"], says.Rooms["b"]; ra.First != test.a || rb.First != test.b || ra.Skipped < 1<<45 ||
			(ra.Left == 0) != (test.nothingLeft == "a") {
			t.Errorf("%s: %+v", test.to, says)
		}
		c.Move(test.to)
		if seg := b.Lease(1000); seg.First != test.b {
			t.Errorf("%s: b leased %v", test.to, seg)
		}
		switch seg, err := a.TryLease("t", 1000); {
		case test.nothingLeft == "a":
			ledgertest.WantKind(t, err, allocator.Exhausted)
		case err != nil || seg.First != test.a:
			t.Errorf("%s: a leased %v, %v", test.to, seg, err)
		}
		c.Check()
	}
}

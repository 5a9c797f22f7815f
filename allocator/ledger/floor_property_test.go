package ledger_test

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest/draw"
	"github.com/march-id/march/allocator/ledger/record"
)

// slowReach is the floor that a mark makes, by numbers without an end: its next and
// as many steps as the mark lacks of the total, each of which spans as many blocks
// as its IDs need in the narrowest range, and one more.
func slowReach(m record.Mark, total, step, narrowest, boundary int64) int64 {
	lacks := new(big.Int).Sub(big.NewInt(total), big.NewInt(m.Total))
	blocks := int64(1)
	for covered := big.NewInt(0); covered.Cmp(big.NewInt(step)) < 0; blocks++ {
		covered.Add(covered, big.NewInt(narrowest))
	}
	d := lacks.Mul(lacks, big.NewInt(blocks)).Mul(lacks, big.NewInt(boundary))
	if d.Sign() < 0 {
		d.SetInt64(0)
	}
	if d.Add(d, big.NewInt(m.Next)); d.Cmp(big.NewInt(allocator.MaxID)) > 0 {
		return allocator.MaxID
	}
	return d.Int64()
}

// ids draws numbers of which small ones and those at the end are likely.
func ids() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(0, 200), rapid.Int64Range(0, 1<<40),
		rapid.Int64Range(allocator.MaxID-1000, allocator.MaxID))
}

func TestReachAgainstASlowOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		narrowest := rapid.OneOf(rapid.Int64Range(1, 50), rapid.Int64Range(1<<30, 1<<50)).Draw(t, "narrowest")
		step := rapid.Int64Range(1, min(narrowest*1000, allocator.LargestStep)).Draw(t, "step")
		boundary := rapid.OneOf(rapid.Int64Range(narrowest, narrowest+100),
			rapid.Int64Range(narrowest, allocator.MaxID)).Draw(t, "boundary")
		total := rapid.OneOf(rapid.Int64Range(0, 20), ids()).Draw(t, "total")
		m := record.Mark{Next: ids().Draw(t, "next")}
		m.Total = rapid.OneOf(rapid.Just(total), rapid.Int64Range(0, 20), ids()).Draw(t, "mark's total")
		got := (&record.Layout{NarrowestRange: narrowest, LargestBoundary: boundary}).Reach(m, total, step)
		if want := slowReach(m, total, step, narrowest, boundary); got != want {
			t.Fatalf("reach %d, want %d", got, want)
		}
	})
}

// No lease of a step spans more than the floor leaves free for it.
func TestReachCoversALease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rooms := []allocator.Room{"a", "b", "c"}
		stored := record.Layout{Layout: draw.Layout(t, rooms)}.After(record.Layout{})
		step := rapid.Int64Range(1, 200).Draw(t, "step")
		m := record.Mark{Next: rapid.Int64Range(0, 500).Draw(t, "next")}
		end := m.Next
		steps := rapid.Int64Range(1, 5).Draw(t, "steps")
		for range steps { // of any rooms, under any layouts
			layout := draw.Layout(t, rooms)
			stored = record.Layout{Layout: layout}.After(stored)
			room, count := rapid.SampledFrom(layout.Rooms()).Draw(t, "room"), rapid.Int64Range(1, step).Draw(t, "count")
			seg, err := layout.Segment(room, end, count, allocator.MaxID)
			if err != nil {
				t.Fatal(err)
			}
			end = seg.Last() + 1
		}
		if got := stored.Reach(m, steps, step); got < end {
			t.Fatalf("%d steps from %d on end at %d, the floor is %d", steps, m.Next, end, got)
		}
	})
}

// slowFloor is the floor by DESIGN 3.2, and the jump by 3.3, a list at a time.
func slowFloor(room allocator.Room, total, start, skip, step, base int64, r record.Layout,
	marks map[allocator.Room]record.Mark) (least, most, jump int64, alone bool) {
	reach := func(next, of int64) int64 {
		return slowReach(record.Mark{Next: next, Total: of}, total, step, r.NarrowestRange, r.LargestBoundary)
	}
	var reaches, nexts []int64
	leased := []int64{max(start, skip)}
	own := reach(start, base)
	for _, other := range r.Ever {
		next, of := start, base
		m, ok := marks[other]
		if ok {
			next, of = m.Next, m.Total
		}
		if len(m.Eras) > 0 {
			leased = append(leased, reach(m.Eras[len(m.Eras)-1].End, m.Total))
		} else {
			leased = append(leased, reach(start, base))
		}
		nexts = append(nexts, next)
		if of < total { // what was lost lies at the start or above, and the room's above its skip
			next = max(next, start)
			if other == room {
				next = max(next, skip)
			}
		}
		reaches = append(reaches, reach(next, of))
		if other == room {
			own = reach(next, of)
		}
	}
	slices.Sort(leased)
	n := len(leased)
	jump = leased[n-1] - leased[n-2] - r.LargestBoundary
	if leased[0] == leased[n-1] || jump < 0 {
		jump = 0
	}
	if first := max(start, skip); first == leased[n-1] { // an operator wants this room to go so far
		jump = 0
	}
	return slices.Max(reaches), slices.Max(nexts), jump, own >= slices.Max(reaches)
}

func TestFloorAgainstASlowOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rooms := []allocator.Room{"a", "b", "c", "gone"}
		stored := record.Layout{Layout: draw.Layout(t, rooms), Ever: rooms}.After(record.Layout{})
		start, skip := ids().Draw(t, "start"), ids().Draw(t, "skip")
		step := rapid.Int64Range(1, 1000).Draw(t, "step")
		total := rapid.Int64Range(0, 9).Draw(t, "total")
		base := rapid.Int64Range(0, total).Draw(t, "base total")
		marks := make(map[allocator.Room]record.Mark)
		for _, room := range rooms {
			next := ids().Draw(t, "next")
			switch rapid.IntRange(0, 2).Draw(t, "mark") {
			case 1: // raised only
				marks[room] = record.Mark{Next: next}
			case 2:
				end := rapid.Int64Range(0, next).Draw(t, "end")
				has := rapid.Int64Range(0, total).Draw(t, "mark's total")
				marks[room] = record.Mark{Next: next, Total: has, Eras: []record.Era{{End: end}}}
			}
		}
		room := rapid.SampledFrom(rooms[:3]).Draw(t, "room")
		terms := record.Terms{Numbers: record.Numbers{Start: start, LargestStep: step, BaseTotal: base},
			Skips: map[allocator.Room]int64{room: skip}}
		got := stored.Floor(room, record.Margins{Total: total}, terms, marks)
		var want record.Floor
		want.Least, want.Most, want.Jump, want.Alone = slowFloor(room, total, start, skip, step, base, stored, marks)
		if got != want {
			t.Fatalf("floor %+v, want %+v", got, want)
		}
	})
}

// A mark, by leases under random stamps and raises between them: next never
// shrinks, and the eras are the last of all that there were.
func TestMarkKeepsTheLatestEras(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m record.Mark
		var all []record.Era
		stamp, total, version := record.Stamp{Epoch: "e0", Revision: 1}, int64(0), int64(1)
		began := int64(0)
		fresh := true
		for range rapid.IntRange(1, 60).Draw(t, "actions") {
			was := m
			eras := slices.Clone(was.Eras)
			switch rapid.IntRange(0, 3).Draw(t, "action") {
			case 0: // a layout
				stamp.Revision++
				version++
				fresh = true
			case 1: // an epoch
				stamp = record.Stamp{Epoch: stamp.Epoch + "'", Revision: rapid.Int64Range(1, 9).Draw(t, "revision")}
				total += rapid.Int64Range(0, 3).Draw(t, "margin")
				version += 1000
				fresh, began = true, -1
			case 2:
				to := m.Next + rapid.Int64Range(-5, 50).Draw(t, "raise")
				m = m.Raised(to)
				if m.Next != max(was.Next, to) || m.Stamp != was.Stamp || m.Total != was.Total ||
					!slices.Equal(m.Eras, was.Eras) {
					t.Fatalf("%+v, raised to %d, is %+v", was, to, m)
				}
			default:
				base := m.Next + rapid.Int64Range(0, 20).Draw(t, "base")
				if began < 0 || m.Stamp == (record.Stamp{}) {
					began = base
				}
				seg := allocator.Segment{Version: version, Boundary: 1, Range: allocator.Range{Upper: 1}, First: base}
				seg.Count = rapid.Int64Range(1, 9).Draw(t, "count")
				if fresh {
					all = append(all, record.Era{Version: version, Epoch: stamp.Epoch, First: base})
				}
				all[len(all)-1].End = seg.Last() + 1
				fresh = false
				m = m.Leased(stamp, total, base, seg)
				if m.Next != seg.Last()+1 || m.Stamp != stamp || m.Total != total || m.Began != began {
					t.Fatalf("%+v, after %v under %+v, is %+v", was, seg, stamp, m)
				}
			}
			if last := all[max(len(all)-record.MaxEras, 0):]; !slices.Equal(m.Eras, last) {
				t.Fatalf("eras %v, want %v", m.Eras, last)
			}
			if !slices.Equal(was.Eras, eras) {
				t.Fatalf("the old mark changed: %v, was %v", was.Eras, eras)
			}
		}
	})
}

package rules

import (
	"math/big"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
)

// Leased reports whether a mark that follows another was leased, and not only raised.
func Leased(now, was record.Mark) bool {
	return now.Stamp != was.Stamp || now.Began != was.Began || !slices.Equal(now.Eras, was.Eras)
}

// Least returns the least ID that a lease of a tag in a room may have: by the tag's settings; if
// it is the room's first under its stamp, by the floor; and in a tag with a period, if it is the
// room's first there in its epoch, by the margins that count in the period. was is the room's mark
// before the lease, and end the lease's end. A lease compares its tag, so these are the settings
// that it was made by.
func Least(before Before, room allocator.Room, tag allocator.Tag, first bool, was record.Mark, end int64) int64 {
	t, _ := before.Tag(tag)
	least := max(t.Start, t.Skip, t.Skips[room])
	if t.Period != (period.Period{}) && end > 0 {
		in, _ := t.Period.Of(end - 1)
		epoch := before.Epoch()
		if era := was.Last(); era.Epoch != epoch.Epoch || era.End <= in.First {
			least = max(least, in.First)
			if d := distance(before.Layout(), margin(epoch.Margins(), in, t.BaseTotal), t.LargestStep); d != nil {
				least = saturated(d.Add(d, big.NewInt(max(least, t.Least))))
			}
		}
	}
	if first {
		least = max(least, before.Floor(tag))
	}
	return least
}

// margin returns how many steps of margins count in a period: all after the last recover whose
// lost leases lie in periods that begin earlier.
func margin(m record.Margins, in period.Span, baseTotal int64) int64 {
	steps := m.Total - baseTotal
	for _, end := range m.Ends {
		if time.UnixMilli(end.Until).Before(in.Begins) {
			steps = min(steps, m.Total-end.Total)
		}
	}
	return steps
}

func (t *transaction) mark(w Write) {
	now, was := *w.Entry.Mark, t.Mark(w.Room, w.Entry.Tag)
	if now.Next < was.Next {
		t.breaks("mark fell", "tag %s room %s: next %d, it was %d", w.Entry.Tag, w.Room, now.Next, was.Next)
	}
	if Leased(now, was) {
		t.lease(w, now, was)
	} else if now.Total < was.Total {
		t.breaks("margin total", "tag %s room %s: %d, it was %d", w.Entry.Tag, w.Room, now.Total, was.Total)
	}
}

// lease checks a mark after a lease.
func (t *transaction) lease(w Write, now, was record.Mark) {
	era, in := now.Last(), t.Layout()
	layout := in.Layout
	say := func(rule, format string, args ...any) {
		t.breaks(rule, "tag %s room %s: "+format, append([]any{w.Entry.Tag, w.Room}, args...)...)
	}
	if era == (record.Era{}) {
		say("era", "it is gone, it was %+v", was.Last())
		return
	}
	switch epoch := t.Epoch(); {
	case epoch.Halted != nil:
		say("lease while halted", "up to %d, in epoch %s", now.Next, era.Epoch)
	case now.Stamp.Epoch != epoch.Epoch || era.Epoch != epoch.Epoch:
		say("stamp", "epoch %s, but %s is in force", era.Epoch, epoch.Epoch)
	case now.Stamp.Revision != in.Revision || era.Version != layout.Version:
		say("stamp", "layout version %d at revision %d, but version %d at %d is in force",
			era.Version, now.Stamp.Revision, layout.Version, in.Revision)
	case now.Total != epoch.MarginTotal:
		say("stamp", "margin total %d, but the epoch has %d", now.Total, epoch.MarginTotal)
	}
	if era.End != now.Next {
		say("era", "it ends at %d, and next is %d", era.End, now.Next)
	}
	if era.End <= was.Next {
		say("overlap", "up to %d is leased, where next was %d", era.End, was.Next)
	}
	first := now.Stamp != was.Stamp
	least, kept := Least(t, w.Room, w.Entry.Tag, first, was, now.Next), was.Eras
	if first {
		if era.First < max(was.Next, least) {
			say("floor", "an era begins at %d; next was %d, the floor %d", era.First, was.Next, least)
		}
	} else {
		kept = kept[:max(len(kept)-1, 0)]
		if era.First != was.Last().First {
			say("era", "it goes on and begins at %d, it began at %d", era.First, was.Last().First)
		}
	}
	if !slices.Equal(now.Eras[:len(now.Eras)-1], kept[max(len(kept)-keptEras, 0):]) {
		say("era", "%v follow %v", now.Eras, was.Eras)
	}
	began := now.Began != was.Began || now.Total != was.Total
	if began && was.Stamp.Epoch == now.Stamp.Epoch || now.Began > era.First {
		say("era", "the room began at %d with total %d, and was at %d with total %d",
			now.Began, now.Total, was.Began, was.Total)
	}
	if era.End <= least {
		say("floor", "up to %d is leased, the floor is %d", era.End, least)
	}
	r, ok := layout.Ranges[w.Room]
	if !ok || era.First < 0 || era.End < 1 ||
		!r.Contains((era.End-1)%layout.Boundary) || first && !r.Contains(era.First%layout.Boundary) {
		say("range", "from %d up to %d is leased; the room has %v mod %d in version %d",
			era.First, era.End, r, layout.Boundary, layout.Version)
	}
	tag, ok := t.Tag(w.Entry.Tag)
	switch settings := tag.TagSettings; {
	case !ok:
		say("tag", "there is no such tag")
	case era.End > settings.Limit:
		say("tag", "up to %d is leased, the limit is %d", era.End, settings.Limit)
	case era.End <= max(settings.Start, settings.Skip, settings.Skips[w.Room]):
		say("tag", "up to %d is leased, the tag starts at %d and the room was skipped to %d",
			era.End, settings.Start, max(settings.Skip, settings.Skips[w.Room]))
	}
	if !t.Registered(w.Room) {
		say("registration", "no instance of the room is registered")
	}
}

// keptEras is how many eras a mark keeps besides the latest.
const keptEras = 7

// Floor returns how far the marks of a tag in all rooms reach under a layout and an epoch's
// margins. No room's first lease under them may begin below it. t is nil if the tag is
// gone: then only the marks count.
func Floor(layout record.Layout, m record.Margins, t *record.Tag, marks map[allocator.Room]record.Mark) (floor int64) {
	for _, mark := range marks {
		floor = max(floor, mark.Next)
	}
	if t == nil {
		return floor
	}
	for _, room := range layout.Ever {
		mark, there := marks[room]
		if !there {
			mark = record.Mark{Next: max(t.Start, t.Skip), Total: t.BaseTotal}
		}
		if mark.Total < m.Total { // lost leases began at the start, or at a skip, of this life or an earlier one
			mark.Next = max(mark.Next, t.Start, t.Skip, t.Skips[room], t.Least)
		}
		floor = max(floor, reach(layout, m, mark, t))
	}
	return floor
}

// reach returns the least ID that other rooms may lease by a mark: its next, and above it what
// the recovers since its last lease left free. In a tag with a period that is no more than the
// end of the period of the last ID below next, and nothing if that began after all lost leases.
func reach(layout record.Layout, m record.Margins, mark record.Mark, t *record.Tag) int64 {
	d := distance(layout, m.Total-mark.Total, t.LargestStep)
	if d == nil {
		return mark.Next
	}
	to := saturated(d.Add(d, big.NewInt(mark.Next)))
	if t.Period == (period.Period{}) {
		return to
	}
	in, known := t.Period.Of(max(mark.Next, 1) - 1)
	if n := len(m.Ends); !known || n > 0 && time.UnixMilli(m.Ends[n-1].Until).Before(in.Begins) {
		return mark.Next
	}
	return max(mark.Next, min(to, in.End))
}

// distance returns what a margin of so many steps leaves free, nil for nothing: for each step
// (ceil(s/w) + 1) * b, with s the largest step of the tag, w the narrowest range and b the
// largest boundary so far. It uses numbers of any size, so that it does not repeat the code
// that it checks.
func distance(layout record.Layout, steps, largest int64) *big.Int {
	width := big.NewInt(layout.NarrowestRange)
	if width.Sign() < 1 || steps <= 0 {
		return nil
	}
	blocks, rest := new(big.Int).QuoRem(big.NewInt(largest), width, new(big.Int))
	if rest.Sign() > 0 {
		blocks.Add(blocks, big.NewInt(1))
	}
	blocks.Add(blocks, big.NewInt(1))
	d := blocks.Mul(blocks, big.NewInt(layout.LargestBoundary))
	return d.Mul(d, big.NewInt(steps))
}

// saturated returns n, at most the largest limit.
func saturated(n *big.Int) int64 {
	if !n.IsInt64() {
		return allocator.MaxID
	}
	return min(n.Int64(), allocator.MaxID)
}

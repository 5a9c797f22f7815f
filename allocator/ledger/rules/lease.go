package rules

import (
	"math/big"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
)

// Leased reports whether a mark that follows another was leased, and not only raised.
func Leased(now, was record.Mark) bool {
	return now.Stamp != was.Stamp || now.Began != was.Began || !slices.Equal(now.Eras, was.Eras)
}

// Least returns the least ID that a lease of a tag in a room may have, by the tag's settings
// and, if it is the room's first under its stamp, by the floor. A lease compares its tag,
// so these are the settings that it was made by.
func Least(before Before, room allocator.Room, tag allocator.Tag, first bool) int64 {
	t, _ := before.Tag(tag)
	least := max(t.Start, t.Skips[room])
	if first {
		least = max(least, before.Floor(tag))
	}
	return least
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
	least, kept := Least(t, w.Room, w.Entry.Tag, first), was.Eras
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
	case era.End <= max(settings.Start, settings.Skips[w.Room]):
		say("tag", "up to %d is leased, the tag starts at %d and the room was skipped to %d",
			era.End, settings.Start, settings.Skips[w.Room])
	}
	if !t.Registered(w.Room) {
		say("registration", "no instance of the room is registered")
	}
}

// keptEras is how many eras a mark keeps besides the latest.
const keptEras = 7

// Floor returns how far the marks of a tag in all rooms reach under a layout and an epoch's
// margin total. No room's first lease under them may begin below it. t is nil if the tag is
// gone: then only the marks count.
func Floor(layout record.Layout, total int64, t *record.Tag, marks map[allocator.Room]record.Mark) (floor int64) {
	for _, mark := range marks {
		floor = max(floor, mark.Next)
	}
	if t == nil {
		return floor
	}
	for _, room := range layout.Ever {
		mark, there := marks[room]
		if !there {
			mark = record.Mark{Next: t.Start, Total: t.BaseTotal}
		}
		if mark.Total < total { // leases that were lost began at the start, or at a skip
			mark.Next = max(mark.Next, t.Start, t.Skips[room])
		}
		floor = max(floor, reach(layout, total, mark, t))
	}
	return floor
}

// reach returns the least ID that other rooms may lease by a mark: its next, and above it what
// the recovers since its last lease left free. For each step of their margins that is
// (ceil(s/w) + 1) * b, with s the largest step of the tag, w the narrowest range and b the
// largest boundary so far. It uses numbers of any size, so that it does not repeat the code
// that it checks.
//
// A tag with a period needs no more than the end of the period after next's: lost leases lie
// in these two, and none crosses a border.
func reach(layout record.Layout, total int64, mark record.Mark, t *record.Tag) int64 {
	steps, width := big.NewInt(t.LargestStep), big.NewInt(layout.NarrowestRange)
	if width.Sign() < 1 || total <= mark.Total {
		return mark.Next
	}
	blocks, rest := new(big.Int).QuoRem(steps, width, new(big.Int))
	if rest.Sign() > 0 {
		blocks.Add(blocks, big.NewInt(1))
	}
	blocks.Add(blocks, big.NewInt(1))
	d := blocks.Mul(blocks, big.NewInt(layout.LargestBoundary))
	d.Mul(d, big.NewInt(total-mark.Total))
	end := new(big.Int).Add(d, big.NewInt(mark.Next))
	if p := t.Period; p != (period.Period{}) {
		in, known := p.Of(mark.Next)
		after, calendar := p.Of(in.End)
		if known && calendar && end.Cmp(big.NewInt(in.End)) >= 0 {
			if end.Add(d, big.NewInt(after.First)); end.Cmp(big.NewInt(after.End)) > 0 {
				return after.End
			}
		}
	}
	if !end.IsInt64() {
		return allocator.MaxID
	}
	return min(end.Int64(), allocator.MaxID)
}

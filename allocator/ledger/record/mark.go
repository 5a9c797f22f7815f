package record

import (
	"math/bits"
	"slices"
	"time"
	"unique"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
)

// Stamp identifies a layout by the epoch and the mod revision of the layout's key: typing the
// same layout again makes another stamp. The zero value is no stamp.
type Stamp struct {
	Epoch    string `json:"epoch"`
	Revision int64  `json:"layout_revision,string"`
}

// Era is a room's leases of a tag under one stamp: IDs of the room's range in layout Version,
// from First up to End, exclusive. End is the last leased ID + 1.
type Era struct {
	Version int64  `json:"version,string"`
	Epoch   string `json:"epoch"`
	First   int64  `json:"first,string"`
	End     int64  `json:"end,string"`
}

// Mark is a room's leases of a tag. The zero value is the mark of a room that never leased any.
// Marks are values: a changed mark shares no era with the old one.
type Mark struct {
	// the next ID not yet leased; an operator may have raised it above the last era
	Next  int64 `json:"next,string"`
	Stamp Stamp `json:"stamp,omitzero"` // of the last lease; zero if there was no lease yet
	// the margin total of the epoch of Stamp, or of a later lease that a restore lost and a
	// recover raised the mark for
	Total int64 `json:"total,string,omitempty"`
	Began int64 `json:"began,string,omitempty"` // the base of the room's first lease in the epoch of Stamp
	Eras  []Era `json:"eras,omitempty"`         // at most MaxEras, the latest last
}

// Last returns the era of the last lease, the zero Era if nothing was leased.
func (m Mark) Last() Era {
	if len(m.Eras) == 0 {
		return Era{}
	}
	return m.Eras[len(m.Eras)-1]
}

// AbsentMark stands for the mark of a room that has none of a tag: the tag's start, with the
// margin total at the tag's creation.
func AbsentMark(start, baseTotal int64) Mark { return Mark{Next: start, Total: baseTotal} }

// Raised returns the mark with its next raised to at least next. It keeps its stamp, or has
// none if nothing was leased, so that the next lease still has to pass the floor. Every new
// mark is made here, also a lease's.
func (m Mark) Raised(next int64) Mark {
	m.Next = max(m.Next, next)
	return m
}

// Leased returns the mark after a lease of a segment under stamp. total is the margin total of
// the stamp's epoch. The segment was computed up from base, which is at least m.Next. A new
// stamp begins a new era.
func (m Mark) Leased(stamp Stamp, total, base int64, seg allocator.Segment) Mark {
	if m.Stamp.Epoch != stamp.Epoch {
		m.Total, m.Began = total, base
	}
	era := Era{Version: seg.Version, Epoch: stamp.Epoch, First: seg.First, End: seg.Last() + 1}
	kept := m.Eras
	if m.Stamp == stamp {
		era.First = m.Last().First
		kept = kept[:len(kept)-1]
	}
	m.Stamp = stamp
	m.Eras = append(slices.Clone(kept[max(len(kept)+1-MaxEras, 0):]), era)
	return m.Raised(era.End)
}

// Encode returns the stored value of the mark.
func (m Mark) Encode() []byte { return Encode(&m) }

// DecodeMark reads a mark. Its error is a KeyError.
func DecodeMark(kv store.KV) (Mark, error) {
	m, err := decode[Mark](kv)
	m.Stamp.Epoch = oneString(m.Stamp.Epoch)
	for i := range m.Eras {
		m.Eras[i].Epoch = oneString(m.Eras[i].Epoch)
	}
	return m, err
}

// oneString returns one shared copy of an epoch for all marks: an instance may hold a million
// of them.
func oneString(epoch string) string { return unique.Make(epoch).Value() }

// Validate checks that the numbers fit. Its error is Internal.
func (m *Mark) Validate() error {
	if !m.fits() {
		return allocator.Errorf(allocator.Internal, "a mark's numbers do not fit: %s", m.Encode())
	}
	return nil
}

// fits reports whether the numbers of m are possible in a mark.
func (m Mark) fits() bool {
	if len(m.Eras) == 0 { // nothing was leased
		return m.Next >= 0 && m.Stamp == Stamp{} && m.Total == 0 && m.Began == 0
	}
	if m.Stamp.Epoch == "" || m.Stamp.Revision < 1 || m.Total < 0 || m.Total > MostMargin || m.Began < 0 ||
		len(m.Eras) > MaxEras || m.Last().Epoch != m.Stamp.Epoch || m.Last().End > m.Next {
		return false
	}
	for i, e := range m.Eras {
		switch {
		case e.Epoch == "" || e.Version < 1 || e.First < 0 || e.First >= e.End:
			return false
		case i > 0 && (e.First < m.Eras[i-1].End || e.Version < m.Eras[i-1].Version):
			return false
		case e.Epoch == m.Stamp.Epoch && e.First < m.Began:
			return false
		}
	}
	return true
}

// At returns three things about an ID. The first is the era that contains it, zero for none.
// The second is whether the ID may belong to an older era that is no longer kept. The third is
// whether it lies between the eras of two epochs, below a first era that is not of the first
// epoch, or at or above the end of the last era, where only a raise of the mark went.
// recovered says that there was a recover. Layouts of the first epoch have versions from 1 on,
// layouts of a later one versions above RecoverVersions.
func (m Mark) At(id int64, recovered bool) (in Era, older, lost bool) {
	for i, e := range m.Eras {
		switch {
		case id >= e.End:
		case id >= e.First:
			return e, false, false
		case i == 0:
			older = len(m.Eras) == MaxEras
			return Era{}, older, recovered && !older && e.Version > RecoverVersions
		default:
			return Era{}, false, m.Eras[i-1].Epoch != e.Epoch
		}
	}
	return Era{}, false, m.Last().End <= id && id < m.Next
}

// Reach returns the floor that a mark makes under an epoch with a margin total: its next + d,
// with
//
//	d = (the epoch's margin total - the mark's total) * (ceil(s/w) + 1) * b
//
// Here s is the largest step that a lease of the tag ever had, w the narrowest range and b the
// largest boundary of all layouts so far: no lease of s IDs spans more than (ceil(s/w) + 1) *
// b. So d is what the recovers since the mark's last lease left free. It is 0 if s is 0, which
// means unknown. The result saturates at allocator.MaxID, under which nothing is left to lease.
func (r *Layout) Reach(m Mark, total, largestStep int64) int64 {
	if total <= m.Total || largestStep == 0 {
		return m.Next
	}
	return plus(m.Next, r.distance(total-m.Total, largestStep))
}

// distance returns d of Reach for a margin, at most allocator.MaxID.
func (r *Layout) distance(margin, largestStep int64) int64 {
	blocks := (largestStep-1)/r.NarrowestRange + 2 // ceil(s/w) + 1; a step is at most 2^40
	high, span := bits.Mul64(uint64(blocks), uint64(r.LargestBoundary))
	if high != 0 || span > uint64(allocator.MaxID)/uint64(margin) {
		return allocator.MaxID
	}
	return int64(span) * margin
}

// plus adds two IDs, and saturates at allocator.MaxID.
func plus(a, b int64) int64 {
	if a > allocator.MaxID-b {
		return allocator.MaxID
	}
	return a + b
}

// ReachIn returns the floor that a mark of a tag makes: Reach, which for a tag with a period is at
// most the end of the period P of the mark's last ID. That covers the lost leases of P; the margins
// of later periods do not follow from marks: see Open. It is next where P began too late to have
// lost leases.
func (r *Layout) ReachIn(m Mark, margins Margins, t Numbers) int64 {
	reach := r.Reach(m, margins.Total, t.LargestStep)
	if t.Period == (period.Period{}) || reach == m.Next {
		return reach
	}
	if p, ok := t.Period.Of(max(m.Next-1, 0)); ok && margins.reach(p.Begins) {
		return max(m.Next, min(reach, p.End))
	}
	return m.Next
}

// Open returns the least ID of a room's first lease in a period under an epoch, which lies above
// the leases that the recovers so far lost there. These lay at or above the period's first ID, the
// tag's start and the room's skip, or those of an earlier life of the name. Marks do not say how far
// they went: a restore forgets that an instance had opened the period. It is at most the period's
// end, where no ID is left.
func (r *Layout) Open(span period.Span, room allocator.Room, margins Margins, t Terms) int64 {
	first := max(span.First, t.Start, t.Skips[room])
	steps := margins.in(span.Begins, t.BaseTotal)
	if steps > 0 {
		first = max(first, t.Least)
	}
	return min(r.Reach(Mark{Next: first}, steps, t.LargestStep), span.End)
}

// End returns the end of a tag's IDs by its marks and margins, also of those that were lost, in the
// present period and in all into which an instance may have gone that was ahead.
func (r *Layout) End(t Tag, margins Margins, marks map[allocator.Room]Mark, now time.Time) int64 {
	terms, span := t.Terms().At(now)
	end := r.Floor("", margins, terms, marks).Least
	latest := now.Add(2 * marginFor) // recover's clock may have been ahead of this one
	for there := span.End > 0; there && margins.in(span.Begins, t.BaseTotal) > 0 && span.Begins.Before(latest); {
		for _, room := range r.Ever {
			end = max(end, r.Open(span, room, margins, terms))
		}
		span, there = t.Period.Of(span.End)
	}
	return end
}

// reachOf returns the floor that a room's mark of a tag makes, by ReachIn. Leases that a restore
// lost began at or above the tag's start and the room's skip, or those of an earlier life of the
// name, even if the mark is below. So a margin lies above these, too.
func (r *Layout) reachOf(room allocator.Room, m Mark, margins Margins, t Terms) int64 {
	if m.Total < margins.Total {
		m.Next = max(m.Next, t.Start, t.Skips[room], t.Least)
	}
	return r.ReachIn(m, margins, t.Numbers)
}

// Floor is the limit that the marks of all rooms set to a room's leases.
type Floor struct {
	Least int64 // the largest reach of all marks
	Most  int64 // the largest next of all marks
	Jump  int64 // the distance from the furthest room's leases up from those of the second; see Layout.Floor
	Alone bool  // the room itself is the furthest
}

// Floor returns the floor of a room under r and an epoch with a margin total. marks has the
// marks of all rooms that ever were, absent ones too (AbsentMark).
//
// The jump shows a typo in one room, which must not drag all others to the end of the space. So
// it counts only leased IDs. It does not count what a mark was raised by, nor d, which is the
// same for all rooms, nor the distance within one block, which depends only on the order of the
// ranges.
func (r *Layout) Floor(room allocator.Room, margins Margins, t Terms, marks map[allocator.Room]Mark) Floor {
	return r.Floors(margins, t, marks)(room)
}

// Floors compares the marks of a tag once, and returns the floor of any room: Floor for many rooms.
func (r *Layout) Floors(margins Margins, t Terms, marks map[allocator.Room]Mark) func(allocator.Room) Floor {
	var all Floor
	reaches := make(map[allocator.Room]int64, len(r.Ever))
	first, second := int64(0), max(t.present, t.Start)
	for _, other := range r.Ever {
		m, there := marks[other]
		absent := AbsentMark(t.Start, t.BaseTotal)
		leased := absent
		if len(m.Eras) > 0 {
			leased = Mark{Next: m.Last().End, Total: m.Total}
		}
		if !there {
			m = absent
		}
		reach := r.reachOf(other, m, margins, t)
		reaches[other] = reach
		all.Least = max(all.Least, reach)
		all.Most = max(all.Most, m.Next)
		at := r.ReachIn(leased, margins, t.Numbers)
		first, second = max(first, at), max(second, min(first, at))
	}
	return func(room allocator.Room) Floor {
		f := all
		wanted := max(second, t.Skips[room]) // the operator wants it that far
		f.Jump = max(max(first-wanted, 0)-r.LargestBoundary, 0)
		f.Alone = reaches[room] >= f.Least
		return f
	}
}

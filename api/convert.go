package api

import (
	"fmt"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// LayoutToProto returns l as a message.
func LayoutToProto(l allocator.Layout) *marchv1.Layout {
	p := &marchv1.Layout{Version: l.Version, Boundary: l.Boundary,
		Rooms: make(map[string]*marchv1.Range, len(l.Ranges))}
	for room, r := range l.Ranges {
		p.Rooms[string(room)] = rangeToProto(r)
	}
	for name, r := range l.Reserved {
		if p.Reserved == nil {
			p.Reserved = make(map[string]*marchv1.Range, len(l.Reserved))
		}
		p.Reserved[string(name)] = rangeToProto(r)
	}
	return p
}

// LayoutFromProto checks p. Its error is a *allocator.LayoutError, whose Kind
// is Invalid.
func LayoutFromProto(p *marchv1.Layout) (allocator.Layout, error) {
	if p == nil {
		return allocator.Layout{}, &allocator.LayoutError{Problems: []string{"no layout is given"}}
	}
	// Check the number first: Validate compares all pairs of rooms, and a message
	// can name hundreds of thousands.
	if n := len(p.GetRooms()); n > allocator.MaxRooms {
		return allocator.Layout{}, &allocator.LayoutError{Problems: []string{
			fmt.Sprintf("%d rooms; allowed: 1 to %d", n, allocator.MaxRooms),
		}}
	}
	if n := len(p.GetReserved()); n > allocator.MaxRooms {
		return allocator.Layout{}, &allocator.LayoutError{Problems: []string{
			fmt.Sprintf("%d reserved ranges; allowed: 0 to %d", n, allocator.MaxRooms),
		}}
	}
	l := allocator.Layout{
		Version:  p.GetVersion(),
		Boundary: p.GetBoundary(),
		Ranges:   make(map[allocator.Room]allocator.Range, len(p.GetRooms())),
	}
	for name, r := range p.GetRooms() {
		l.Ranges[allocator.Room(name)] = rangeFromProto(r)
	}
	for name, r := range p.GetReserved() {
		if l.Reserved == nil {
			l.Reserved = make(map[allocator.Room]allocator.Range, len(p.GetReserved()))
		}
		l.Reserved[allocator.Room(name)] = rangeFromProto(r)
	}
	if err := l.Validate(); err != nil { // names and absent ranges too
		return allocator.Layout{}, err
	}
	return l, nil
}

// SegmentToProto returns s as a message.
func SegmentToProto(s allocator.Segment) *marchv1.Segment {
	return &marchv1.Segment{
		Version:  s.Version,
		Boundary: s.Boundary,
		Range:    rangeToProto(s.Range),
		First:    s.First,
		Count:    s.Count,
	}
}

// SegmentFromProto checks p. Its error's Kind is Invalid.
func SegmentFromProto(p *marchv1.Segment) (allocator.Segment, error) {
	if p == nil {
		return allocator.Segment{}, allocator.Errorf(allocator.Invalid, "no segment is given")
	}
	s := allocator.Segment{
		Version:  p.GetVersion(),
		Boundary: p.GetBoundary(),
		Range:    rangeFromProto(p.GetRange()),
		First:    p.GetFirst(),
		Count:    p.GetCount(),
	}
	if err := s.Validate(); err != nil {
		return allocator.Segment{}, err
	}
	return s, nil
}

// PartToProto returns p as a message.
func PartToProto(p allocator.Part) *marchv1.Part {
	return &marchv1.Part{Version: p.Version, Boundary: p.Boundary, Range: rangeToProto(p.Range)}
}

// PartFromProto returns p, or the zero Part if p is nil.
func PartFromProto(p *marchv1.Part) allocator.Part {
	return allocator.Part{Version: p.GetVersion(), Boundary: p.GetBoundary(), Range: rangeFromProto(p.GetRange())}
}

// RunsToProto returns runs as messages.
func RunsToProto(runs []allocator.Run) []*marchv1.Run {
	messages := make([]*marchv1.Run, len(runs))
	values := make([]marchv1.Run, len(runs)) // two allocations, however many runs a batch crosses
	for i, run := range runs {
		values[i].First, values[i].Count = run.First, run.Count
		if run.Stride > 1 {
			stride := run.Stride // a copy, so that other runs stay off the heap
			values[i].Stride = &stride
		}
		messages[i] = &values[i]
	}
	return messages
}

// AppendRuns appends runs from messages to dst.
func AppendRuns(dst []allocator.Run, messages []*marchv1.Run) []allocator.Run {
	for _, m := range messages {
		dst = append(dst, allocator.Run{First: m.GetFirst(), Count: m.GetCount(), Stride: m.GetStride()})
	}
	return dst
}

func rangeToProto(r allocator.Range) *marchv1.Range {
	return &marchv1.Range{Lower: r.Lower, Upper: r.Upper}
}

// rangeFromProto returns [0, 0), which no layout takes, for an absent range.
func rangeFromProto(p *marchv1.Range) allocator.Range {
	return allocator.Range{Lower: p.GetLower(), Upper: p.GetUpper()}
}

// MaxBatch is how many IDs one NextBatch returns at most.
const MaxBatch = 100_000

// MaxTexts is how many texts one answer has at most.
const MaxTexts = 10_000

// MaxLease is how many IDs one Lease hands out at most.
const MaxLease = 1_000_000_000

// RatesKept is how many rates are kept, one a second: an instance keeps its own, a
// console those of each room, which its page draws.
const RatesKept = 120

// RateOver is over how many of the last of these the rate that is shown is the mean, and the seconds for which IDs
// that a caller leases count: clients lease for about so long (client.DefaultReserve).
const RateOver = 30

// PageSize returns the number of items of a page: asked, which must be 1 to 1,000,
// or 100 for 0. Its error is Invalid.
func PageSize(asked int32) (int, error) {
	const most, usual = 1000, 100
	switch {
	case asked == 0:
		return usual, nil
	case asked < 0 || asked > most:
		return 0, allocator.Errorf(allocator.Invalid, "page_size: %d; allowed: 1 to %d, 0 for %d", asked, most, usual)
	}
	return int(asked), nil
}

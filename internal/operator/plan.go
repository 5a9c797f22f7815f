package operator

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// PlanToProto returns p as a message.
func PlanToProto(p plan.Plan) *marchv1.Plan {
	answer := &marchv1.Plan{From: api.LayoutToProto(p.From), Target: api.LayoutToProto(p.Target), Atomic: p.Atomic}
	for _, m := range p.Moves {
		answer.Moves = append(answer.Moves, MoveToProto(m))
	}
	return answer
}

// PlanFromProto returns the plan of a message. Its error is Invalid.
func PlanFromProto(p *marchv1.Plan) (plan.Plan, error) {
	from, err := api.LayoutFromProto(p.GetFrom())
	if err != nil {
		return plan.Plan{}, allocator.Errorf(allocator.Invalid, "plan: from: %w", err)
	}
	target, err := api.LayoutFromProto(p.GetTarget())
	if err != nil {
		return plan.Plan{}, allocator.Errorf(allocator.Invalid, "plan: target: %w", err)
	}
	answer := plan.Plan{From: from, Target: target, Atomic: p.GetAtomic()}
	for i, m := range p.GetMoves() {
		move, err := moveFromProto(m)
		if err != nil {
			return plan.Plan{}, allocator.Errorf(allocator.Invalid, "plan: move %d: %w", i+1, err)
		}
		answer.Moves = append(answer.Moves, move)
	}
	return answer, nil
}

// MoveToProto returns a move as a message.
func MoveToProto(m plan.Move) *marchv1.Move {
	p := &marchv1.Move{Kind: api.FromWord[marchv1.MoveKind](string(m.Kind)), Why: m.Why,
		Layout: api.LayoutToProto(m.Layout)}
	for _, room := range m.Loses {
		p.Loses = append(p.Loses, string(room))
	}
	return p
}

func moveFromProto(p *marchv1.Move) (plan.Move, error) {
	layout, err := api.LayoutFromProto(p.GetLayout())
	m := plan.Move{Kind: plan.MoveKind(api.Word(p.GetKind())), Why: p.GetWhy(), Layout: layout}
	for _, room := range p.GetLoses() {
		m.Loses = append(m.Loses, allocator.Room(room))
	}
	return m, err
}

// ByLower returns the names of ranges by their lower ends.
func ByLower(of map[string]*marchv1.Range) []string {
	return slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return cmp.Or(cmp.Compare(of[a].GetLower(), of[b].GetLower()), cmp.Compare(a, b))
	})
}

// Ranges returns the ranges of a layout in words, such as "a [0, 50)". number writes their ends.
func Ranges(l *marchv1.Layout, number func(any) string) (parts []string) {
	add := func(what string, of map[string]*marchv1.Range) {
		for _, name := range ByLower(of) {
			parts = append(parts, what+name+" ["+number(of[name].GetLower())+", "+number(of[name].GetUpper())+")")
		}
	}
	add("", l.GetRooms())
	add("reserved for ", l.GetReserved())
	return parts
}

// uneven is how many times the mean of all shards the fullest one may get before it is worth a word.
const uneven = 1.1

// Unreached says which rooms of a layout do not reach all of n shards where the shard is id mod n, or not evenly: a
// sentence each, without a full stop. For 0 it says nothing. Its error is Invalid.
func Unreached(l allocator.Layout, n int64) (all []string, err error) {
	if n < 0 {
		return nil, allocator.Errorf(allocator.Invalid, "shards: %d; allowed: 1 or more, 0 for none", n)
	}
	if n == 0 {
		return nil, nil
	}
	for _, s := range l.Spread(n) {
		switch why := fmt.Sprintf("the boundary %d and %d have the divisor %d in common, and its range has %d residues",
			l.Boundary, n, s.Divisor, l.Ranges[s.Room].Width()); {
		case s.Reached < n:
			all = append(all, fmt.Sprintf("room %s reaches %d of %d shards by id mod %d: %s",
				s.Room, s.Reached, n, n, why))
		case s.Fullest > uneven:
			all = append(all, fmt.Sprintf(
				"room %s reaches all %d shards by id mod %d, the fullest with %.3g times the mean: %s",
				s.Room, n, n, s.Fullest, why))
		}
	}
	return all, nil
}

// ScarceTags returns the tags that run out first and those that have used most, and the last answer of search.
func ScarceTags(search func(*marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse, error)) (
	list []*marchv1.TagSummary, last *marchv1.SearchTagsResponse, err error) {
	const ofEach = 20
	known := make(map[string]bool)
	for _, by := range []marchv1.TagSort{marchv1.TagSort_TAG_SORT_LASTS, marchv1.TagSort_TAG_SORT_USED} {
		last, err = search(&marchv1.SearchTagsRequest{Sort: by,
			Descending: by == marchv1.TagSort_TAG_SORT_USED, PageSize: ofEach})
		if err != nil {
			return nil, nil, err
		}
		for _, t := range last.GetTags() {
			if name := t.GetTag().GetName(); !known[name] {
				known[name], list = true, append(list, t)
			}
		}
	}
	return list, last, nil
}

// ValidateLayout returns every constraint that a layout breaks.
func ValidateLayout(l *marchv1.Layout) (*marchv1.ValidateLayoutResponse, error) {
	answer := &marchv1.ValidateLayoutResponse{}
	_, err := api.LayoutFromProto(l)
	var invalid *allocator.LayoutError
	if err == nil {
		return answer, nil
	}
	if !errors.As(err, &invalid) {
		return nil, err
	}
	answer.Problems = invalid.Problems
	for i, text := range invalid.Problems {
		detail := &marchv1.LayoutProblem{Text: text}
		if i < len(invalid.Rooms) {
			for _, room := range invalid.Rooms[i] {
				detail.Rooms = append(detail.Rooms, string(room))
			}
		}
		answer.Details = append(answer.Details, detail)
	}
	return answer, nil
}

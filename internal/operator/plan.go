package operator

import (
	"cmp"
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

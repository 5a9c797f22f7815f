package web

import (
	"hash/fnv"
	"net/url"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// costsSoon is after how long a page no longer waits for the cost of its plan: a page
	// must come at once. costsLater is how long later requests of that page wait for the cost.
	costsSoon  = 100 * time.Millisecond
	costsLater = time.Second
	// applyWithin is how long a form waits until a plan is applied. It is short
	// enough that the page can still say why a plan was not applied.
	applyWithin = 5 * time.Second
)

// costs is the cost of a plan, or the progress of counting it.
type costs struct {
	*marchv1.CountPlanCostResponse
	ID    string // of the HTML element; the same for the same plan
	Again string // the address that asks again; empty if the cost is counted
	Wrong string // why it is not being counted; empty if it is
	Rows  []cost
}

type cost struct {
	*marchv1.TagCost
	Rooms []roomCost
}

type roomCost struct {
	Room    string
	Colour  int
	Skipped int64
}

// countCosts asks for the cost of the planner's plan. The console goes on counting
// while the page asks again.
func (h *Handler) countCosts(c *call, p *planner, target *marchv1.Layout, colour map[string]int) {
	wait, count := max(costsSoon-time.Since(c.began), 0), c.Form.Get("costs")
	if count != "" {
		wait = costsLater
	}
	answer, err := h.console.CountPlanCost(c.Context(), &marchv1.CountPlanCostRequest{Plan: p.Plan, Wait: durationpb.New(wait), Count: count})
	if err != nil {
		answer = &marchv1.CountPlanCostResponse{}
	}
	v := &costs{CountPlanCostResponse: answer}
	p.Costs = v
	form := typed(c.Form)
	if form.Del("do"); p.Do != "" {
		form.Set("do", p.Do)
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(form.Encode()))
	v.ID = "costs-" + strconv.FormatUint(sum.Sum64(), 16)
	if err != nil {
		v.Wrong = err.Error()
	}
	if answer.GetCost() != nil {
		v.Rows = costRows(answer.GetCost(), target, colour)
		return
	}
	form.Set("costs", answer.GetCount())
	v.Again = "/migrations?" + form.Encode()
}

// typed returns the fields that a user filled in of the planner's form.
func typed(form url.Values) url.Values {
	kept := url.Values{}
	for _, name := range []string{"boundary", "room", "lower", "upper", "drain", "atomic", "force", "do"} {
		if values := form[name]; len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// costRows are the tags that skip the most.
func costRows(all *marchv1.PlanCost, target *marchv1.Layout, colour map[string]int) (rows []cost) {
	for _, t := range all.GetWorst() {
		if t.GetSkipped() == 0 {
			continue
		}
		row := cost{TagCost: t}
		for _, room := range roomsOf(target) {
			if n := t.GetRooms()[room]; n > 0 {
				row.Rooms = append(row.Rooms, roomCost{room, colour[room], n})
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// MayApply reports whether the plan may be applied, as far as is known.
func (p *planner) MayApply() bool {
	return p.May && (p.Force || p.Costs.GetCost() != nil && p.Costs.GetRefused() == "")
}

// Switches reports whether a move of the plan is a switch.
func (p *planner) Switches() bool {
	return slices.ContainsFunc(p.Plan.GetMoves(), func(m *marchv1.Move) bool {
		return m.GetKind() == marchv1.MoveKind_MOVE_KIND_SWITCH
	})
}

// refresh returns the address at which a browser without scripts asks again for a
// cost that is being counted; empty if none is.
func (v *migrationsView) refresh() string {
	if v.Planner == nil || v.Planner.Costs == nil {
		return ""
	}
	return v.Planner.Costs.Again
}

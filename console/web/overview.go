package web

import (
	"slices"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
)

type overviewView struct {
	*marchv1.GetOverviewResponse
	palette
	Bar       *bar           // nil if no layout can be read
	Migration *migrationView // nil without one
	Total     float64        // IDs per second; -1 for unknown
	Partial   bool           // Total is without instances whose rate is not known
	Up, Known int32
	Trouble   int  // rooms that an operator must look at
	RoomDown  bool // a room with a range issues nothing
	Away      bool // etcd does not answer this console
}

// lowReserve is the reserve below which the page warns.
const lowReserve = 30 * time.Second

func (h *Handler) overview(c *call) (any, error) {
	o, err := h.console.GetOverview(c.Context(), &marchv1.GetOverviewRequest{})
	if err != nil {
		return nil, err
	}
	names := slices.Clone(o.GetEver())
	for _, r := range o.GetRooms() {
		names = append(names, r.GetName())
	}
	o.Problems = c.shown(o.GetProblems())
	v := &overviewView{GetOverviewResponse: o, palette: colours(names...), Total: -1}
	if list := o.GetProblems(); len(list) > 0 { // the worst is first
		v.Away = list[0].GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY && list[0].GetOf() == "console"
	}
	if o.GetLayout() != nil {
		v.Bar = newBar(o.GetLayout().GetLayout(), v.palette)
	}
	if m := o.GetMigration(); m != nil {
		v.Migration = view(c, m, v.palette)
	}
	for _, r := range o.GetRooms() {
		if r.Rate != nil {
			v.Total = max(v.Total, 0) + r.GetRate()
		}
		v.Partial = v.Partial || len(r.GetUnmeasured()) > 0 || r.Rate == nil && r.GetInstances() > 0
		if v.Down(r) || len(r.GetProblems()) > 0 || r.GetAlive() < r.GetInstances() || r.GetEtcdAwaySince() != nil {
			v.Trouble++
		}
		v.RoomDown = v.RoomDown || v.Down(r)
		v.Up, v.Known = v.Up+r.GetAlive(), v.Known+r.GetInstances()
	}
	return v, nil
}

// Down reports whether a room has a range, and no instance can issue its IDs.
func (v *overviewView) Down(r *marchv1.RoomStatus) bool {
	return r.GetRange() != nil && (r.GetAlive() == 0 || v.GetAsOf() != nil && r.GetReady() == 0)
}

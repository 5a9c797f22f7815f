package web

import (
	"slices"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

type overviewView struct {
	*marchv1.GetOverviewResponse
	Bar       *bar // nil if no layout can be read
	Cards     []roomCard
	Migration *migrationView // nil without one
	Total     float64        // IDs per second; -1 for unknown
	Partial   bool           // Total is without instances whose rate is not known
	Up, Known int32
	Trouble   int  // rooms that an operator must look at
	Down      bool // a room with a range issues nothing
	Away      bool // etcd does not answer this console
}

type roomCard struct {
	*marchv1.RoomStatus
	Colour int
	Share  float64 // of the boundary
	Width  int64
	Now    float64 // IDs per second; -1 for unknown
	Spark  spark
	Behind bool // it serves an older layout than the current
	Down   bool // no instance can issue its IDs
	Low    bool // its reserve is short
}

// lowReserve is the reserve, in seconds, below which the page warns.
const lowReserve = 30

func (h *Handler) overview(c *call) (string, any, error) {
	o, err := h.console.GetOverview(c.Context(), &marchv1.GetOverviewRequest{})
	if err != nil {
		return "", nil, err
	}
	names := slices.Clone(o.GetEver())
	for _, r := range o.GetRooms() {
		names = append(names, r.GetName())
	}
	colour := colours(names...)
	o.Problems = c.shown(o.GetProblems())
	v := &overviewView{GetOverviewResponse: o, Total: -1}
	if list := o.GetProblems(); len(list) > 0 { // the worst is first
		v.Away = list[0].GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY && list[0].GetOf() == "console"
	}
	if o.GetLayout() != nil {
		v.Bar = newBar(o.GetLayout().GetLayout(), colour)
	}
	if m := o.GetMigration(); m != nil {
		v.Migration = view(c, m, colour)
	}
	for _, r := range o.GetRooms() {
		card := roomCard{RoomStatus: r, Colour: colour[r.GetName()], Now: -1,
			Spark: newSpark(r.GetRates(), api.RatesKept)}
		if r.Rate != nil {
			card.Now = r.GetRate()
			v.Total = max(v.Total, 0) + card.Now
		}
		v.Partial = v.Partial || len(r.GetUnmeasured()) > 0 || r.Rate == nil && r.GetInstances() > 0
		if r.GetRange() != nil {
			card.Width = r.GetRange().GetUpper() - r.GetRange().GetLower()
			card.Share = float64(card.Width) / float64(o.GetLayout().GetLayout().GetBoundary())
		}
		card.Behind = r.GetVersion() > 0 && r.GetVersion() < o.GetLayout().GetLayout().GetVersion()
		card.Down = r.GetRange() != nil && (r.GetAlive() == 0 || o.GetAsOf() != nil && r.GetReady() == 0)
		card.Low = r.GetReserve() != nil && r.GetReserve().AsDuration().Seconds() < lowReserve
		if card.Down || len(r.GetProblems()) > 0 || r.GetAlive() < r.GetInstances() || r.GetEtcdAwaySince() != nil {
			v.Trouble++
		}
		v.Down = v.Down || card.Down
		v.Up, v.Known = v.Up+r.GetAlive(), v.Known+r.GetInstances()
		v.Cards = append(v.Cards, card)
	}
	return "Overview", v, nil
}

package report

import (
	"slices"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/history"
)

// growth has, for some time past, the highest ID that had come from an instance by any time.
// Answers are added in the order in which they came.
type growth struct {
	points []point
	past   int64     // the highest ID until until
	until  time.Time // the end of the time that points no longer cover
}

// point is the arrival of an ID that was higher than all before.
type point struct {
	at   time.Time
	most int64
}

// keep is how many points are kept: a call that was sent before the first of them is not
// checked. A call takes seconds at most.
const keep = 1 << 17

// before returns the highest ID that had come before a call was sent, -1 for none.
func (g *growth) before(sent time.Time) int64 {
	n, _ := slices.BinarySearchFunc(g.points, sent, func(p point, sent time.Time) int { return p.at.Compare(sent) })
	switch {
	case n > 0:
		return g.points[n-1].most
	case g.until.Before(sent) && !g.until.IsZero():
		return g.past
	}
	return -1
}

func (g *growth) add(received time.Time, most int64) {
	if n := len(g.points); n > 0 && g.points[n-1].most >= most {
		return
	}
	if len(g.points) == 2*keep {
		g.past, g.until = g.points[keep-1].most, g.points[keep-1].at
		g.points = append(g.points[:0], g.points[keep:]...)
	}
	g.points = append(g.points, point{received, most})
}

// served has the reports of one instance, in the order of time.
type served struct{ reports []history.Report }

// at returns the version that an instance had reported when a call was sent: of older segments
// the call gets only IDs of those that this layout keeps. 0 means nothing.
func (s *served) at(sent time.Time) int64 {
	i, _ := slices.BinarySearchFunc(s.reports, sent, func(r history.Report, sent time.Time) int {
		return r.From.Compare(sent)
	})
	if i == 0 {
		return 0
	}
	if r := s.reports[i-1]; r.Until.IsZero() || r.Until.After(sent) {
		return r.Version
	}
	return 0
}

package console

import (
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
)

// reportsNoted is how many reports of a move the log of a migration has, with their times: the
// latest, which the migration waited for.
const reportsNoted = 10

// reportedAt returns when this console saw an instance report m.Moves[k]. It is zero if the
// instance has not reported it, reported a later layout since, or did it while this console was
// not looking.
func reportedAt(m record.Migration, k int, i instance) time.Time {
	move := m.Moves[k]
	if k >= m.Reached || i.Reported() < move.Layout.Version || i.ReportedAt.Before(move.Made) {
		return time.Time{}
	}
	if k+1 < m.Reached && i.Reported() >= m.Moves[k+1].Layout.Version { // that is when it reported the later one
		return time.Time{}
	}
	return i.ReportedAt
}

// noteReports notes in the log of a migration which instances reported its last move, and when,
// as far as this console saw it. The log is bounded, so the earliest of many are a number.
func noteReports(m *record.Migration, instances []instance) {
	k := m.Reached - 1
	if k < 0 || len(m.Moves[k].Loses) == 0 {
		return
	}
	var reported []instance
	for _, i := range instances {
		if slices.Contains(m.Moves[k].Loses, i.Room) && i.Reported() >= m.Moves[k].Layout.Version {
			reported = append(reported, i)
		}
	}
	slices.SortStableFunc(reported, func(a, b instance) int { return reportedAt(*m, k, a).Compare(reportedAt(*m, k, b)) })
	if earlier := len(reported) - reportsNoted; earlier > 0 {
		m.NoteAt(reportedAt(*m, k, reported[earlier-1]), fmt.Sprintf("%d instances reported move %d", earlier, m.Reached))
		reported = reported[earlier:]
	}
	for _, i := range reported {
		m.NoteAt(reportedAt(*m, k, i), fmt.Sprintf("%s reported move %d", i.ID(), m.Reached))
	}
}

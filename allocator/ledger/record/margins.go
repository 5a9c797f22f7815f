package record

import (
	"slices"
	"time"

	"github.com/march-id/march/allocator"
)

// Margins are what recovers left free for instances that they went on without. They are values:
// changed ones share nothing with the old.
type Margins struct {
	Total int64 // of all recovers so far, in steps
	// Ends are of the latest recovers with a margin, the oldest first. Until and Total only grow.
	Ends []MarginEnd
}

// MarginEnd says that all leases that the margins up to a total are for lie in periods that begin
// before a time. Other margins do not count for later periods.
type MarginEnd struct {
	Until int64 `json:"until,string"` // Unix ms
	Total int64 `json:"total,string"`
}

// MostMargin bounds the total of all margins, so that sums fit. No tag has room for so many steps.
const MostMargin = 1 << 60

const (
	// maxMarginEnds bounds the ends of margins that an epoch keeps: where older ones are missing,
	// more margins count, which costs IDs and is safe.
	maxMarginEnds = 8
	// marginFor is how long after a recover's clock a period may begin that has lost leases: an
	// instance may have been 24 hours ahead, and recover 24 hours behind.
	marginFor = 49 * time.Hour
)

// Grown returns m after a recover at a time, with a total. Leases that were lost in earlier
// histories lie before this recover too, so ends that are missing in m do no harm.
func (m Margins) Grown(total int64, at time.Time) Margins {
	var last MarginEnd
	if n := len(m.Ends); n > 0 {
		last = m.Ends[n-1]
	}
	if m.Total = total; total > last.Total {
		end := MarginEnd{Until: max(last.Until, at.Add(marginFor).UnixMilli()), Total: total}
		m.Ends = append(slices.Clone(m.Ends[max(len(m.Ends)+1-maxMarginEnds, 0):]), end)
	}
	return m
}

// in returns the margins that count in a period that begins at a time, in steps: those of recovers
// whose lost leases may lie there. A tag whose name was never in use has a base total.
func (m Margins) in(begins time.Time, baseTotal int64) int64 {
	over := baseTotal
	for _, end := range m.Ends {
		if end.Until < begins.UnixMilli() {
			over = max(over, end.Total)
		}
	}
	return max(m.Total-over, 0)
}

// reach reports whether lost leases may lie in a period that begins at a time.
func (m Margins) reach(begins time.Time) bool {
	n := len(m.Ends)
	return n == 0 || begins.UnixMilli() <= m.Ends[n-1].Until
}

// validate checks the ends of an epoch or a halt with a total. Its error is Internal.
func (m Margins) validate() error {
	if m.Total < 0 || m.Total > MostMargin {
		return allocator.Errorf(allocator.Internal, "margin total %d; allowed: 0 to %d", m.Total, int64(MostMargin))
	}
	last := MarginEnd{}
	for _, end := range m.Ends {
		if end.Until < max(last.Until, 1) || end.Total <= last.Total || end.Total > m.Total {
			return allocator.Errorf(allocator.Internal, "ends of margins %v with the margin total %d; "+
				"allowed: ends that grow, up to the total", m.Ends, m.Total)
		}
		last = end
	}
	if len(m.Ends) > maxMarginEnds {
		return allocator.Errorf(allocator.Internal, "%d ends of margins; allowed: up to %d", len(m.Ends), maxMarginEnds)
	}
	return nil
}

package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// FullLength and the minimum for a run of it; a shorter run needs its part of it.
const (
	FullLength     = 10 * time.Minute
	fullFaults     = 100
	fullMigrations = 20
	// leastKinds is how many kinds of faults a shorter run needs: it has no time for all of
	// them.
	leastKinds = 10
	// unknownAfter is the length from which a run must have met a transaction that failed and
	// was applied.
	unknownAfter = 30 * time.Second
)

// Least is the minimum for a run.
type Least struct{ Faults, Kinds, Migrations int }

// LeastOf returns the minimum for a run of a length that draws from some kinds of faults: its
// part of the minimum for full length. With few kinds, one of each is enough: the user has
// chosen them and watches, and some take half a minute.
func LeastOf(length time.Duration, kinds int) Least {
	part := func(full int) int { return max(int(int64(full)*int64(min(length, FullLength))/int64(FullLength)), 1) }
	least := Least{Faults: part(fullFaults), Kinds: min(kinds, leastKinds, part(fullFaults)),
		Migrations: part(fullMigrations)}
	if kinds < leastKinds {
		least.Faults = least.Kinds
	}
	return least
}

// weak finds out whether the run shows anything.
func (c *check) weak() {
	r := c.r
	weak := func(format string, args ...any) { r.WeakFor = append(r.WeakFor, fmt.Sprintf(format, args...)) }
	least := LeastOf(r.Run.Time, len(r.Run.Kinds))
	faults := 0
	for _, n := range r.Faults {
		faults += n
	}
	if faults < least.Faults {
		weak("%d faults; a run of %v has %d", faults, r.Run.Time, least.Faults)
	}
	var missing []string
	for _, kind := range r.Run.Kinds {
		if r.Faults[kind] == 0 {
			missing = append(missing, kind)
		}
	}
	slices.Sort(missing)
	switch {
	case r.Run.Time >= FullLength && len(missing) > 0:
		weak("no fault of these kinds: %s", strings.Join(missing, ", "))
	case len(r.Faults) < least.Kinds:
		weak("faults of %d kinds; a run of %v has %d", len(r.Faults), r.Run.Time, least.Kinds)
	}
	if r.Migrations < least.Migrations {
		weak("%d migrations; a run of %v has %d", r.Migrations, r.Run.Time, least.Migrations)
	}
	if r.Transactions.Applied == 0 && r.Run.Time >= unknownAfter {
		weak("no transaction failed and was applied")
	}
	if r.Run.Time >= FullLength {
		for _, row := range slices.Sorted(maps.Values(r.Run.Rows)) {
			if r.Rows[row] == 0 {
				weak("no use of a feature: %s", row)
			}
		}
		for _, column := range r.Run.Columns {
			if r.Columns[column] == 0 {
				weak("no move of a kind: %s", column)
			}
		}
	}
	if r.IDs == 0 {
		weak("no IDs")
	}
	if len(r.Run.Times) > 0 && r.TimeIDs == 0 {
		weak("no time-ordered IDs")
	}
	if len(c.history.Ordered) > 0 && r.Ordered == 0 {
		weak("no answers of tags with a strict order")
	}
	if unseen := r.UnseenWindows.Count; unseen*20 > r.TimeIDs {
		weak("%d of %d time-ordered IDs are of windows that may be in gaps of etcd's history", unseen, r.TimeIDs)
	}
	if r.Planted == 0 {
		weak("no duplicate was planted")
	}
	if unseen := r.Transactions.Unseen; unseen*20 > r.Segments {
		weak("%d of %d leases are not seen in etcd's history", unseen, r.Segments)
	}
	if !c.ended() {
		weak("the run did not come to its end")
	}
}

// ended reports whether the run came to its end: if it did not, callers may have been killed
// before they had recorded all their IDs.
func (c *check) ended() bool {
	return slices.ContainsFunc(c.events, func(e runlog.Event) bool { return e.What == runlog.Ended })
}

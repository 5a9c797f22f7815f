package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/record"
)

// What a run of full length must have; a shorter one its part.
const (
	fullLength     = 10 * time.Minute
	fullFaults     = 100
	fullMigrations = 20
	// leastKinds is how many kinds of faults a shorter run needs: it has not the
	// time for all of them.
	leastKinds = 10
	// unknownAfter is how long a run must be to have met a transaction that failed
	// and was applied.
	unknownAfter = 30 * time.Second
)

// weak finds out whether the run shows anything.
func (c *check) weak() {
	r := c.r
	weak := func(format string, args ...any) { r.WeakFor = append(r.WeakFor, fmt.Sprintf(format, args...)) }
	part := func(full int) int { return int(int64(full) * int64(min(r.Run.Time, fullLength)) / int64(fullLength)) }
	faults := 0
	for _, n := range r.Faults {
		faults += n
	}
	if least := max(part(fullFaults), 1); faults < least {
		weak("%d faults; a run of %v has %d", faults, r.Run.Time, least)
	}
	var missing []string
	for _, kind := range r.Run.Kinds {
		if r.Faults[kind] == 0 {
			missing = append(missing, kind)
		}
	}
	slices.Sort(missing)
	least := min(len(r.Run.Kinds), leastKinds, max(part(fullFaults), 1))
	switch {
	case r.Run.Time >= fullLength && len(missing) > 0:
		weak("no fault of these kinds: %s", strings.Join(missing, ", "))
	case len(r.Faults) < least:
		weak("faults of %d kinds; a run of %v has %d", len(r.Faults), r.Run.Time, least)
	}
	if least := max(part(fullMigrations), 1); r.Migrations < least {
		weak("%d migrations; a run of %v has %d", r.Migrations, r.Run.Time, least)
	}
	if r.Transactions.Applied == 0 && r.Run.Time >= unknownAfter {
		weak("no transaction failed and was applied")
	}
	if r.IDs == 0 {
		weak("no IDs")
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

// ended reports whether the run came to its end: if it did not, callers may have
// been killed before they had written down all.
func (c *check) ended() bool {
	return slices.ContainsFunc(c.events, func(e record.Event) bool { return e.What == record.Ended })
}

package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// machines checks that no two clients had one machine ID at a time.
func (c *check) machines() error {
	all, err := runlog.ReadHoldings(c.dir)
	if err != nil || len(all) == 0 {
		return err
	}
	// Operators stop the clients of CosId before they recover an etcd that forgot: a new one may get the same ID.
	for i := range all {
		for _, s := range c.told {
			if all[i].From.Before(s.to) && all[i].Until.After(s.from) {
				all[i].Until = s.from
			}
		}
	}
	c.r.Machines = len(all)
	c.r.SameMachine = overlaps(all)
	// One more client has one of the IDs at the same time. That must be found.
	again := all[0]
	again.Client = "planted"
	if found := overlaps(append(all, again)); again.Until.After(again.From) && found.Count == c.r.SameMachine.Count {
		c.r.Checker.add(1, fmt.Sprintf("the oracle of machine IDs missed what was planted: %d", again.Number))
	}
	return nil
}

// overlaps finds the machine IDs that two clients had at a time.
func overlaps(all []runlog.Holding) (found Finding) {
	slices.SortFunc(all, func(a, b runlog.Holding) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), a.From.Compare(b.From))
	})
	var last runlog.Holding // of this number, that which ends last
	for _, h := range all {
		if h.Number == last.Number && h.From.Before(last.Until) && h.Until.After(h.From) {
			found.add(1, fmt.Sprintf("%s had machine ID %d from %s on, and %s had it until %s", h.Client, h.Number,
				h.From.Format(stamp), last.Client, last.Until.Format(stamp)))
		}
		if h.Number != last.Number || h.Until.After(last.Until) {
			last = h
		}
	}
	return found
}

package operator

import (
	"fmt"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// effects says what a change of a tag's settings does, a sentence for each setting.
func effects(before, after record.TagSettings, marks map[allocator.Room]record.Mark) (list []string) {
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if before.Limit != after.Limit {
		next := after.Start
		for _, m := range marks {
			next = max(next, m.Next)
		}
		if _, rooms := stopped(marks, after.Limit); after.Limit < before.Limit && rooms != nil {
			say("These rooms stop issuing at once, because they have leased IDs from the limit on: %s.",
				strings.Join(rooms, ", "))
		}
		say("From the largest mark on, %d, the tag has %d IDs left; now it has %d.", next, max(after.Limit-next, 0),
			max(before.Limit-next, 0))
	}
	if before.MaxJump != after.MaxJump {
		say("No room goes on above a mark that is more than %d ahead of all other rooms, "+
			"before an operator agrees; now %d.", after.MaxJump, before.MaxJump)
	}
	switch {
	case before.MaxSkew == after.MaxSkew:
	case after.MaxSkew == 0:
		say("A lease may begin any number of IDs below the furthest room's mark; now at most %d.", before.MaxSkew)
	default:
		say("Leases begin at most %d IDs below the furthest room's mark: a room that is further behind skips the "+
			"IDs up to there.", after.MaxSkew)
	}
	if before.StrictRetract != after.StrictRetract {
		if after.StrictRetract {
			say("An instance stops issuing IDs of the tag when etcd has not confirmed its layout for as long as its " +
				"hold, whatever its reserve.")
		} else {
			say("Instances go on issuing in an outage of etcd, as long as their reserve lasts. " +
				"They may then issue residues that their room gave up: unique IDs, but out of range.")
		}
	}
	return append(list, timeEffects(before.Time, after.Time)...)
}

// timeEffects is effects for the settings of time-ordered IDs; nil for those of a counter.
func timeEffects(before, after *record.TimeTag) (list []string) {
	if before == nil || after == nil {
		return nil
	}
	if before.Sequence != after.Sequence || before.CarryTo != after.CarryTo || before.RandomBelow != after.RandomBelow {
		switch after.Sequence {
		case timeid.Carry:
			list = append(list, fmt.Sprintf("A tick begins above the last sequence of the tick before, "+
				"and at 1 once that was %d or more.", after.CarryTo))
		case timeid.Random:
			list = append(list, fmt.Sprintf("A tick begins at a random sequence below %d, so it has fewer IDs.",
				after.RandomBelow))
		default:
			list = append(list, "Each tick begins at sequence 0.")
		}
	}
	if before.Rollback != after.Rollback || before.MaxWaitMS != after.MaxWaitMS {
		switch after.Rollback {
		case timeid.Offset:
			list = append(list,
				"While its clock is behind the last ID, an instance goes on ahead of the clock, by 10 s at most.")
		case timeid.Fail:
			list = append(list, "While its clock is behind the last ID, an instance refuses calls at once.")
		default:
			list = append(list, fmt.Sprintf("While its clock is behind the last ID, calls wait for up to %d ms, "+
				"and then fail.", after.MaxWaitMS))
		}
	}
	return list
}

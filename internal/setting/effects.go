package setting

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// effect returns what a change of a setting does; empty for nothing.
type effect func(before, after record.TagSettings, marks map[allocator.Room]record.Mark) string

// Effects returns what a change of a tag's settings does, a sentence for each setting.
func Effects(before, after record.TagSettings, marks map[allocator.Room]record.Mark) (list []string) {
	for _, s := range table {
		if s.effect != nil && (s.Kind == Timed) == (after.Time != nil) {
			if text := s.effect(before, after, marks); text != "" && !slices.Contains(list, text) {
				list = append(list, text)
			}
		}
	}
	return list
}

// Stopped returns the rooms that a limit stops, and the same with their next IDs, in words.
func Stopped(marks map[allocator.Room]record.Mark, limit int64) (rooms, said []string) {
	for _, room := range slices.Sorted(maps.Keys(marks)) {
		if next := marks[room].Next; next > limit {
			rooms = append(rooms, string(room))
			said = append(said, fmt.Sprintf("%s (its next ID is %d or higher)", room, next))
		}
	}
	return rooms, said
}

func limitEffect(before, after record.TagSettings, marks map[allocator.Room]record.Mark) (text string) {
	if before.Limit == after.Limit {
		return ""
	}
	next := after.Start
	for _, m := range marks {
		next = max(next, m.Next)
	}
	if _, rooms := Stopped(marks, after.Limit); after.Limit < before.Limit && rooms != nil {
		text = fmt.Sprintf("These rooms stop issuing at once, because they have leased IDs from the limit on: %s. ",
			strings.Join(rooms, ", "))
	}
	return text + fmt.Sprintf("From the largest mark on, %d, the tag has %d IDs left; now it has %d.", next,
		max(after.Limit-next, 0), max(before.Limit-next, 0))
}

func jumpEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	if before.MaxJump == after.MaxJump {
		return ""
	}
	return fmt.Sprintf("No room goes on above a mark that is more than %d ahead of all other rooms, "+
		"before an operator agrees; now %d.", after.MaxJump, before.MaxJump)
}

func skewEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	switch after.MaxSkew {
	case before.MaxSkew:
		return ""
	case 0:
		return fmt.Sprintf("A lease may begin any number of IDs below the furthest room's mark; now at most %d.",
			before.MaxSkew)
	}
	return fmt.Sprintf("Leases begin at most %d IDs below the furthest room's mark: a room that is further behind "+
		"skips the IDs up to there.", after.MaxSkew)
}

func strictEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	switch {
	case before.StrictRetract == after.StrictRetract:
		return ""
	case after.StrictRetract:
		return "An instance stops issuing IDs of the tag when etcd has not confirmed its layout for as long as its " +
			"hold, whatever its reserve."
	}
	return "Instances go on issuing in an outage of etcd, as long as their reserve lasts. " +
		"They may then issue residues that their room gave up: unique IDs, but out of range."
}

func sequenceEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	a, b := before.Time, after.Time
	switch {
	case a.Sequence == b.Sequence && a.CarryTo == b.CarryTo && a.RandomBelow == b.RandomBelow:
		return ""
	case b.Sequence == timeid.Carry:
		return fmt.Sprintf("A tick begins above the last sequence of the tick before, "+
			"and at 1 once that was %d or more.", b.CarryTo)
	case b.Sequence == timeid.Random:
		return fmt.Sprintf("A tick begins at a random sequence below %d, so it has fewer IDs.", b.RandomBelow)
	}
	return "Each tick begins at sequence 0."
}

func rollbackEffect(before, after record.TagSettings, _ map[allocator.Room]record.Mark) string {
	a, b := before.Time, after.Time
	switch {
	case a.Rollback == b.Rollback && a.MaxWaitMS == b.MaxWaitMS:
		return ""
	case b.Rollback == timeid.Offset:
		return "While its clock is behind the last ID, an instance goes on ahead of the clock, by 10 s at most."
	case b.Rollback == timeid.Fail:
		return "While its clock is behind the last ID, an instance refuses calls at once."
	}
	return fmt.Sprintf("While its clock is behind the last ID, calls wait for up to %d ms, and then fail.", b.MaxWaitMS)
}

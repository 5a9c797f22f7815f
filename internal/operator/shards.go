package operator

import (
	"fmt"

	"github.com/march-id/march/allocator"
)

// uneven is how many times the mean of all shards the fullest one may get before it is worth a word.
const uneven = 1.1

// Unreached says which rooms of a layout do not reach all of n shards where the shard is id mod n, or not evenly: a
// sentence each, without a full stop. For 0 it says nothing. Its error is Invalid.
func Unreached(l allocator.Layout, n int64) (all []string, err error) {
	if n < 0 {
		return nil, allocator.Errorf(allocator.Invalid, "shards: %d; allowed: 1 or more, 0 for none", n)
	}
	if n == 0 {
		return nil, nil
	}
	for _, s := range l.Spread(n) {
		switch why := fmt.Sprintf("the boundary %d and %d have the divisor %d in common, and its range has %d residues",
			l.Boundary, n, s.Divisor, l.Ranges[s.Room].Width()); {
		case s.Reached < n:
			all = append(all, fmt.Sprintf("room %s reaches %d of %d shards by id mod %d: %s",
				s.Room, s.Reached, n, n, why))
		case s.Fullest > uneven:
			all = append(all, fmt.Sprintf(
				"room %s reaches all %d shards by id mod %d, the fullest with %.3g times the mean: %s",
				s.Room, n, n, s.Fullest, why))
		}
	}
	return all, nil
}

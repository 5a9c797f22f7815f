// Package draw draws random clusters and transactions for tests of properties. It stands apart from ledgertest,
// as rapid costs each process that links it 13 ms at its start, and tests start thousands.
package draw

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
)

// Layout draws a valid layout with small numbers, unaligned.
func Layout(t *rapid.T, rooms []allocator.Room) allocator.Layout {
	l := allocator.Layout{Boundary: rapid.Int64Range(1, 24).Draw(t, "boundary"),
		Ranges: map[allocator.Room]allocator.Range{}}
	at := int64(0)
	for _, room := range rapid.Permutation(rooms).Draw(t, "order") {
		lower := at + rapid.Int64Range(0, 2).Draw(t, "gap")
		upper := lower + rapid.Int64Range(1, 9).Draw(t, "width")
		if upper = min(upper, l.Boundary); lower < upper {
			l.Ranges[room] = allocator.Range{Lower: lower, Upper: upper}
			at = upper
		}
	}
	if len(l.Ranges) == 0 {
		l.Ranges[rooms[0]] = allocator.Range{Lower: 0, Upper: l.Boundary}
	}
	return l
}

// CheckInBubble is rapid.Check with a clock that makes waiting free.
func CheckInBubble(t *testing.T, f func(*rapid.T)) {
	rapid.Check(t, func(rt *rapid.T) {
		var failed any // how rapid ends a test
		synctest.Test(t, func(*testing.T) {
			defer func() { failed = recover() }()
			f(rt)
		})
		switch {
		case strings.HasSuffix(fmt.Sprintf("%T", failed), "invalidData"):
			panic(failed)
		case failed != nil: // from a line of its own, by which rapid tells failures apart
			panic(failed)
		}
	})
}

// CheckUntil is CheckInBubble until enough was seen. A run under -short has a fifth of the
// examples, among which there may be none of a rare kind.
func CheckUntil(t *testing.T, enough func() bool, f func(*rapid.T)) {
	for round := 0; round < 20 && (round == 0 || !enough()) && !t.Failed(); round++ {
		CheckInBubble(t, f)
	}
}

package sim_test

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/march-id/march/allocator"
)

// dice is the randomness of one purpose. The world's seed or script, together with the name,
// decides all its results.
type dice struct{ *rand.Rand }

func (w *world) dice(name string) dice {
	random := rand.NewPCG(w.seed, hashOf(name))
	if len(w.script) == 0 {
		return dice{rand.New(random)}
	}
	return dice{rand.New(&scripted{script: w.script, at: int(hashOf(name) % uint64(len(w.script))), rest: random})}
}

// scripted is a source of randomness with its high bytes from a script: a choice among few
// follows the script.
type scripted struct {
	script []byte
	at     int
	rest   rand.Source
}

// Uint64 implements rand.Source.
func (s *scripted) Uint64() uint64 {
	high := s.script[s.at]
	s.at = (s.at + 1) % len(s.script)
	return uint64(high)<<56 | s.rest.Uint64()>>8
}

func hashOf(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return h.Sum64()
}

// chance is true once in n times.
func (d dice) chance(n int) bool { return d.IntN(n) == 0 }

// between returns a duration in [least, most), evenly.
func (d dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64(most-least)))
}

// pick returns one of some values.
func pick[T any](d dice, some []T) T { return some[d.IntN(len(some))] }

// lanes is how many sleepers have last digits of their own.
const lanes = 512

// align returns the least duration from d on after which the clock shows a time of the lane.
func align(d time.Duration, lane int) time.Duration {
	at := time.Now().Add(d).UnixNano()
	return d + time.Duration((int64(lane)-at%lanes+lanes)%lanes)
}

// layout draws a valid layout of some of the rooms.
func (d dice) layout(rooms []allocator.Room) allocator.Layout {
	boundary := pick(d, []int64{1, 3, 10, 24, 24, 24, 100, 100, 1000, 1 << 40})
	l := allocator.Layout{Boundary: boundary, Ranges: make(map[allocator.Room]allocator.Range)}
	at := int64(0)
	for _, i := range d.Perm(len(rooms)) {
		if d.chance(5) {
			continue
		}
		left := boundary - at
		lower := at
		if d.chance(3) {
			lower += d.Int64N(left/8 + 1)
		}
		upper := min(lower+1+d.Int64N(max(2*left/int64(len(rooms)), 1)), boundary)
		if lower < upper {
			l.Ranges[rooms[i]] = allocator.Range{Lower: lower, Upper: upper}
			at = upper
		}
	}
	if at < boundary && d.chance(2) {
		l.Reserved = map[allocator.Room]allocator.Range{reserved: {Lower: at, Upper: boundary}}
	}
	if len(l.Ranges) == 0 {
		l.Reserved = nil
		l.Ranges[pick(d, rooms)] = allocator.Range{Upper: boundary}
	}
	return l
}

// text writes a layout for a transcript.
func text(l allocator.Layout) string {
	out := fmt.Sprintf("version %d, boundary %d", l.Version, l.Boundary)
	for _, room := range l.ReservedNames() {
		out += fmt.Sprintf(", %s %v", room, l.Reserved[room])
	}
	for _, room := range l.Rooms() {
		out += fmt.Sprintf(", %s %v", room, l.Ranges[room])
	}
	return out
}

package worker

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// Length exports length.
func (c Config) Length(age, tick time.Duration, pinned bool) time.Duration {
	return c.length(age, Request{Tick: tick, Pin: Pin{set: pinned}})
}

// Begin and End export begin and end.
var (
	Begin = begin
	End   = end
)

// Candidate is a worker for Choose, with the time from which it is free.
type Candidate struct {
	Number, Free int64
	By           record.InstanceID
	Mine         bool
}

// Choose exports choose, for instance a/i at a time. callers are the workers that callers may
// have, and unused the numbers without a key.
func Choose(now int64, caller bool, callers allocator.Range, known []Candidate, unused []int64,
	random func(int64) int64) (int64, bool) {
	f := field{now: now, name: "a/i", caller: caller, callers: callers}
	for _, c := range known {
		f.known = append(f.known, candidate{Number: numbered(c.Number), by: c.By,
			free: c.Free, mine: c.Mine})
	}
	for _, n := range unused {
		f.unused = append(f.unused, candidate{Number: numbered(n)})
	}
	c, ok := f.choose(random)
	return c.WorkerID.Number, ok
}

func numbered(n int64) record.Number {
	return record.Number{WorkerID: record.WorkerID{Bits: 10, Number: n}}
}

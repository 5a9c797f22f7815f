package main

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/march-id/march/allocator/format"
)

// textIDs are IDs below a limit, in no order: as many as one round of a loop needs.
func textIDs(largest int64) []int64 {
	ids := make([]int64, 1000)
	for i := range ids {
		ids[i] = int64(rand.Uint64() % (uint64(largest) + 1))
	}
	return ids
}

// textLoop appends texts to one buffer, as a server does for its answers.
//
//go:noinline
func textLoop(f *format.Format, ids []int64, failed *failure) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		buffer := make([]byte, 0, 64)
		for !stop.Load() {
			for _, id := range ids {
				var err error
				if buffer, err = f.Append(buffer[:0], format.Value{ID: id}); err != nil {
					failed.set(err)
					return done
				}
			}
			done += int64(len(ids))
		}
		sink.Store(int64(len(buffer)))
		return done
	}
}

// strconvLoop is the yardstick: the standard library's text in the largest radix that it has.
//
//go:noinline
func strconvLoop(ids []int64) func(*atomic.Bool) int64 {
	return func(stop *atomic.Bool) (done int64) {
		buffer := make([]byte, 0, 64)
		for !stop.Load() {
			for _, id := range ids {
				buffer = strconv.AppendInt(buffer[:0], id, 36)
			}
			done += int64(len(ids))
		}
		sink.Store(int64(len(buffer)))
		return done
	}
}

// textRows measures the texts of IDs.
func textRows(_ context.Context, b *bench) error {
	key, err := format.NewKey("bench", make([]byte, format.KeySize))
	if err != nil {
		return err
	}
	formats := make(map[string]*format.Format)
	for _, description := range []string{"radix62(11)", "opaque(bench, 10^12) | decimal(12)",
		"opaque(bench, 549755813889) | radix62(11)"} {
		if formats[description], err = format.Parse(description, key); err != nil {
			return err
		}
	}
	radix, opaque := formats["radix62(11)"], formats["opaque(bench, 10^12) | decimal(12)"]
	worst := formats["opaque(bench, 549755813889) | radix62(11)"] // 2^39+1: half of all numbers of its bits are outside
	all := textIDs(radix.Domain().Largest)

	texts := b.add(row{what: "texts radix62(11), appended, vs strconv.AppendInt of radix 36", unit: "/s", goal: 1})
	few := b.add(row{what: "time per opaque text of 12 digits", unit: "ns", goal: 500, atMost: true})
	most := b.add(row{what: "the same, a domain just above a power of 2", unit: "ns", goal: 500, atMost: true})
	allocs := b.add(row{what: "allocations per text", atMost: true})
	var failed failure
	for range b.rounds {
		texts.yard = append(texts.yard, perSecond(b.unit, 1, strconvLoop(all)))
		texts.measured = append(texts.measured, perSecond(b.unit, 1, textLoop(radix, all, &failed)))
		few.measured = append(few.measured, 1e9/perSecond(b.unit, 1,
			textLoop(opaque, textIDs(opaque.Domain().Largest), &failed)))
		most.measured = append(most.measured, 1e9/perSecond(b.unit, 1,
			textLoop(worst, textIDs(worst.Domain().Largest), &failed)))
		buffer := make([]byte, 0, 64)
		allocs.measured = append(allocs.measured, testing.AllocsPerRun(10_000, func() {
			buffer, _ = radix.Append(buffer[:0], format.Value{ID: all[0]})
			buffer, _ = opaque.Append(buffer[:0], format.Value{ID: 1})
		}))
	}
	return failed.get()
}

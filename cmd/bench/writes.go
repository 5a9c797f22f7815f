package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/cmd/bench/internal/writes"
)

// simulatedTags bounds the simulated active tags. Of more tags only a part is simulated, and
// their writes are multiplied: chains of equal tags write the same.
const simulatedTags = 250

// perTag are the kinds of keys that are written for a tag.
var perTag = []string{"marks", "tags"}

// etcdWrites counts the writes of a whole cluster in etcd, in simulated time. A tenth of the
// tags is active, each in one instance of each room. Idle tags write nothing, so they are left
// out.
func etcdWrites(p *part) {
	simulation := must(writes.Build(p.ctx))
	p.Cleanup(func() { _ = simulation.Close() })
	p.steadyWrites(simulation, p.tags/10)
	p.writesSlopes(simulation)
}

// steadyWrites counts for ten minutes, and in the busiest minute after a change of one range of
// two rooms.
func (p *part) steadyWrites(simulation *writes.Simulation, active int) {
	factor := (active + simulatedTags - 1) / simulatedTags // rounded up, and so are the tags
	spec := writes.Spec{
		Rooms: 12, Instances: 100, Tags: (active + factor - 1) / factor, Rate: 10,
		// Callers begin within the time in which a chain uses a step, so that refills are
		// spread over it. The last step grows 15 s after the first call, and is used up 200 s
		// after it.
		Spread: 581 * time.Second, Settle: 5 * time.Minute,
		Count: 10 * time.Minute, Move: 12 * time.Minute, // a step and more
	}
	p.Logf("%d rooms, %d instances, %d active tags in each room, every %dth of them simulated: "+
		"writes for tags count %[4]d times", spec.Rooms, spec.Instances, spec.Tags*factor, factor)
	p.Logf("callers begin in %v, it settles for %v, %v are counted; then a move, and %v after it", spec.Spread,
		spec.Settle, spec.Count, spec.Move)
	o := must(simulation.Run(p.ctx, spec))
	weights := make(map[string]int64)
	for _, kind := range perTag {
		weights[kind] = int64(factor)
	}
	moved := o.Steady + int(spec.Count/time.Second)
	at := o.Series.Busiest(moved, moved+int(spec.Move/time.Second), 60, weights)
	second := o.Series.Busiest(moved, moved+int(spec.Move/time.Second), 1, weights)
	peak := writes.Total(writes.Weigh(o.Series.Sum(second, second+1), weights))

	scaled := fmt.Sprintf("marks of every %dth tag, times %[1]d", factor)
	of := func(what string, goal float64, from, to int, note string) {
		sums, during := writes.Weigh(o.Series.Sum(from, to), weights), time.Duration(to-from)*time.Second
		p.figure(row{what: fmt.Sprintf("etcd writes, %d rooms, %d instances, %d active tags: %s", spec.Rooms,
			spec.Instances, spec.Tags*factor, what), goal: goal, atMost: true, unit: "writes/s",
			note: fmt.Sprintf("%s; %s%s", split(sums, during), scaled, note)}, rate(writes.Total(sums).Writes, during))
	}
	of("steady", 2200, o.Steady, moved, "")
	of("the busiest minute after a move", 4000, at, at+60, fmt.Sprintf(
		"; it begins %d s after the move; the busiest second has %d", at-moved, peak.Writes))
}

// writesSlopes measures how the writes grow with instances, and with the (tag, room) pairs in
// use: tenfold each, compared with linear growth.
func (p *part) writesSlopes(simulation *writes.Simulation) {
	spec := writes.Spec{
		Rooms: 10, Tags: 200, Rate: 10, Reserve: 2 * time.Minute,
		Spread: time.Minute, Settle: time.Minute, Count: 137 * time.Second, // in which each pair uses one step
	}
	run := func(instances, tags int) writes.Count {
		spec.Instances, spec.Tags = instances, tags
		p.Logf("%d rooms, %d instances, %d pairs of tag and room, a reserve of %v", spec.Rooms, instances,
			spec.Pairs(), spec.Reserve)
		o := must(simulation.Run(p.ctx, spec))
		sums := o.Series.Sum(o.Steady, o.Steady+int(spec.Count/time.Second))
		p.Logf("writes/s: %s", split(sums, spec.Count))
		return writes.Total(sums)
	}
	var grown []writes.Count
	for _, instances := range []int{10, 100, 1000} {
		grown = append(grown, run(instances, spec.Tags))
	}
	pairs := spec.Pairs()
	few := run(100, spec.Tags/10)
	for _, of := range []struct {
		unit string
		get  func(writes.Count) int64
	}{
		{"writes/s", func(c writes.Count) int64 { return c.Writes }},
		{"bytes/s", func(c writes.Count) int64 { return c.Bytes }},
	} {
		slope := func(from, to writes.Count) float64 { return float64(of.get(to)) / float64(of.get(from)) / 10 }
		per := func(c writes.Count) float64 { return rate(of.get(c), spec.Count) }
		p.figure(row{
			what: fmt.Sprintf("etcd %s, 10, 100, 1000 instances, %d pairs: steeper slope to linear", of.unit, pairs),
			goal: 0.99, atMost: true, unit: "times",
			note: fmt.Sprintf("%.4g, %.4g, %.4g %s", per(grown[0]), per(grown[1]), per(grown[2]), of.unit),
		}, max(slope(grown[0], grown[1]), slope(grown[1], grown[2])))
		p.figure(row{
			what: fmt.Sprintf("etcd %s, %d, %d pairs, 100 instances: slope to linear", of.unit, pairs/10, pairs),
			goal: 1, atMost: true, unit: "times",
			note: fmt.Sprintf("%.4g, %.4g %s", per(few), per(grown[1]), of.unit),
		}, slope(few, grown[1]))
	}
}

func rate(n int64, during time.Duration) float64 { return float64(n) / during.Seconds() }

// split lists the writes by kind of key, the most first.
func split(sums map[string]writes.Count, during time.Duration) string {
	kinds := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return int(sums[b].Writes - sums[a].Writes)
	})
	var parts []string
	for _, kind := range kinds {
		parts = append(parts, fmt.Sprintf("%s %.4g", kind, rate(sums[kind].Writes, during)))
	}
	return strings.Join(parts, ", ")
}

package console

import (
	"fmt"
	"maps"
	"slices"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// slotFor is the time of which a trend keeps the largest value.
	slotFor = time.Hour
	// window is how many slots at the beginning and at the end are compared. It is longer
	// than the history that etcd keeps between two compactions, so etcd's size in both
	// windows has as much of that.
	window = 3
	// mostSlots bounds what a trend keeps: two weeks.
	mostSlots = 14 * 24
	// growthNeeds is how long a quantity is measured before its growth is known.
	growthNeeds = 2 * window * slotFor
)

// trend is how a quantity changed while it was measured. It never changes.
type trend struct {
	began time.Time // of the first slot
	peaks []int64   // the largest value of each slot, the oldest first
	last  int64
}

// with returns a trend with one more value.
func (t trend) with(now time.Time, value int64) trend {
	if len(t.peaks) == 0 {
		t.began = now
	}
	t.last, t.peaks = value, slices.Clone(t.peaks)
	slot := int(now.Sub(t.began) / slotFor)
	for len(t.peaks) <= slot { // also those in which nothing was measured
		t.peaks = append(t.peaks, value)
	}
	t.peaks[slot] = max(t.peaks[slot], value)
	if n := len(t.peaks) - mostSlots; n > 0 {
		t.began, t.peaks = t.began.Add(time.Duration(n)*slotFor), t.peaks[n:]
	}
	return t
}

// growth is how fast a quantity grows.
type growth struct {
	// PerSecond is 0 where the quantity does not grow. It counts only if Known.
	PerSecond float64
	// Measured is how long it was measured.
	Measured time.Duration
	// Known is whether it was measured for growthNeeds.
	Known bool
}

// growth compares the largest values of the first three hours and of the last three whole
// ones. A single one that was large, and no longer is, is no growth.
func (t trend) growth(now time.Time) (g growth) {
	if len(t.peaks) == 0 {
		return g
	}
	g.Measured = now.Sub(t.began)
	whole := t.peaks[:len(t.peaks)-1] // without the hour that is not over
	if g.Known = len(whole) >= 2*window; !g.Known {
		return g
	}
	first, last := slices.Max(whole[:window]), slices.Max(whole[len(whole)-window:])
	between := time.Duration(len(whole)-window) * slotFor
	g.PerSecond = max(float64(last-first), 0) / between.Seconds()
	return g
}

// What is measured, and is in the list of what can run out.
const (
	etcdKind    = marchv1.CapacityKind_CAPACITY_KIND_ETCD
	tagsKind    = marchv1.CapacityKind_CAPACITY_KIND_TAGS
	workersKind = marchv1.CapacityKind_CAPACITY_KIND_WORKERS
	etcdBytes   = "bytes in etcd"
	allTags     = "tags"
)

func workersOf(room string, bits int) string {
	return fmt.Sprintf("workers of %d bits in room %s", bits, room)
}

// trends are those of a cluster, as one console measured them in memory, by kind and quantity. They never change.
type trends map[marchv1.CapacityKind]map[string]trend

// note returns the trends with a value of each quantity of a kind; those that are missing are forgotten. An etcd that
// is smaller was defragmented, so its measurement begins anew.
func (t trends) note(now time.Time, kind marchv1.CapacityKind, values map[string]int64) trends {
	next := make(map[string]trend, len(values))
	for what, value := range values {
		was := t[kind][what]
		if kind == etcdKind && value < was.last {
			was = trend{}
		}
		next[what] = was.with(now, value)
	}
	all := maps.Clone(t)
	if all == nil {
		all = make(trends)
	}
	all[kind] = next
	return all
}

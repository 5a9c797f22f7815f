package console

import (
	"maps"
	"slices"
	"sync"
	"time"
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

// trend is how a quantity changed while it was measured.
type trend struct {
	began time.Time // of the first slot
	peaks []int64   // the largest value of each slot, the oldest first
	last  int64
}

// note adds a value.
func (t *trend) note(now time.Time, value int64) {
	if t.began.IsZero() {
		t.began = now
	}
	t.last = value
	slot := int(now.Sub(t.began) / slotFor)
	for len(t.peaks) <= slot { // also those in which nothing was measured
		t.peaks = append(t.peaks, value)
	}
	t.peaks[slot] = max(t.peaks[slot], value)
	if n := len(t.peaks) - mostSlots; n > 0 {
		t.began, t.peaks = t.began.Add(time.Duration(n)*slotFor), slices.Delete(t.peaks, 0, n)
	}
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
func (t *trend) growth(now time.Time) growth {
	g := growth{Measured: now.Sub(t.began)}
	whole := t.peaks[:len(t.peaks)-1] // without the hour that is not over
	if g.Known = len(whole) >= 2*window; !g.Known {
		return g
	}
	first, last := slices.Max(whole[:window]), slices.Max(whole[len(whole)-window:])
	between := time.Duration(len(whole)-window) * slotFor
	g.PerSecond = max(float64(last-first), 0) / between.Seconds()
	return g
}

// workerSlice is a room's workers of one width.
type workerSlice struct {
	Room string
	Bits int32
}

// trends are those of a cluster, as one console measured them in memory. Methods are safe
// for concurrent use. The zero value has measured nothing.
type trends struct {
	mu struct {
		sync.Mutex
		etcd, tags trend
		workers    map[workerSlice]*trend
	}
}

// Etcd notes how many bytes etcd's database has. A smaller one was defragmented, so its
// measurement begins anew.
func (t *trends) Etcd(now time.Time, size int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if size < t.mu.etcd.last {
		t.mu.etcd = trend{}
	}
	t.mu.etcd.note(now, size)
}

// Tags notes how many tags there are.
func (t *trends) Tags(now time.Time, n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.tags.note(now, n)
}

// Workers notes how many workers of each slice have a window. Slices that are missing are
// forgotten.
func (t *trends) Workers(now time.Time, live map[workerSlice]int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.mu.workers, func(s workerSlice, _ *trend) bool { _, there := live[s]; return !there })
	if t.mu.workers == nil {
		t.mu.workers = make(map[workerSlice]*trend)
	}
	for s, n := range live {
		if t.mu.workers[s] == nil {
			t.mu.workers[s] = &trend{}
		}
		t.mu.workers[s].note(now, n)
	}
}

// of returns the growth of what a function picks; nothing is picked by nil.
func (t *trends) of(now time.Time, pick func() *trend) growth {
	t.mu.Lock()
	defer t.mu.Unlock()
	if trend := pick(); trend != nil && !trend.began.IsZero() {
		return trend.growth(now)
	}
	return growth{}
}

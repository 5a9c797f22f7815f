// Package minutes remembers what an instance did in the last 24 hours, a value a minute: how
// many IDs it issued, how long its IDs would have lasted, how fast etcd answered, and how many
// calls failed. The memory is bounded: it has 620 KiB at most. It is lost when the process ends.
package minutes

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// Kept is how many minutes are remembered.
	Kept = 24 * 60
	// MaxTags is how many tags have a history of their own.
	MaxTags = 20
	// longestStep is how many minutes one point may cover, at most.
	longestStep = 60
	// Unknown stands for a value that was not measured.
	Unknown = -1
)

// Check checks how many minutes a caller asks for, and how many minutes each point is to
// cover. Its error is Invalid. 0 stands for 60 minutes and for steps of 1 minute.
func Check(minutes, step int32) (m, each int64, err error) {
	m, each = int64(cmp.Or(minutes, 60)), int64(cmp.Or(step, 1))
	switch {
	case m < 1 || m > Kept:
		return 0, 0, allocator.Errorf(allocator.Invalid, "minutes: %d; allowed: 1 to %d, 0 for 60", minutes, Kept)
	case each < 1 || each > longestStep || m%each != 0:
		return 0, 0, allocator.Errorf(allocator.Invalid,
			"step: %d; allowed: 1 to %d, and a divisor of minutes (%d); 0 for 1", step, longestStep, m)
	}
	return m, each, nil
}

// First returns when the first point of the last minutes begins: a multiple of step minutes,
// so that points of several instances cover the same minutes. The last point has the last
// minute that has ended, and may be incomplete.
func First(now time.Time, minutes, step int64) time.Time {
	last := (minuteOf(now) - 1) / step
	return time.Unix((last-minutes/step+1)*step*60, 0)
}

// Reading is the state of an instance at one moment. The counters only grow.
type Reading struct {
	Issued  int64         // IDs in all
	Reserve time.Duration // the least of the tags in use; negative if none is in use
	Latency time.Duration // of etcd; 0 before its first answer
	Away    bool          // etcd does not answer
}

// TagReading is the state of a tag at one moment.
type TagReading struct {
	Tag     allocator.Tag
	Issued  int64         // IDs since the tag was loaded into memory
	Reserve time.Duration // negative for a tag of time-ordered IDs, and for one that is not in use
	Peak    float64       // the recent peak rate, IDs per second; 0 for a tag that is not to be added
}

// The values of a minute. A point of several minutes has the mean rate, the least reserve, the longest latency, and
// the sums of the others. Of a tag, latency and away are unknown.
const (
	rate    = iota // IDs per second
	reserve        // in seconds
	latency        // of etcd, in seconds
	failed         // calls
	away           // for how many seconds etcd did not answer
	values
)

// minute has the values of a minute, each Unknown if it was not measured. It is small: an instance keeps up to 30,000.
type minute [values]float32

var unknown = minute{Unknown, Unknown, Unknown, Unknown, Unknown}

// track has the last Kept minutes of an instance or a tag. The place of a minute is its Unix time in minutes, modulo
// Kept.
type track struct {
	failed atomic.Int64 // calls in the present minute
	issued int64        // when the present minute began
	ring   [Kept]minute
}

func newTrack(issued int64) *track {
	t := &track{issued: issued}
	for i := range t.ring {
		t.ring[i] = unknown
	}
	return t
}

// end ends a minute. The counter of a tag begins anew when the tag comes back into memory.
func (t *track) end(ended int64, seconds float64, issued int64, m minute) {
	if issued < t.issued {
		t.issued = 0
	}
	if seconds > 0 {
		m[rate] = float32(float64(issued-t.issued) / seconds)
	}
	m[failed] = float32(t.failed.Swap(0))
	t.issued, t.ring[place(ended)] = issued, m
}

// History is the memory. Its zero value is not usable: call Start first.
type History struct {
	all  *track
	tags atomic.Pointer[map[allocator.Tag]*track] // never changed: replaced
	mu   struct {
		sync.Mutex
		now   int64 // the present minute
		began time.Time
		least time.Duration // reserve
		most  time.Duration // latency
		away  int           // seconds
		read  bool          // a reading was taken in the present minute
	}
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

func place(m int64) int64 { return (m%Kept + Kept) % Kept }

// Start begins at a time before which nothing was measured, and no ID was issued.
func (h *History) Start(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = newTrack(0)
	h.tags.Store(&map[allocator.Tag]*track{})
	h.begin(now)
}

// begin begins the present minute. The lock is held.
func (h *History) begin(now time.Time) {
	h.mu.now, h.mu.began = minuteOf(now), now
	h.mu.least, h.mu.most, h.mu.away, h.mu.read = Unknown, Unknown, 0, false
}

// Fail counts a call for an ID of a tag that failed. It takes no lock.
func (h *History) Fail(tag allocator.Tag) {
	h.all.failed.Add(1)
	if t := (*h.tags.Load())[tag]; t != nil {
		t.failed.Add(1)
	}
}

// Ends reports whether the present minute has ended: then End must be called, otherwise Note.
func (h *History) Ends(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return minuteOf(now) != h.mu.now
}

// Note takes a reading within the present minute. It is called once a second.
func (h *History) Note(r Reading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.note(r)
}

func (h *History) note(r Reading) {
	h.mu.read = true
	if r.Reserve >= 0 && (h.mu.least < 0 || r.Reserve < h.mu.least) {
		h.mu.least = r.Reserve
	}
	switch {
	case r.Away:
		h.mu.away = min(h.mu.away+1, 60)
	case r.Latency > 0:
		h.mu.most = max(h.mu.most, r.Latency)
	}
}

// Tags returns the tags that have a history.
func (h *History) Tags() []allocator.Tag { return slices.Sorted(maps.Keys(*h.tags.Load())) }

// End ends the present minute with a reading of the instance and of its tags: the busiest ones
// first, then those of Tags that are in memory. The next minute begins.
func (h *History) End(now time.Time, r Reading, tags []TagReading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.mu.read {
		h.note(r)
	}
	ended, seconds := h.mu.now, now.Sub(h.mu.began).Seconds()
	h.all.end(ended, seconds, r.Issued, minute{Unknown, inSeconds(h.mu.least), inSeconds(h.mu.most), 0,
		float32(h.mu.away)})
	read := make(map[allocator.Tag]TagReading, len(tags))
	for _, r := range slices.Backward(tags) { // the first of each counts
		read[r.Tag] = r
	}
	for tag, t := range *h.tags.Load() {
		r, ok := read[tag]
		if !ok { // not in memory: it issued nothing
			r.Reserve = Unknown
		}
		t.end(ended, seconds, r.Issued, minute{Unknown, inSeconds(r.Reserve), Unknown, 0, Unknown})
	}
	h.addBusy(ended, tags)
	h.forget(ended, minuteOf(now))
	h.begin(now)
}

// forget makes the minutes unknown that were not measured: those between the one that ended
// and the next. If the clock went back, these are the minutes after the next. The lock is held.
func (h *History) forget(ended, next int64) {
	from, to := ended+1, next // to is the present minute: an old value may be in its place
	if next <= ended {
		from, to = next, ended
	}
	for m := max(from, to-Kept+1); m <= to; m++ {
		h.all.ring[place(m)] = unknown
		for _, t := range *h.tags.Load() {
			t.ring[place(m)] = unknown
		}
	}
}

// addBusy adds the busy tags of a list, whose histories begin now. If there are MaxTags, a tag takes the place of
// the least busy one, if that one has less than half of its rate: tags that are about as busy as each other do not
// take turns. The lock is held.
func (h *History) addBusy(ended int64, list []TagReading) {
	tags, busy := maps.Clone(*h.tags.Load()), make(map[allocator.Tag]bool, MaxTags)
	rateOf := func(tag allocator.Tag) float32 { return tags[tag].ring[place(ended)][rate] }
	for _, r := range list {
		if r.Peak <= 0 || len(busy) >= MaxTags {
			continue
		}
		busy[r.Tag] = true
		if tags[r.Tag] != nil {
			continue
		}
		if len(tags) >= MaxTags {
			var least allocator.Tag
			for tag := range tags {
				if !busy[tag] && (least == "" || rateOf(tag) < rateOf(least)) {
					least = tag
				}
			}
			if least == "" || 2*float64(rateOf(least)) >= r.Peak {
				continue
			}
			delete(tags, least)
		}
		tags[r.Tag] = newTrack(r.Issued)
	}
	h.tags.Store(&tags)
}

func inSeconds(d time.Duration) float32 {
	if d < 0 {
		return Unknown
	}
	return float32(d.Seconds())
}

// Last returns the history of the instance and of its tags, the busiest first, and when the
// first point begins.
func (h *History) Last(now time.Time, minutes, step int64) (first time.Time, all *marchv1.HistorySeries,
	tags []*marchv1.HistorySeries) {
	h.mu.Lock()
	defer h.mu.Unlock()
	first = First(now, minutes, step)
	of := h.all.points(minuteOf(first), h.mu.now, minutes/step, step)
	all = &marchv1.HistorySeries{Rates: of[rate], Reserves: of[reserve], Failed: of[failed],
		EtcdLatencies: of[latency], EtcdAway: of[away]}
	for _, tag := range h.Tags() {
		of := (*h.tags.Load())[tag].points(minuteOf(first), h.mu.now, minutes/step, step)
		tags = append(tags, &marchv1.HistorySeries{Tag: string(tag), Rates: of[rate], Reserves: of[reserve],
			Failed: of[failed]})
	}
	slices.SortStableFunc(tags, func(a, b *marchv1.HistorySeries) int { return cmp.Compare(sum(b), sum(a)) })
	return first, all, tags
}

// sum returns the sum of the known rates.
func sum(s *marchv1.HistorySeries) (sum float64) {
	for _, r := range s.GetRates() {
		sum += max(float64(r), 0)
	}
	return sum
}

// points returns n points of step minutes each for each value. Of the minutes at and after to nothing is known yet.
func (t *track) points(from, to, n, step int64) (points [values][]float32) {
	for at := from; at < from+n*step; at += step {
		p, rates := unknown, 0
		for m := max(at, to-Kept+1); m < min(at+step, to); m++ {
			for k, v := range t.ring[place(m)] {
				switch {
				case v < 0:
					continue
				case p[k] < 0:
					p[k] = v
				case k == reserve:
					p[k] = min(p[k], v)
				case k == latency:
					p[k] = max(p[k], v)
				default:
					p[k] += v
				}
				if k == rate {
					rates++
				}
			}
		}
		p[rate] /= float32(max(rates, 1))
		for k, v := range p {
			points[k] = append(points[k], v)
		}
	}
	return points
}

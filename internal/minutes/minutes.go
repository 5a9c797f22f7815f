// Package minutes remembers what an instance did in the last 24 hours, a value a minute: how
// many IDs it issued, how long its IDs would have lasted, how fast etcd answered, and how many
// calls failed. The memory is bounded: it has 370 KiB at most. It is lost when the process ends.
package minutes

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
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

// Point has the values of one or more minutes. Each is Unknown where no minute was measured.
type Point struct {
	Rate    float64 // IDs per second, the mean
	Reserve float64 // the least, in seconds
	Latency float64 // of etcd, the longest, in seconds
	Failed  float64 // calls
	Away    float64 // for how many seconds etcd did not answer
}

// Series are the points of an instance or a tag, the oldest first. The latency and Away of a
// tag are Unknown.
type Series struct {
	Tag    allocator.Tag // empty for an instance
	Points []Point
}

// minute has the values of a minute. It is small: an instance keeps up to 30,000.
type minute struct{ rate, reserve, latency, failed, away float32 }

var unknown = minute{Unknown, Unknown, Unknown, Unknown, Unknown}

// ring has the last Kept minutes. The place of a minute is its Unix time in minutes, modulo
// Kept.
type ring [Kept]minute

// tagMinute has the values of a minute of a tag.
type tagMinute struct{ rate, reserve, failed float32 }

type tagRing [Kept]tagMinute

var unknownTag = tagMinute{Unknown, Unknown, Unknown}

type tagSeries struct {
	failed atomic.Int64 // calls in the present minute
	issued int64        // at the end of the last minute
	ring   tagRing
}

// History is the memory. Its zero value is not usable: call Start first.
type History struct {
	failed  atomic.Int64                                 // calls in the present minute
	current atomic.Pointer[map[allocator.Tag]*tagSeries] // never changed: replaced
	mu      struct {
		sync.Mutex
		ring
		now     int64 // the present minute
		began   time.Time
		issued  int64 // when the present minute began
		reserve time.Duration
		latency time.Duration
		away    int  // seconds
		read    bool // a reading was taken in the present minute
		tags    map[allocator.Tag]*tagSeries
	}
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

func place(m int64) int64 { return (m%Kept + Kept) % Kept }

// Start begins at a time before which nothing was measured. issued is the number of IDs that
// were issued so far.
func (h *History) Start(now time.Time, issued int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.mu.ring {
		h.mu.ring[i] = unknown
	}
	h.mu.tags = make(map[allocator.Tag]*tagSeries)
	h.publish()
	h.mu.now = minuteOf(now)
	h.begin(now, issued)
}

// begin begins the present minute. The lock is held.
func (h *History) begin(now time.Time, issued int64) {
	h.mu.began, h.mu.issued = now, issued
	h.mu.reserve, h.mu.latency, h.mu.away, h.mu.read = Unknown, Unknown, 0, false
}

// publish lets Fail find the tags. The lock is held.
func (h *History) publish() {
	tags := maps.Clone(h.mu.tags)
	h.current.Store(&tags)
}

// Fail counts a call for an ID of a tag that failed. It takes no lock.
func (h *History) Fail(tag allocator.Tag) {
	h.failed.Add(1)
	if tags := h.current.Load(); tags != nil {
		if s := (*tags)[tag]; s != nil {
			s.failed.Add(1)
		}
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
	if r.Reserve >= 0 && (h.mu.reserve < 0 || r.Reserve < h.mu.reserve) {
		h.mu.reserve = r.Reserve
	}
	if r.Latency > 0 && !r.Away {
		h.mu.latency = max(h.mu.latency, r.Latency)
	}
	if r.Away {
		h.mu.away = min(h.mu.away+1, 60)
	}
}

// Tags returns the tags that have a history.
func (h *History) Tags() []allocator.Tag {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.mu.tags))
}

// End ends the present minute with a reading of the instance and of its tags: the busiest ones
// first, then those of Tags that are in memory. The next minute begins.
func (h *History) End(now time.Time, r Reading, tags []TagReading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.mu.read {
		h.note(r)
	}
	ended, next := h.mu.now, minuteOf(now)
	seconds := now.Sub(h.mu.began).Seconds()
	values := unknown
	if seconds > 0 {
		values = minute{
			rate: float32(float64(max(r.Issued-h.mu.issued, 0)) / seconds), reserve: inSeconds(h.mu.reserve),
			latency: inSeconds(h.mu.latency),
			failed:  float32(h.failed.Swap(0)), away: float32(h.mu.away),
		}
	}
	h.endTags(ended, seconds, tags)
	h.mu.ring[place(ended)] = values
	h.forget(ended, next)
	h.mu.now = next
	h.begin(now, r.Issued)
}

// forget makes the minutes unknown that were not measured: those between the one that ended
// and the next. If the clock went back, these are the minutes after the next. The lock is held.
func (h *History) forget(ended, next int64) {
	from, to := ended+1, next // to is the present minute: an old value may be in its place
	if next <= ended {
		from, to = next, ended
	}
	for m := max(from, to-Kept+1); m <= to; m++ {
		h.mu.ring[place(m)] = unknown
		for _, s := range h.mu.tags {
			s.ring[place(m)] = unknownTag
		}
	}
}

// endTags ends the minute of the tags. The lock is held.
func (h *History) endTags(ended int64, seconds float64, list []TagReading) {
	read := make(map[allocator.Tag]bool, len(list))
	for _, r := range list {
		if s := h.mu.tags[r.Tag]; s != nil && !read[r.Tag] {
			s.end(ended, seconds, r)
		}
		read[r.Tag] = true
	}
	busy := make(map[allocator.Tag]bool, MaxTags)
	for tag, s := range h.mu.tags {
		if !read[tag] { // not in memory: it issued nothing
			s.ring[place(ended)] = tagMinute{rate: 0, reserve: Unknown, failed: float32(s.failed.Swap(0))}
			s.issued = 0
		}
	}
	for _, r := range list {
		if r.Peak <= 0 || len(busy) >= MaxTags {
			continue
		}
		busy[r.Tag] = true
		if h.mu.tags[r.Tag] == nil {
			h.add(ended, r, busy)
		}
	}
	h.publish()
}

func (s *tagSeries) end(ended int64, seconds float64, r TagReading) {
	values := tagMinute{rate: Unknown, reserve: inSeconds(r.Reserve), failed: float32(s.failed.Swap(0))}
	if s.issued >= 0 && seconds > 0 {
		if r.Issued < s.issued { // the tag left memory, and came back
			s.issued = 0
		}
		values.rate = float32(float64(r.Issued-s.issued) / seconds)
	}
	s.issued = r.Issued
	s.ring[place(ended)] = values
}

// add adds a busy tag, whose history begins now. If there are MaxTags, it takes the place of
// the least busy one, if that one has less than half of its rate: tags that are about as busy
// as each other do not take turns. The lock is held.
func (h *History) add(ended int64, r TagReading, busy map[allocator.Tag]bool) {
	if len(h.mu.tags) >= MaxTags {
		var least allocator.Tag
		for tag, s := range h.mu.tags {
			if !busy[tag] && (least == "" || s.ring[place(ended)].rate < h.mu.tags[least].ring[place(ended)].rate) {
				least = tag
			}
		}
		if least == "" || 2*float64(h.mu.tags[least].ring[place(ended)].rate) >= r.Peak {
			return
		}
		delete(h.mu.tags, least)
	}
	s := &tagSeries{issued: r.Issued}
	for i := range s.ring {
		s.ring[i] = unknownTag
	}
	h.mu.tags[r.Tag] = s
}

func inSeconds(d time.Duration) float32 {
	if d < 0 {
		return Unknown
	}
	return float32(d.Seconds())
}

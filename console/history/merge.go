// Package history puts together what instances remember of the last 24 hours, and draws it.
// Everything here is pure: the console asks the instances, and the pages show the drawings.
package history

import (
	"cmp"
	"maps"
	"slices"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/minutes"
)

// Told is the answer of an instance.
type Told struct {
	Room   string
	Answer *marchv1.GetInstanceHistoryResponse // nil if it did not answer
}

// Span says which points an answer has.
type Span struct {
	First  time.Time // when the first point begins
	Step   int64     // how many minutes a point covers
	Points int
}

// Merge puts the answers together, by room and by tag. Each of rooms is in the answer. The
// tags are minutes.MaxTags at most, the busiest first.
func Merge(span Span, rooms []string, told []Told) (list []*marchv1.RoomHistory, tags []*marchv1.HistorySeries) {
	byRoom, byTag := make(map[string]*merged), make(map[string]*series)
	for _, room := range rooms {
		byRoom[room] = newMerged(span)
	}
	for _, t := range told {
		room := byRoom[t.Room]
		if room == nil {
			room = newMerged(span)
			byRoom[t.Room] = room
		}
		if t.Answer == nil {
			continue
		}
		// the place of its first point
		at := int(t.Answer.GetFirst().AsTime().Sub(span.First) / (time.Duration(span.Step) * time.Minute))
		room.all.add(t.Answer.GetAll(), at)
		for _, tag := range t.Answer.GetTags() {
			of(room.tags, tag.GetTag(), span).add(tag, at)
			of(byTag, tag.GetTag(), span).add(tag, at)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byRoom)) {
		list = append(list, &marchv1.RoomHistory{Room: name, All: byRoom[name].all.HistorySeries,
			Tags: busiest(byRoom[name].tags)})
	}
	return list, busiest(byTag)
}

// merged is the history of a room in the making.
type merged struct {
	all  *series
	tags map[string]*series
}

func newMerged(span Span) *merged { return &merged{newSeries("", span), make(map[string]*series)} }

type series struct{ *marchv1.HistorySeries }

func newSeries(tag string, span Span) *series {
	none := func() []float32 { return slices.Repeat([]float32{minutes.Unknown}, span.Points) }
	s := &series{&marchv1.HistorySeries{Tag: tag, Rates: none(), Reserves: none(), Failed: none()}}
	if tag == "" {
		s.EtcdLatencies, s.EtcdAway = none(), none()
	}
	return s
}

// of returns the series of a tag, and makes it if there is none.
func of(tags map[string]*series, tag string, span Span) *series {
	if tags[tag] == nil {
		tags[tag] = newSeries(tag, span)
	}
	return tags[tag]
}

// add adds an instance's values, the first of which is at a place.
func (s *series) add(p *marchv1.HistorySeries, at int) {
	sum := func(a, b float32) float32 { return a + b }
	longest := func(a, b float32) float32 { return max(a, b) }
	least := func(a, b float32) float32 { return min(a, b) }
	join(s.GetRates(), p.GetRates(), at, sum)
	join(s.GetReserves(), p.GetReserves(), at, least)
	join(s.GetEtcdLatencies(), p.GetEtcdLatencies(), at, longest)
	join(s.GetFailed(), p.GetFailed(), at, sum)
	join(s.GetEtcdAway(), p.GetEtcdAway(), at, longest)
}

// join joins known values to those in dst. Values that are not in the time of dst are left out.
func join(dst, values []float32, at int, with func(a, b float32) float32) {
	for i, v := range values {
		switch k := at + i; {
		case k < 0 || k >= len(dst) || v < 0:
		case dst[k] < 0:
			dst[k] = v
		default:
			dst[k] = with(dst[k], v)
		}
	}
}

// busiest returns the series with the highest rates.
func busiest(tags map[string]*series) []*marchv1.HistorySeries {
	var list []*marchv1.HistorySeries
	sums := make(map[string]float64)
	for tag, s := range tags {
		list = append(list, s.HistorySeries)
		for _, v := range s.GetRates() {
			sums[tag] += max(float64(v), 0)
		}
	}
	slices.SortFunc(list, func(a, b *marchv1.HistorySeries) int {
		return cmp.Or(cmp.Compare(sums[b.GetTag()], sums[a.GetTag()]), cmp.Compare(a.GetTag(), b.GetTag()))
	})
	return list[:min(len(list), minutes.MaxTags)]
}

package web

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// chartWidth and chartHeight are the size of a chart's drawing, and sparkWidth and sparkHeight of a sparkline's. The
// browser stretches them to their places.
const chartWidth, chartHeight, sparkWidth, sparkHeight = 600.0, 160.0, 240.0, 40.0

// kind is what a chart shows.
type kind struct {
	Name, Title string // Name is for addresses of elements
	Why         string // one line on what it means
	values      func(*marchv1.HistorySeries) []float32
	say         func(v float64) string     // a value for people; v is not negative
	nice        func(most float64) float64 // the end of the scale
}

// span is the time of a chart.
type span struct {
	first  time.Time     // when the first point begins
	step   time.Duration // of a point
	points int
}

// line is one line of a chart.
type line struct {
	Name   string
	Link   string // the address that shows this line alone
	Colour int
	Dash   int // 0 to 3: a pattern, so that lines differ without their colours, too
	values []float32
	Points []string // of polylines, with gaps between them where nothing was measured
	Last   string   // the newest value that is known, for people
}

// band is a stretch of time that is marked in a chart.
type band struct {
	Kind, Text string // Kind is migration or outage
	from, to   float64
}

// X and W are the band's place in the drawing.
func (b band) X() string { return coordinate(b.from) }
func (b band) W() string { return coordinate(b.to - b.from) }

// slot is the time of a point, and the values of all lines then.
type slot struct {
	X, W, At, Text string   // At is the time for people
	Rows           []string // the values, one for each line
}

// chart is a drawing of values over time.
type chart struct {
	kind
	span
	Label   string // in words
	Lines   []line
	Bands   []band
	Slots   []slot
	Scale   []tick // the value axis, from the top
	Hours   []tick // the time axis
	Nothing bool   // no value is known
}

// dashes is how many patterns of lines there are.
const dashes = 4

// newChart draws lines of one kind. Their values are as many as the span's points.
func newChart(k kind, s span, lines []line, bands []band) *chart {
	c := &chart{kind: k, span: s, Lines: lines, Bands: bands}
	values := []float64{0}
	for _, l := range lines {
		values = append(values, known(l.values)...)
	}
	most := slices.Max(values)
	top := k.nice(most)
	words := c.say(most) + " at most"
	for i := range c.Lines {
		l := &c.Lines[i]
		l.Dash, l.Points, l.Last = i%dashes, polylines(l.values, top, chartWidth, chartHeight), "–"
		for _, v := range slices.Backward(l.values) {
			if v >= 0 {
				l.Last = k.say(float64(v))
				break
			}
		}
		words += "; " + l.Name + " " + l.Last
	}
	if c.Nothing = len(values) == 1; c.Nothing {
		words = ": nothing was measured"
	} else {
		words = ", " + words
	}
	c.Label = k.Title + ", " + hour(s.first) + " to " + hour(s.end()) + " UTC" + words
	for _, share := range []float64{1, .5, 0} {
		c.Scale = append(c.Scale, tick{X: pct(100 - 100*share), Text: k.say(top * share)})
	}
	c.axis()
	width := chartWidth / float64(s.points)
	for i := range s.points {
		c.Slots = append(c.Slots, c.slot(i, float64(i)*width, width))
	}
	return c
}

func (s span) end() time.Time { return s.first.Add(s.step * time.Duration(s.points)) }

// hour writes a time for people.
func hour(t time.Time) string { return t.UTC().Format("15:04") }

// axis labels the time: every ten minutes of an hour, every four hours of a day.
func (c *chart) axis() {
	whole, every := c.end().Sub(c.first), 10*time.Minute
	if whole > 2*time.Hour {
		every = 4 * time.Hour
	}
	for at := c.first.UTC().Truncate(every); !at.After(c.end()); at = at.Add(every) {
		share := float64(at.Sub(c.first)) / float64(whole)
		if share >= .055 && share <= .86 { // others would be cut on a narrow screen, or reach into the zone
			c.Hours = append(c.Hours, tick{pct(100 * share), "middle", hour(at)})
		}
	}
	c.Hours = append(c.Hours, tick{pct(100), "end", "UTC"})
}

// slot says the values of a point.
func (c *chart) slot(i int, x, width float64) slot {
	s := slot{X: coordinate(x), W: coordinate(width), At: hour(c.first.Add(time.Duration(i) * c.step))}
	s.Text = s.At
	for _, l := range c.Lines {
		value := "–"
		if v := l.values[i]; v >= 0 {
			value = c.say(float64(v))
			s.Text += "\n" + l.Name + ": " + value
		}
		s.Rows = append(s.Rows, value)
	}
	for _, b := range c.Bands {
		if b.from < x+width-.05 && b.to > x+.05 {
			s.Text += "\n" + b.Text
		}
	}
	return s
}

// Table returns the values of all points, the newest first.
func (c *chart) Table() *list {
	columns := []setting.Column[slot]{setting.Key(setting.Col("From (UTC)", func(s slot) string { return s.At }))}
	for i, line := range c.Lines {
		columns = append(columns, setting.Num(line.Name, func(s slot) string { return s.Rows[i] }))
	}
	latest := slices.Clone(c.Slots)
	slices.Reverse(latest)
	return newList(c.Title+" of each room", columns, latest, nil, nil)
}

// newBand marks the time from began to ended, a pixel or two at least. It reports whether any
// of that is in the span.
func (s span) newBand(kind, text string, began, ended time.Time) (band, bool) {
	whole := s.end().Sub(s.first)
	from := max(float64(began.Sub(s.first))/float64(whole), 0)
	to := min(float64(ended.Sub(s.first))/float64(whole), 1)
	x := min(chartWidth*from, chartWidth-3)
	return band{kind, text, x, max(chartWidth*to, x+3)}, from < 1 && to >= from
}

// outage is a time without etcd.
type outage struct{ began, ended time.Time } // of the first and after the last point that has one

// outages returns when etcd did not answer a room.
func (s span) outages(all *marchv1.HistorySeries) (list []outage) {
	for i, v := range all.GetEtcdAway() {
		at := s.first.Add(time.Duration(i) * s.step)
		if v > 0 && (len(list) == 0 || list[len(list)-1].ended != at) {
			list = append(list, outage{began: at})
		}
		if v > 0 {
			list[len(list)-1].ended = at.Add(s.step)
		}
	}
	return list
}

// known returns the values that are known.
func known[T float32 | float64](values []T) (list []float64) {
	for _, v := range values {
		if v >= 0 {
			list = append(list, float64(v))
		}
	}
	return list
}

// polylines draws the known values as steps: each value is that of its whole point.
func polylines[T float32 | float64](values []T, top, width, height float64) (lines []string) {
	wide, open := width/float64(len(values)), false
	for i, v := range values {
		if v < 0 {
			open = false
			continue
		}
		y := "," + coordinate(height-height*min(float64(v)/top, 1))
		points := coordinate(float64(i)*wide) + y + " " + coordinate((float64(i)+1)*wide) + y
		if open {
			lines[len(lines)-1] += " " + points
		} else {
			lines, open = append(lines, points), true
		}
	}
	return lines
}

// spark is a line of rates, the latest at the right, and the area below it.
type spark struct {
	Of           string // the tag; empty for a room
	Lines, Areas []string
	Most         float64
}

// newSpark draws rates; slots is how many rates fit in. The line has a gap where no rate was measured.
func newSpark[T float32 | float64](of string, rates []T, slots int) spark {
	s := spark{Of: of, Most: slices.Max(append(known(rates), 0))}
	const margin = 1.5
	all := append(slices.Repeat([]T{-1}, max(slots-len(rates), 0)), rates...)
	s.Lines = polylines(all, max(s.Most, 1e-9)*sparkHeight/(sparkHeight-margin), sparkWidth, sparkHeight-margin)
	for _, l := range s.Lines {
		first, _, _ := strings.Cut(l, ",")
		last, _, _ := strings.Cut(l[strings.LastIndexByte(l, ' ')+1:], ",")
		bottom := "," + coordinate(sparkHeight)
		s.Areas = append(s.Areas, l+" "+last+bottom+" "+first+bottom)
	}
	return s
}

// niceNumber returns the end of a scale for values of at most most: 1, 2 or 5 times a power of
// ten.
func niceNumber(least float64) func(most float64) float64 {
	return func(most float64) float64 {
		most = max(most, least)
		power := math.Pow(10, math.Floor(math.Log10(most)))
		for _, step := range []float64{1, 2, 5} {
			if most <= step*power*(1+1e-9) {
				return step * power
			}
		}
		return 10 * power
	}
}

// niceTime returns the end of a scale of seconds.
func niceTime(most float64) float64 {
	const minute, hour, day = 60, 3600, 86400
	for _, end := range []float64{10, 20, 30, minute, 2 * minute, 5 * minute, 10 * minute, 20 * minute, 30 * minute,
		hour, 2 * hour, 6 * hour, 12 * hour, day, 2 * day, 4 * day} {
		if most <= end {
			return end
		}
	}
	return 7 * day
}

func coordinate(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

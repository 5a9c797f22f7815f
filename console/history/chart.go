package history

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// Width and Height are the size of a chart's drawing, which the browser stretches to its
// place.
const Width, Height = 600.0, 160.0

// Kind is what a chart shows.
type Kind struct {
	Name   string // for addresses of elements
	Title  string
	Why    string // one line on what it means
	Values func(*marchv1.HistorySeries) []float32
	Say    func(v float64) string // a value for people; v is not negative
	Nice   func(most float64) float64
}

// Line is one line of a chart.
type Line struct {
	Name   string
	Link   string // the address that shows this line alone
	Colour int    // of style.css
	Dash   int    // 0 to 3: a pattern, so that lines differ without their colours, too
	Values []float32
	Points []string // of polylines, with gaps between them where nothing was measured
	Last   string   // the newest value that is known, for people
}

// Band is a stretch of time that is marked in a chart.
type Band struct {
	X, W string // in a drawing of Width
	Kind string // migration or outage
	Text string
}

// Slot is the time of a point, and the values of all lines then.
type Slot struct {
	X, W string
	Time time.Time
	At   string // Time for people
	Text string
	Rows []string // the values, one for each line
}

// Tick is a label of an axis.
type Tick struct{ At, Text, Anchor string }

// Chart is a drawing of values over time.
type Chart struct {
	Kind
	Span
	Label   string // in words
	Lines   []Line
	Bands   []Band
	Slots   []Slot
	Scale   []Tick // the value axis, from the top; At is a percentage
	Hours   []Tick // the time axis; At is a percentage
	Most    float64
	Nothing bool // no value is known
}

// dashes is how many patterns of lines there are.
const dashes = 4

// NewChart draws lines of one kind. Their Values are as long as the span.
func NewChart(kind Kind, span Span, lines []Line, bands []Band) *Chart {
	c := &Chart{Kind: kind, Span: span, Bands: bands, Nothing: true}
	for _, l := range lines {
		for _, v := range l.Values {
			if v >= 0 {
				c.Most, c.Nothing = max(c.Most, float64(v)), false
			}
		}
	}
	top := kind.Nice(c.Most)
	for k, l := range lines {
		l.Dash = k % dashes
		l.Points = polylines(l.Values, top)
		l.Last = "–"
		for _, v := range slices.Backward(l.Values) {
			if v >= 0 {
				l.Last = kind.Say(float64(v))
				break
			}
		}
		c.Lines = append(c.Lines, l)
	}
	for _, share := range []float64{1, .5, 0} {
		c.Scale = append(c.Scale, Tick{At: percent(1 - share), Text: kind.Say(top * share)})
	}
	c.axis()
	c.slots()
	c.describe()
	return c
}

// describe says the chart in words.
func (c *Chart) describe() {
	c.Label = c.Title + ", " + c.at(c.First) + " to " + c.at(c.end()) + " UTC"
	if c.Nothing {
		c.Label += ": nothing was measured"
		return
	}
	c.Label += ", " + c.Say(c.Most) + " at most"
	for _, l := range c.Lines {
		c.Label += "; " + l.Name + " " + l.Last
	}
}

func (s Span) end() time.Time { return s.First.Add(s.step() * time.Duration(s.Points)) }

// at writes a time of the span for people.
func (s Span) at(t time.Time) string { return t.UTC().Format("15:04") }

func (s Span) step() time.Duration { return time.Duration(s.Step) * time.Minute }

// axis labels the time: every ten minutes of an hour, every four hours of a day.
func (c *Chart) axis() {
	whole, every := c.end().Sub(c.First), 10*time.Minute
	if whole > 2*time.Hour {
		every = 4 * time.Hour
	}
	for at := c.First.UTC().Truncate(every); !at.After(c.end()); at = at.Add(every) {
		share := float64(at.Sub(c.First)) / float64(whole)
		if share < .055 || share > .86 { // it would be cut on a narrow screen, or reach into the zone
			continue
		}
		c.Hours = append(c.Hours, Tick{At: percent(share), Text: c.at(at), Anchor: "middle"})
	}
	c.Hours = append(c.Hours, Tick{At: percent(1), Text: "UTC", Anchor: "end"})
}

// Latest returns the slots, the newest first.
func (c *Chart) Latest() []Slot {
	latest := slices.Clone(c.Slots)
	slices.Reverse(latest)
	return latest
}

// slots says the values of each point.
func (c *Chart) slots() {
	width := Width / float64(c.Points)
	for i := range c.Points {
		s := Slot{X: coordinate(float64(i) * width), W: coordinate(width),
			Time: c.First.Add(time.Duration(i) * c.step())}
		s.At = c.at(s.Time)
		var text strings.Builder
		text.WriteString(s.At)
		for _, l := range c.Lines {
			value := "–"
			if v := l.Values[i]; v >= 0 {
				value = c.Say(float64(v))
				text.WriteString("\n" + l.Name + ": " + value)
			}
			s.Rows = append(s.Rows, value)
		}
		for _, b := range c.Bands {
			if b.covers(i, c.Points) {
				text.WriteString("\n" + b.Text)
			}
		}
		s.Text = text.String()
		c.Slots = append(c.Slots, s)
	}
}

// covers reports whether a band is at a slot.
func (b Band) covers(slot, slots int) bool {
	x, _ := strconv.ParseFloat(b.X, 64)
	w, _ := strconv.ParseFloat(b.W, 64)
	from, to := Width*float64(slot)/float64(slots), Width*float64(slot+1)/float64(slots)
	return x < to-.05 && x+w > from+.05
}

// NewBand marks the time from began to ended, a pixel or two at least. It reports whether any
// of that is in the span.
func (s Span) NewBand(kind, text string, began, ended time.Time) (Band, bool) {
	whole := s.step() * time.Duration(s.Points)
	from := max(float64(began.Sub(s.First))/float64(whole), 0)
	to := min(float64(ended.Sub(s.First))/float64(whole), 1)
	if from >= 1 || to < from {
		return Band{}, false
	}
	x := min(Width*from, Width-3)
	return Band{Kind: kind, Text: text, X: coordinate(x), W: coordinate(max(Width*to-x, 3))}, true
}

// Outage is a time without etcd.
type Outage struct{ Began, Ended time.Time } // of the first and after the last point that has one

// Outages returns when etcd did not answer a room.
func (s Span) Outages(all *marchv1.HistorySeries) (list []Outage) {
	open := false
	for i, v := range all.GetEtcdAway() {
		at := s.First.Add(time.Duration(i) * s.step())
		switch {
		case v <= 0:
			open = false
			continue
		case !open:
			list = append(list, Outage{Began: at})
		}
		open = true
		list[len(list)-1].Ended = at.Add(s.step())
	}
	return list
}

// polylines draws the known values as steps: each value is that of its whole point.
func polylines(values []float32, top float64) (lines []string) {
	var line strings.Builder
	width := Width / float64(len(values))
	end := func() {
		if line.Len() > 0 {
			lines = append(lines, line.String())
		}
		line.Reset()
	}
	for i, v := range values {
		if v < 0 {
			end()
			continue
		}
		y := coordinate(Height - Height*min(float64(v)/top, 1))
		if line.Len() > 0 {
			line.WriteByte(' ')
		}
		line.WriteString(coordinate(float64(i)*width) + "," + y + " " + coordinate((float64(i)+1)*width) + "," + y)
	}
	end()
	return lines
}

// NiceNumber returns the end of a scale for values of at most most: 1, 2 or 5 times a power of
// ten.
func NiceNumber(least float64) func(most float64) float64 {
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

// NiceTime returns the end of a scale of seconds.
func NiceTime(most float64) float64 {
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

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 2, 64) + "%" }

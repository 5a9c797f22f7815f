package web

import (
	"html/template"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// shownSpan is a time that the page shows. Each point covers step minutes.
type shownSpan struct {
	Name, Label   string
	minutes, step int32
	each          string // a step in words
}

// spans are the times that the page shows: instances remember no more.
var spans = []shownSpan{{"1h", "1 hour", 60, 1, "minute"}, {"24h", "24 hours", 24 * 60, 15, "quarter of an hour"}}

// longSpans are the times for which the page leads to the dashboard, as Grafana and people write them.
var longSpans = [][2]string{{"7d", "7 days in Grafana"}, {"30d", "30 days in Grafana"}}

// CheckDashboard checks the address of a dashboard. Its error is Invalid.
func CheckDashboard(address string) error {
	u, err := url.Parse(address)
	if address != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.User != nil) {
		return allocator.Errorf(allocator.Invalid, "dashboard: %q; allowed: the address of the dashboard in a "+
			"Grafana, such as https://grafana.example.com/d/march, without a user", address)
	}
	return nil
}

// dashboardOf returns the address of the dashboard of the last days, of a room or of all if room is empty.
func dashboardOf(address, days, room string) string {
	u, err := url.Parse(address)
	if err != nil { // CheckDashboard parsed it
		return address
	}
	q := u.Query()
	q.Set("from", "now-"+days)
	q.Set("to", "now")
	if room != "" {
		q.Set("var-room", room)
	}
	u.RawQuery = q.Encode()
	return u.String()
}

type historyView struct {
	Spans   []shownLink
	Rooms   []shownLink
	Room    string // empty for all
	Span    string // its label
	Charts  []*chart
	Marks   []historyMark
	Tags    *list
	Still   []string // tags of which no ID was counted in this time
	Silent  []string
	Numbers bool   // show the tables
	Toggle  string // the address with the tables, or without
	Restart bool   // all is unknown
}

// shownLink is a link to another time or room.
type shownLink struct {
	Label, Address string
	Chosen         bool
}

// historyMark is what the charts mark, in words.
type historyMark struct {
	Kind, Text, Link string
	Began, Ended     *timestamppb.Timestamp // Ended is nil while it goes on
}

// busiest are the columns of the busiest tags.
var busiest = []setting.Column[*marchv1.HistorySeries]{
	setting.Key(setting.Col("Tag", func(s *marchv1.HistorySeries) setting.TagName {
		return setting.TagName(s.GetTag())
	})),
	setting.Col("IDs per second", func(s *marchv1.HistorySeries) spark {
		return newSpark(s.GetTag(), s.GetRates(), len(s.GetRates()))
	}),
	setting.Num("Mean", func(s *marchv1.HistorySeries) setting.Rate {
		if rates := known(s.GetRates()); len(rates) > 0 {
			return setting.Rate(sum(rates) / float64(len(rates)))
		}
		return -1
	}),
	setting.Num("Most", func(s *marchv1.HistorySeries) setting.Rate {
		return setting.Rate(slices.Max(append(known(s.GetRates()), 0)))
	}),
	setting.Num("Least reserve", func(s *marchv1.HistorySeries) (least *durationpb.Duration) {
		if reserves := known(s.GetReserves()); len(reserves) > 0 {
			least = durationpb.New(time.Duration(slices.Min(reserves) * float64(time.Second)))
		}
		return least
	}),
	setting.Num("Failed calls", func(s *marchv1.HistorySeries) template.HTML {
		n := int64(sum(known(s.GetFailed())))
		return warned(n > 0, num(n))
	}),
}

func inSeconds(v float64) string {
	return short(durationpb.New(time.Duration(v * float64(time.Second))))
}

var kinds = []kind{
	{Name: "rates", Title: "IDs per second", Why: "the mean of each minute", values: (*marchv1.HistorySeries).GetRates,
		say: rate, nice: niceNumber(1)},
	{Name: "reserves", Title: "Reserve", Why: "how long the IDs in memory last, for the tag with the least",
		values: (*marchv1.HistorySeries).GetReserves, say: inSeconds, nice: niceTime},
	{Name: "etcd", Title: "etcd answers in", Why: "the slowest answer in each minute",
		values: (*marchv1.HistorySeries).GetEtcdLatencies, say: inSeconds, nice: niceNumber(0.001)},
	{Name: "failed", Title: "Failed calls for IDs", Why: "in each minute, without callers' mistakes",
		values: (*marchv1.HistorySeries).GetFailed, say: func(v float64) string {
			return num(int64(v + 0.5))
		}, nice: niceNumber(2)},
}

func (h *Handler) history(c *call) (any, error) {
	q := c.URL.Query()
	at := max(slices.IndexFunc(spans, func(s shownSpan) bool { return s.Name == q.Get("span") }), 0)
	shown := spans[at]
	if name := q.Get("span"); name != "" && name != shown.Name {
		return nil, allocator.Errorf(allocator.Invalid, "span: %q; allowed: %s, %s; a dashboard of Prometheus has "+
			"more (--dashboard)", name, spans[0].Name, spans[1].Name)
	}
	v := &historyView{Span: shown.Label, Room: q.Get("room"), Numbers: q.Get("numbers") != "", Restart: true}
	link := func(label, name, value string) shownLink {
		return shownLink{label, "/history" + with(q, name, value), q.Get(name) == value}
	}
	if v.Toggle = link("", "numbers", "1").Address; v.Numbers {
		v.Toggle = link("", "numbers", "").Address
	}
	for _, s := range spans {
		v.Spans = append(v.Spans, shownLink{s.Label, "/history" + with(q, "span", s.Name), s == shown})
	}
	for _, s := range longSpans {
		if h.dashboard != "" {
			v.Spans = append(v.Spans, shownLink{s[1], dashboardOf(h.dashboard, s[0], v.Room), false})
		}
	}
	l, err := h.layout(c)
	if err != nil && allocator.KindOf(err) != allocator.Unavailable { // an outage of etcd is shown, too
		return nil, err
	}
	r, err := h.console.GetHistory(c.Context(), &marchv1.GetHistoryRequest{Minutes: shown.minutes, Step: shown.step})
	if err != nil {
		return nil, err
	}
	v.Silent = r.GetSilent()
	names := slices.Clone(l.GetEver())
	v.Rooms = []shownLink{link("all rooms", "room", "")}
	var rooms []*marchv1.RoomHistory
	tags := r.GetTags()
	for _, room := range r.GetRooms() {
		names = append(names, room.GetRoom())
		v.Rooms = append(v.Rooms, link(room.GetRoom(), "room", room.GetRoom()))
		if v.Room == room.GetRoom() {
			tags = room.GetTags()
		}
		if v.Room == "" || v.Room == room.GetRoom() {
			rooms = append(rooms, room)
		}
	}
	if len(rooms) == 0 && v.Room != "" {
		return nil, allocator.Errorf(allocator.NotFound, "room: %q has no range and no instance", v.Room)
	}
	drawn, colour := spanOf(r, shown.minutes), colours(names...)
	bands := v.mark(drawn, r.GetMigrations(), rooms)
	for _, kind := range kinds {
		kind.Why = strings.Replace(kind.Why, "each minute", "each "+shown.each, 1)
		var lines []line
		for _, room := range rooms {
			lines = append(lines, line{Name: room.GetRoom(), Link: link("", "room", room.GetRoom()).Address,
				Colour: colour[room.GetRoom()], values: kind.values(room.GetAll())})
		}
		chart := newChart(kind, drawn, lines, bands)
		v.Charts, v.Restart = append(v.Charts, chart), v.Restart && chart.Nothing
	}
	var busy []*marchv1.HistorySeries
	for _, tag := range tags {
		// A rate of 0 would contradict the charts, whose rooms count from the first ID on.
		if sum(known(tag.GetRates()))+sum(known(tag.GetFailed())) > 0 {
			busy = append(busy, tag)
		} else {
			v.Still = append(v.Still, tag.GetTag())
		}
	}
	v.Tags = newList("Busiest tags", busiest, busy, nil, nil)
	return v, nil
}

// spanOf returns the time of an answer of so many minutes.
func spanOf(r *marchv1.GetHistoryResponse, minutes int32) span {
	return span{r.GetFirst().AsTime(), time.Duration(r.GetStep()) * time.Minute, int(minutes / r.GetStep())}
}

// mark marks migrations and outages, in the charts and in words.
func (v *historyView) mark(s span, migrations []*marchv1.HistoryMigration,
	rooms []*marchv1.RoomHistory) (bands []band) {
	add := func(m historyMark, text string, began, ended time.Time) {
		if b, in := s.newBand(m.Kind, text, began, ended); in {
			bands, v.Marks = append(bands, b), append(v.Marks, m)
		}
	}
	for _, m := range migrations {
		ended := time.Now()
		if m.GetEnded() != nil {
			ended = m.GetEnded().AsTime()
		}
		add(historyMark{Kind: "migration", Text: "Migration " + m.GetId(), Link: "/migrations/" + m.GetId(),
			Began: m.GetBegan(), Ended: m.GetEnded()}, "migration "+m.GetId(), m.GetBegan().AsTime(), ended)
	}
	var outages []outage
	without := make(map[outage][]string) // the rooms of each
	for _, room := range rooms {
		for _, o := range s.outages(room.GetAll()) {
			if without[o] == nil {
				outages = append(outages, o)
			}
			without[o] = append(without[o], room.GetRoom())
		}
	}
	slices.SortStableFunc(outages, func(a, b outage) int { return a.began.Compare(b.began) })
	for _, o := range outages {
		text := "etcd did not answer " + strings.Join(without[o], ", ")
		add(historyMark{Kind: "outage", Text: sentence(text), Began: timestamppb.New(o.began),
			Ended: timestamppb.New(o.ended)}, text, o.began, o.ended)
	}
	return bands
}

func sum(values []float64) (all float64) {
	for _, v := range values {
		all += v
	}
	return all
}

const (
	// tagMinutes is how much the chart on a tag's page has.
	tagMinutes = 60
	// hourFor is how long the last hour is kept: pages are made every second, and instances add a
	// value a minute.
	hourFor = 10 * time.Second
)

// tagChart draws the rate of a tag in the last hour, with a line for each room that remembers it;
// without lines if none does. It returns nil if the history cannot be read, or not by this caller:
// the page is without the chart then.
func (h *Handler) tagChart(c *call, tag string) *chart {
	if !c.may(marchv1.ConsoleService_GetHistory_FullMethodName, "") {
		return nil
	}
	r := h.hour.get(hourFor, func() (*marchv1.GetHistoryResponse, error) {
		return h.console.GetHistory(c.Context(), &marchv1.GetHistoryRequest{Minutes: tagMinutes, Step: 1})
	})
	if r == nil || time.Since(r.GetFirst().AsTime()) > (tagMinutes+2)*time.Minute { // it could not be read since
		return nil
	}
	var lines []line
	for _, room := range r.GetRooms() {
		for _, s := range room.GetTags() {
			// In the first minute of a tag's history nothing is counted: the room issued IDs of the tag, and a rate
			// of 0 would say that it did not.
			if rates := known(s.GetRates()); s.GetTag() == tag && (len(rates) > 1 || sum(rates) > 0) {
				lines = append(lines, line{Name: room.GetRoom(), Link: "/history" + with(nil, "room",
					room.GetRoom()), Colour: c.colour[room.GetRoom()], values: s.GetRates()})
			}
		}
	}
	hour := kinds[0]
	hour.Title, hour.Why = "IDs per second in the last hour", "the mean of each minute, by room"
	return newChart(hour, spanOf(r, tagMinutes), lines, nil)
}

// chartWidth and chartHeight are the size of a chart's drawing, and sparkWidth and sparkHeight of a sparkline's. The
// browser stretches them to their places.
const chartWidth, chartHeight, sparkWidth, sparkHeight = 600.0, 160.0, 240.0, 40.0

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

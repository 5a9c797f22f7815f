package web

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/history"
)

// span is a time that the page shows. Each point covers step minutes.
type span struct {
	Name, Label   string
	minutes, step int32
	each          string // a step in words
}

// spans are the times that the page shows: instances remember no more.
var spans = []span{{"1h", "1 hour", 60, 1, "minute"}, {"24h", "24 hours", 24 * 60, 15, "quarter of an hour"}}

// longSpans are the times for which the page leads to the dashboard, as Grafana and people write them.
var longSpans = [][2]string{{"7d", "7 days in Grafana"}, {"30d", "30 days in Grafana"}}

// spanNamed returns the span of a name, and the first for none. Its error is Invalid.
func spanNamed(name string) (span, error) {
	names := make([]string, len(spans))
	for i, s := range spans {
		if s.Name == name {
			return s, nil
		}
		names[i] = s.Name
	}
	if name == "" {
		return spans[0], nil
	}
	return span{}, allocator.Errorf(allocator.Invalid, "span: %q; allowed: %s; a dashboard of Prometheus has more "+
		"(--dashboard)", name, strings.Join(names, ", "))
}

// CheckDashboard checks the address of a dashboard. Its error is Invalid.
func CheckDashboard(address string) error {
	u, err := url.Parse(address)
	if address != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.User != nil) {
		return allocator.Errorf(allocator.Invalid, "dashboard: %q; allowed: the address of the dashboard in a "+
			"Grafana, "+
			"such as https://grafana.example.com/d/march, without a user", address)
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
	Charts  []*history.Chart
	Marks   []historyMark
	Tags    []historyTag
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

// historyTag is a tag in the time that is shown.
type historyTag struct {
	Tag        string
	Spark      spark
	Mean, Most float64              // IDs per second
	Reserve    *durationpb.Duration // the least; nil if none is known
	Failed     int64
}

// inSeconds says seconds for people.
func inSeconds(v float64) string {
	return short(durationpb.New(time.Duration(v * float64(time.Second))))
}

// kinds are the charts of the page.
var kinds = []history.Kind{
	{Name: "rates", Title: "IDs per second", Why: "the mean of each minute", Values: (*marchv1.HistorySeries).GetRates,
		Say: rate, Nice: history.NiceNumber(1)},
	{Name: "reserves", Title: "Reserve", Why: "how long the IDs in memory last, for the tag with the least",
		Values: (*marchv1.HistorySeries).GetReserves, Say: inSeconds, Nice: history.NiceTime},
	{Name: "etcd", Title: "etcd answers in", Why: "the slowest answer in each minute",
		Values: (*marchv1.HistorySeries).GetEtcdLatencies, Say: inSeconds, Nice: history.NiceNumber(0.001)},
	{Name: "failed", Title: "Failed calls for IDs", Why: "in each minute, without callers' mistakes",
		Values: (*marchv1.HistorySeries).GetFailed, Say: func(v float64) string {
			return num(int64(v + 0.5))
		}, Nice: history.NiceNumber(2)},
}

func (h *Handler) history(c *call) (string, any, error) {
	q := c.URL.Query()
	shown, err := spanNamed(q.Get("span"))
	if err != nil {
		return "", nil, err
	}
	v := &historyView{Span: shown.Label, Room: q.Get("room"), Numbers: q.Get("numbers") != "", Toggle: toggle(q),
		Restart: true}
	for _, s := range spans {
		v.Spans = append(v.Spans, shownLink{s.Label, "/history" + with(q, "span", s.Name), s == shown})
	}
	for _, s := range longSpans {
		if h.dashboard != "" {
			v.Spans = append(v.Spans, shownLink{s[1], dashboardOf(h.dashboard, s[0], v.Room), false})
		}
	}
	l, err := h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{})
	if err != nil && allocator.KindOf(err) != allocator.Unavailable { // an outage of etcd is shown, too
		return "", nil, err
	}
	r, err := h.console.GetHistory(c.Context(), &marchv1.GetHistoryRequest{Minutes: shown.minutes, Step: shown.step})
	if err != nil {
		return "", nil, err
	}
	v.Silent = r.GetSilent()
	names := slices.Clone(l.GetEver())
	for _, room := range r.GetRooms() {
		names = append(names, room.GetRoom())
	}
	v.Rooms = []shownLink{{"all rooms", "/history" + with(q, "room", ""), v.Room == ""}}
	drawn := history.Span{First: r.GetFirst().AsTime(), Step: int64(r.GetStep()),
		Points: int(shown.minutes / shown.step)}
	var rooms []*marchv1.RoomHistory
	tags := r.GetTags()
	for _, room := range r.GetRooms() {
		v.Rooms = append(v.Rooms, shownLink{room.GetRoom(), "/history" + with(q, "room", room.GetRoom()),
			v.Room == room.GetRoom()})
		if v.Room == room.GetRoom() {
			tags = room.GetTags()
		}
		if v.Room == "" || v.Room == room.GetRoom() {
			rooms = append(rooms, room)
		}
	}
	if len(rooms) == 0 && v.Room != "" {
		return "", nil, allocator.Errorf(allocator.NotFound, "room: %q has no range and no instance", v.Room)
	}
	bands := v.mark(drawn, r.GetMigrations(), rooms)
	colour := colours(names...)
	for _, kind := range kinds {
		kind.Why = strings.Replace(kind.Why, "each minute", "each "+shown.each, 1)
		var lines []history.Line
		for _, room := range rooms {
			lines = append(lines, history.Line{Name: room.GetRoom(), Link: "/history" + with(q, "room", room.GetRoom()),
				Colour: colour[room.GetRoom()], Values: kind.Values(room.GetAll())})
		}
		chart := history.NewChart(kind, drawn, lines, bands)
		v.Charts = append(v.Charts, chart)
		v.Restart = v.Restart && chart.Nothing
	}
	for _, tag := range tags {
		// A rate of 0 would contradict the charts, whose rooms count from the first ID on.
		if t := newHistoryTag(tag); t.Most > 0 || t.Failed > 0 {
			v.Tags = append(v.Tags, t)
		} else {
			v.Still = append(v.Still, t.Tag)
		}
	}
	return "History", v, nil
}

// toggle returns the address with the tables if q is without, or the other way round.
func toggle(q url.Values) string {
	if q.Get("numbers") != "" {
		return "/history" + with(q, "numbers", "")
	}
	return "/history" + with(q, "numbers", "1")
}

// mark marks migrations and outages, in the charts and in words.
func (v *historyView) mark(span history.Span, migrations []*marchv1.HistoryMigration,
	rooms []*marchv1.RoomHistory) (bands []history.Band) {
	for _, m := range migrations {
		ended := time.Now()
		if m.GetEnded() != nil {
			ended = m.GetEnded().AsTime()
		}
		if b, in := span.NewBand("migration", "migration "+m.GetId(), m.GetBegan().AsTime(), ended); in {
			bands = append(bands, b)
			v.Marks = append(v.Marks, historyMark{Kind: "migration", Text: "Migration " + m.GetId(),
				Link: "/migrations/" + m.GetId(), Began: m.GetBegan(), Ended: m.GetEnded()})
		}
	}
	var outages []history.Outage
	without := make(map[history.Outage][]string) // the rooms of each
	for _, room := range rooms {
		for _, o := range span.Outages(room.GetAll()) {
			if without[o] == nil {
				outages = append(outages, o)
			}
			without[o] = append(without[o], room.GetRoom())
		}
	}
	slices.SortStableFunc(outages, func(a, b history.Outage) int { return a.Began.Compare(b.Began) })
	for _, o := range outages {
		text := "etcd did not answer " + strings.Join(without[o], ", ")
		if b, in := span.NewBand("outage", text, o.Began, o.Ended); in {
			bands = append(bands, b)
			v.Marks = append(v.Marks, historyMark{Kind: "outage", Text: sentence(text), Began: timestamppb.New(o.Began),
				Ended: timestamppb.New(o.Ended)})
		}
	}
	return bands
}

func newHistoryTag(s *marchv1.HistorySeries) historyTag {
	t := historyTag{Tag: s.GetTag(), Mean: -1, Most: -1}
	rates, known := make([]float64, 0, len(s.GetRates())), 0
	for _, v := range s.GetRates() {
		rates = append(rates, float64(v))
		if v >= 0 {
			t.Most, t.Mean = max(t.Most, float64(v)), max(t.Mean, 0)+float64(v)
			known++
		}
	}
	if known > 0 {
		t.Mean /= float64(known)
	}
	least := float32(-1)
	for _, v := range s.GetReserves() {
		if v >= 0 && (least < 0 || v < least) {
			least = v
		}
	}
	if least >= 0 {
		t.Reserve = durationpb.New(time.Duration(float64(least) * float64(time.Second)))
	}
	for _, v := range s.GetFailed() {
		if v >= 0 {
			t.Failed += int64(v)
		}
	}
	t.Spark = newSpark(rates, len(rates))
	return t
}

const (
	// tagMinutes is how much the chart on a tag's page has.
	tagMinutes = 60
	// hourFor is how long the last hour is kept: pages are made every second, and instances add a
	// value a minute.
	hourFor = 10 * time.Second
)

// lastHour is what the instances remember of the last hour, for the pages of tags.
type lastHour struct {
	mu     sync.Mutex
	at     time.Time
	answer *marchv1.GetHistoryResponse
}

// get returns the last hour. Only one page at a time asks the console for it.
func (l *lastHour) get(ctx context.Context, console marchv1.ConsoleServiceClient) (*marchv1.GetHistoryResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answer != nil && time.Since(l.at) < hourFor {
		return l.answer, nil
	}
	answer, err := console.GetHistory(ctx, &marchv1.GetHistoryRequest{Minutes: tagMinutes, Step: 1})
	if err == nil {
		l.answer, l.at = answer, time.Now()
	}
	return answer, err
}

// hourKind is the chart of a tag's page.
var hourKind = func() history.Kind {
	k := kinds[0]
	k.Title, k.Why = "IDs per second in the last hour", "the mean of each minute, by room"
	return k
}()

// begins reports whether rates have at most the first minute of a tag's history, in which nothing is
// counted: the room issued IDs of the tag, and a rate of 0 would say that it did not.
func begins(rates []float32) bool {
	known := 0
	for _, v := range rates {
		if v > 0 {
			return false
		}
		if v == 0 {
			known++
		}
	}
	return known < 2
}

// tagChart draws the rate of a tag in the last hour, with a line for each room that remembers it;
// without lines if none does. It returns nil if the history cannot be read, or not by this caller:
// the page is without the chart then.
func (h *Handler) tagChart(c *call, tag string, colour map[string]int) *history.Chart {
	if !c.may(marchv1.ConsoleService_GetHistory_FullMethodName, "") {
		return nil
	}
	r, err := h.hour.get(c.Context(), h.console)
	if err != nil {
		return nil
	}
	var lines []history.Line
	for _, room := range r.GetRooms() {
		for _, s := range room.GetTags() {
			if s.GetTag() == tag && !begins(s.GetRates()) {
				lines = append(lines, history.Line{Name: room.GetRoom(), Link: "/history" + with(nil, "room",
					room.GetRoom()), Colour: colour[room.GetRoom()], Values: s.GetRates()})
			}
		}
	}
	return history.NewChart(hourKind, history.Span{First: r.GetFirst().AsTime(), Step: int64(r.GetStep()),
		Points: tagMinutes}, lines, nil)
}

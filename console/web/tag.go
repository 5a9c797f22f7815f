package web

import (
	"net/url"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
)

type tagView struct {
	*marchv1.GetTagResponse
	palette
	Marks    []markView
	Chains   *list
	Rate     float64
	Used     float64
	Next     int64
	Settings tagForm
	Preview  *previewView // of the change in the form; nil for none
	Audit    *list        // the latest changes of the tag; none in the live part
	Skip     skipView
	Prescale prescaleView
	Chart    *chart    // of the last hour; nil if it is not known
	Time     *timeView // nil for a counter; if set, only Settings of the fields above counts
}

// markView is a room's mark, drawn beside the other rooms' marks.
type markView struct {
	*marchv1.Mark
	X      string // its place between the least and the largest mark
	Behind int64  // the largest
	Skip   int64  // an ID below which it may lease none; 0 for no bound
}

func (h *Handler) tag(c *call) (any, error) {
	t, err := h.console.GetTag(c.Context(), &marchv1.GetTagRequest{Name: c.PathValue("tag")})
	if err != nil {
		return nil, err
	}
	s, v := t.GetTag(), &tagView{GetTagResponse: t, palette: c.colour}
	if !c.live {
		v.Preview = h.newPreview(c, s)
		if v.Audit, err = h.latestChanges(c, "tags/"+s.GetName()); err != nil {
			return nil, err
		}
	}
	if v.Settings = newTagForm(c, "settings", s); v.Preview != nil {
		v.Settings.Problem = nil // the preview says what is wrong
	}
	v.Chart = h.tagChart(c, s.GetName())
	if s.GetTime() != nil {
		v.Time, err = h.newTimeView(c, t)
		return v, err
	}
	start, limit := api.Space(s)
	v.Next = start
	least := int64(allocator.MaxID)
	for _, m := range t.GetMarks() {
		least, v.Next = min(least, m.GetNext()), max(v.Next, m.GetNext())
	}
	for _, m := range t.GetMarks() {
		x := 96.0 // room for the dot
		if v.Next > least {
			x = 4 + 92*float64(m.GetNext()-least)/float64(v.Next-least)
		}
		v.Marks = append(v.Marks, markView{m, pct(x), v.Next - m.GetNext(),
			max(s.GetSkip(), s.GetSkips()[m.GetRoom()])})
	}
	v.Used = allocator.Used(start, limit, v.Next)
	for _, chain := range t.GetChains() {
		v.Rate += chain.GetPeak()
	}
	v.Chains = newList("Chains", setting.Chains, t.GetChains(), func(c *marchv1.Chain) (listRow, palette) {
		return listRow{ID: "chain-" + c.GetRoom() + "-" + c.GetInstance()}, v.palette
	})
	v.Skip, v.Prescale = newSkip(c, t, c.layout.GetLayout().GetLayout()), newPrescale(c, t)
	return v, nil
}

// previewView is what a change of a tag's settings would do, before it is made.
type previewView struct {
	*marchv1.UpdateTagResponse
	Changes *list
	Hidden  url.Values // the form as it was filled in, and the revision that the change is compared with
}

// newPreview asks what the change in the form would do; it returns nil if there is none. A change
// that was refused, because meanwhile another one was made or it stops rooms, is shown again.
func (h *Handler) newPreview(c *call, now *marchv1.Tag) (v *previewView) {
	kind := allocator.KindOf(c.err)
	again := c.failed == "settings" && (kind == allocator.Refused || kind == allocator.Conflict)
	if !again && (c.failed == "settings" || !c.asks("settings")) {
		return nil
	}
	c.asked = "settings"
	request := &marchv1.UpdateTagRequest{DryRun: true}
	err := readUpdate(c, request)
	if err == nil {
		v = &previewView{Hidden: c.sent()}
		request.IfRevision, request.Confirm = 0, false
		v.UpdateTagResponse, err = h.console.UpdateTag(c.Context(), request)
	}
	var changed []setting.Change
	if err == nil {
		if changed = setting.Diff(setting.Settings(setting.KindOf(now), false), now, v.GetTag()); len(changed) == 0 {
			err = allocator.Errorf(allocator.Invalid,
				"nothing was changed: these are the settings that the tag has")
		}
	}
	if err != nil {
		if !again {
			c.failed, c.err = "settings", err
		}
		return nil
	}
	v.Changes = newList("What changes", []setting.Column[setting.Change]{
		{Title: "Setting", Key: true, Value: func(s setting.Change) any { return sentence(s.Words()) }},
		{Title: "Now", Value: func(s setting.Change) any {
			return html("<del>%s</del>", groups(shown(s.Setting, s.From)))
		}},
		{Title: "Then", Value: func(s setting.Change) any {
			return html("<ins>%s</ins>", groups(shown(s.Setting, s.To)))
		}},
	}, changed, func(setting.Change) (listRow, palette) { return listRow{}, nil })
	v.Hidden.Set("revision", strconv.FormatInt(now.GetRevision(), 10))
	if len(v.GetStops()) > 0 {
		v.Hidden.Set("confirm", "on")
	}
	return v
}

// readUpdate reads the form of a tag's settings as a change. Its error is Invalid.
func readUpdate(c *call, r *marchv1.UpdateTagRequest) (err error) {
	if r.Tag, err = c.readSettings(false); err != nil {
		return err
	}
	r.Tag.Name, r.Confirm = c.PathValue("tag"), c.FormValue("confirm") != ""
	if text := c.FormValue("revision"); text != "" {
		if r.IfRevision, err = parseInt(text); err != nil {
			return allocator.Errorf(allocator.Invalid, "revision: %q; allowed: one that this page made", text)
		}
	}
	return nil
}

// skipView is the form of a skip and, once that was filled in, its effect.
type skipView struct {
	*marchv1.SkipTagRequest
	Fields  []field
	Rooms   []choice
	What    *list      // of a skip to confirm
	Hidden  url.Values // that confirms it
	Problem *problem
}

type choice struct {
	Name    string
	Checked bool
}

func newSkip(c *call, t *marchv1.GetTagResponse, l *marchv1.Layout) skipView {
	v := skipView{SkipTagRequest: &marchv1.SkipTagRequest{}}
	for _, room := range operator.ByLower(l.GetRooms()) {
		v.Rooms = append(v.Rooms, choice{room, !c.asks("skip") || slices.Contains(c.Form["room"], room)})
	}
	v.Problem = c.preview("skip", func() error { return v.read(c, t, l) }, "to", "rooms")
	v.Fields = c.fields("skip", "skip", setting.SkipFields, v.SkipTagRequest, v.Problem)
	return v
}

// read reads the form, and what the skip in it does. Its error is Invalid.
func (v *skipView) read(c *call, t *marchv1.GetTagResponse, l *marchv1.Layout) error {
	if err := readSkip(c, v.SkipTagRequest); err != nil {
		return err
	}
	layout, err := api.LayoutFromProto(l)
	if err != nil {
		return err
	}
	next, does := make(map[string]int64), false
	for _, m := range t.GetMarks() {
		next[m.GetRoom()] = m.GetNext()
	}
	chosen := slices.DeleteFunc(slices.Clone(v.Rooms), func(room choice) bool { return !room.Checked })
	what := newList("What the skip does", []setting.Column[choice]{{Title: "Room", Key: true},
		{Title: "Mark now", Number: true}, {Title: "Then at least", Number: true},
		{Title: "IDs of its range lost", Number: true}}, chosen,
		func(room choice) (listRow, palette) {
			from := max(t.GetTag().GetStart(), next[room.Name])
			to := max(v.GetTo(), from)
			does = does || to > from
			return listRow{Values: []any{room.Name, from, to,
				layout.CountIDs(layout.Ranges[allocator.Room(room.Name)], from, to)}}, nil
		})
	if !does {
		return allocator.Errorf(allocator.Invalid,
			"to: %d; allowed: above the mark of a chosen room, otherwise nothing would change", v.GetTo())
	}
	if v.What, v.Hidden = what, c.sent(); len(chosen) == len(v.Rooms) { // then also those that come later
		v.Hidden.Set("all", "on")
	}
	return nil
}

// readSkip reads the form of a skip. Its error is Invalid.
func readSkip(c *call, r *marchv1.SkipTagRequest) error {
	err := c.fill(r, setting.SkipFields...)
	switch {
	case err != nil:
		return err
	case r.GetTo() < 1:
		return allocator.Errorf(allocator.Invalid, "to: %d; allowed: 1 or more", r.GetTo())
	case len(c.Form["room"]) == 0:
		return allocator.Errorf(allocator.Invalid, "rooms: none is chosen; allowed: one or more")
	case c.FormValue("all") == "":
		r.Rooms = c.Form["room"]
	}
	return nil
}

// prescaleView is the form of a prescale and its effect.
type prescaleView struct {
	*marchv1.PrescaleTagRequest
	Fields  []field
	All     int64      // IDs that instances lease at once
	Hidden  url.Values // that confirms it; nil before it is asked for
	Problem *problem
}

func newPrescale(c *call, t *marchv1.GetTagResponse) (v prescaleView) {
	v.PrescaleTagRequest = &marchv1.PrescaleTagRequest{Step: t.GetTag().GetPrescale()}
	v.Problem = c.preview("prescale", func() error {
		if err := readPrescale(c, v.PrescaleTagRequest); err != nil {
			return err
		}
		if most := t.GetTag().GetMaxStep(); v.GetStep() > most {
			return allocator.Errorf(allocator.Invalid, "step: %d; allowed: 0 to max_step (%d)", v.GetStep(), most)
		}
		for _, chain := range t.GetChains() {
			v.All += max(v.GetStep()-chain.GetHeld(), 0)
		}
		v.Hidden = c.sent()
		return nil
	}, "step", "duration")
	v.Fields = c.fields("prescale", "pre", setting.PrescaleFields, v.PrescaleTagRequest, v.Problem)
	return v
}

// readPrescale reads the form of a prescale. Its error is Invalid.
func readPrescale(c *call, r *marchv1.PrescaleTagRequest) error {
	return c.fill(r, setting.PrescaleFields...)
}

// timeView is what the page of a tag of time-ordered IDs shows.
type timeView struct {
	*marchv1.TimeTag
	Epoch, End *timestamppb.Timestamp // of the time bits
	Left       *durationpb.Duration   // until the end
	Capacity   int64                  // IDs of a worker in a second
	Slices     *list
	Workers    *list
	More       bool
}

func (h *Handler) newTimeView(c *call, t *marchv1.GetTagResponse) (*timeView, error) {
	p := t.GetTag().GetTime()
	l := timeid.Layout{
		TimeBits: int(p.GetTimeBits()), WorkerBits: int(p.GetWorkerBits()), SequenceBits: int(p.GetSequenceBits()),
		Unit: p.GetUnit().AsDuration(), Epoch: p.GetEpochMs(),
	}
	end := time.UnixMilli(l.End())
	v := &timeView{
		TimeTag: p, Epoch: timestamppb.New(time.UnixMilli(l.Epoch)), End: timestamppb.New(end), Capacity: l.PerSecond(),
		Left:   &durationpb.Duration{Seconds: max(end.Unix()-time.Now().Unix(), 0)},
		Slices: listSlices(t.GetSlices(), c.colour),
	}
	workers, err := h.console.ListWorkers(c.Context(),
		&marchv1.ListWorkersRequest{Bits: &p.WorkerBits, PageSize: workersPage})
	v.Workers, v.More = listWorkers(workers.GetWorkers(), c.colour), workers.GetNextPageToken() != ""
	return v, err
}

package web

import (
	"net/url"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
)

type tagView struct {
	*marchv1.GetTagResponse
	palette
	Marks    *list
	Facts    []cell
	Chains   *list
	Settings tagForm
	Preview  *previewView // of the change in the form; nil for none
	Audit    *list        // the latest changes of the tag; none in the live part
	Skip     skipView
	Prescale prescaleView
	Chart    *chart // of the last hour; nil if it is not known
	Slices   *list  // nil for a counter, as those below
	Workers  *list
	More     bool // workers
}

func (h *Handler) tag(c *call) (any, error) {
	name, v := c.PathValue("tag"), &tagView{palette: c.colour}
	var reads errgroup.Group // the tag's own, its history and its audit ask etcd and all instances: beside each other
	reads.Go(func() (err error) {
		v.GetTagResponse, err = h.console.GetTag(c.Context(), &marchv1.GetTagRequest{Name: name})
		return err
	})
	reads.Go(func() error {
		v.Chart = h.tagChart(c, name)
		return nil
	})
	if !c.live {
		reads.Go(func() (err error) {
			v.Audit, err = h.latestChanges(c, string(record.Tags)+"/"+name)
			return err
		})
	}
	if err := reads.Wait(); err != nil {
		return nil, err
	}
	t, s := v.GetTagResponse, v.GetTag()
	if !c.live {
		v.Preview = h.newPreview(c, s)
	}
	if v.Settings = newTagForm(c, "settings", s); v.Preview != nil {
		v.Settings.Problem = nil // the preview says what is wrong
	}
	fact := func(name string, value any) {
		if text, is := value.(string); is {
			value = grouped(text)
		}
		c := newCell(value, nil)
		c.Title = sentence(name)
		v.Facts = append(v.Facts, c)
	}
	start, limit := api.Space(s)
	least, next, peak := int64(allocator.MaxID), start, 0.0
	for _, m := range t.GetMarks() {
		least, next = min(least, m.GetNext()), max(next, m.GetNext())
	}
	for _, chain := range t.GetChains() {
		peak += chain.GetPeak()
	}
	if s.GetTime() == nil {
		fact("recent peak, IDs per second", setting.Rate(peak))
		fact("next ID at most", setting.ID(next))
		fact("space used", setting.Share(allocator.Used(start, limit, next)))
	}
	for _, f := range setting.Facts(s) {
		if of, is := f.Value.(setting.Value); !is || !of.Of.Rare || of.Of.Fixed { // the form has the others
			fact(f.Name, f.Value)
		}
	}
	if p := s.GetTime(); p != nil {
		of, err := api.TimeTagFromProto(p)
		if err != nil {
			return nil, err
		}
		fact("time bits end", setting.End{At: timestamppb.New(time.UnixMilli(of.Layout.End()))})
		fact("IDs per second of a worker", of.Layout.PerSecond())
		workers, err := h.console.ListWorkers(c.Context(),
			&marchv1.ListWorkersRequest{Bits: &p.WorkerBits, PageSize: workersPage})
		v.Slices = newList("Slices", setting.Slices, t.GetSlices(), c.colour, nil)
		v.Workers = newList("Workers", setting.Workers, workers.GetWorkers(), c.colour, nil)
		v.More = workers.GetNextPageToken() != ""
		return v, err
	}
	beside := setting.Col("Beside the others", func(m *marchv1.Mark) cell {
		x := 1 - float64(next-m.GetNext())/float64(max(next-least, 1))
		return cell{Class: "chart", Dot: pct(4 + 92*x), Colour: v.palette[m.GetRoom()]} // with place for the dot
	})
	behind := setting.Num("Behind", func(m *marchv1.Mark) int64 { return next - m.GetNext() })
	v.Marks = newList("Marks", append(slices.Clone(setting.TagMarks), behind, beside), t.GetMarks(), v.palette, nil)
	v.Chains = newList("Chains", setting.Chains, t.GetChains(), v.palette, nil)
	v.Skip, v.Prescale = newSkip(c, t, c.layout.GetLayout().GetLayout()), newPrescale(c, t)
	return v, nil
}

// previewView is what a change of a tag's settings would do, before it is made.
type previewView struct {
	*marchv1.UpdateTagResponse
	Changes []difference
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
	for _, s := range changed {
		v.Changes = append(v.Changes, difference{sentence(s.Words()), shown(s.Setting, s.From), shown(s.Setting, s.To)})
	}
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
	next := make(map[string]int64)
	for _, m := range t.GetMarks() {
		next[m.GetRoom()] = m.GetNext()
	}
	from := func(room choice) int64 { return max(t.GetTag().GetStart(), next[room.Name]) }
	to := func(room choice) int64 { return max(v.GetTo(), from(room)) }
	chosen := slices.DeleteFunc(slices.Clone(v.Rooms), func(room choice) bool { return !room.Checked })
	if !slices.ContainsFunc(chosen, func(room choice) bool { return to(room) > from(room) }) {
		return allocator.Errorf(allocator.Invalid,
			"to: %d; allowed: above the mark of a chosen room, otherwise nothing would change", v.GetTo())
	}
	v.What = newList("What the skip does", []setting.Column[choice]{
		setting.Key(setting.Col("Room", func(room choice) string { return room.Name })),
		setting.Num("Mark now", from), setting.Num("Then at least", to),
		setting.Num("IDs of its range lost", func(room choice) int64 {
			return layout.CountIDs(layout.Ranges[allocator.Room(room.Name)], from(room), to(room))
		}),
	}, chosen, nil, nil)
	if v.Hidden = c.sent(); len(chosen) == len(v.Rooms) { // then also those that come later
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

package web

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/history"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
)

type tagView struct {
	*marchv1.GetTagResponse
	Marks    []markView
	Chains   *list
	Rate     float64
	Used     float64
	Next     int64
	Settings tagForm
	Preview  *previewView // of the change in the form; nil for none
	Audit    []auditRow   // the latest changes of the tag; none in the live part
	Skip     skipView
	Prescale prescaleView
	Chart    *history.Chart // of the last hour; nil if it is not known
	Time     *timeView      // nil for a counter; if set, only Settings of the fields above counts
}

// markView is a room's mark, drawn beside the other rooms' marks.
type markView struct {
	*marchv1.Mark
	Colour int
	X      string // its place between the least and the largest mark
	Behind int64  // the largest
	Skip   int64  // the least ID it may lease; 0 for no bound
}

// newMarks draws marks, and returns the largest of them and of start.
func newMarks(marks []*marchv1.Mark, colour map[string]int, start int64) (list []markView, most int64) {
	least, most := int64(allocator.MaxID), start
	for _, m := range marks {
		least, most = min(least, m.GetNext()), max(most, m.GetNext())
	}
	for _, m := range marks {
		x := 96.0 // room for the dot
		if span := most - least; span > 0 {
			x = 4 + 92*float64(m.GetNext()-least)/float64(span)
		}
		list = append(list, markView{Mark: m, Colour: colour[m.GetRoom()], X: pct(x), Behind: most - m.GetNext()})
	}
	return list, most
}

func (h *Handler) tag(c *call) (string, any, error) {
	t, err := h.console.GetTag(c.Context(), &marchv1.GetTagRequest{Name: c.PathValue("tag")})
	if err != nil {
		return "", nil, err
	}
	l, err := h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{})
	if err != nil {
		return "", nil, err
	}
	colour, s := colours(l.GetEver()...), t.GetTag()
	v := &tagView{GetTagResponse: t}
	if !c.live {
		v.Preview = h.newPreview(c, s)
		if v.Audit, err = h.latestChanges(c, "tags/"+s.GetName()); err != nil {
			return "", nil, err
		}
	}
	v.Settings = newTagForm(c, "settings", s)
	if v.Preview != nil {
		v.Settings.Problem = nil // the preview says what is wrong
	}
	v.Chart = h.tagChart(c, s.GetName(), colour)
	if s.GetTime() != nil {
		v.Time, err = h.newTimeView(c, t, colour)
		return "Tag " + s.GetName(), v, err
	}
	start, limit := api.Space(s)
	v.Marks, v.Next = newMarks(t.GetMarks(), colour, start)
	for i := range v.Marks {
		if to := max(s.GetSkip(), s.GetSkips()[v.Marks[i].GetRoom()]); to > v.Marks[i].GetNext() {
			v.Marks[i].Skip = to
		}
	}
	v.Used = allocator.Used(start, limit, v.Next)
	for _, chain := range t.GetChains() {
		v.Rate += chain.GetPeak()
	}
	v.Chains = newList("Chains", setting.Chains, t.GetChains(), func(c *marchv1.Chain) (listRow, map[string]int) {
		return listRow{ID: "chain-" + c.GetRoom() + "-" + c.GetInstance()}, colour
	})
	v.Skip = newSkip(c, t, l.GetLayout().GetLayout())
	v.Prescale = newPrescale(c, t)
	return "Tag " + s.GetName(), v, nil
}

// skipView is the form of a skip and, once that was filled in, its effect.
type skipView struct {
	Fields  []settingField
	To      int64
	Rooms   []choice
	All     bool // the rooms: then also those that come later
	Force   bool
	Confirm bool
	What    []skipRoom
	Problem *problem
}

type choice struct {
	Name    string
	Checked bool
}

type skipRoom struct {
	Room     string
	From, To int64
	Lost     int64 // IDs of the room's range that are never issued
}

func newSkip(c *call, t *marchv1.GetTagResponse, l *marchv1.Layout) skipView {
	v, request := skipView{Problem: c.problemOf("skip", "to", "rooms"), All: true}, &marchv1.SkipTagRequest{}
	asked := c.failed == "skip" || c.Method == http.MethodGet && c.URL.Query().Get("do") == "skip"
	if asked {
		_ = c.ParseForm()
		c.asked = "skip"
	}
	for _, room := range operator.ByLower(l.GetRooms()) {
		checked := !asked || slices.Contains(c.Form["room"], room)
		v.Rooms, v.All = append(v.Rooms, choice{Name: room, Checked: checked}), v.All && checked
	}
	if asked && v.Problem == nil {
		if err := v.read(c, request, t, l); err != nil {
			c.failed, c.err = "skip", err
			v.Problem = c.problemOf("skip", "to", "rooms")
		}
	}
	v.Fields = c.fields("skip", "skip", setting.SkipFields, request, v.Problem)
	return v
}

// read reads the form, and what the skip in it does. Its error is Invalid.
func (v *skipView) read(c *call, request *marchv1.SkipTagRequest, t *marchv1.GetTagResponse, l *marchv1.Layout) error {
	err := c.fill(request, setting.SkipFields...)
	to := request.GetTo()
	v.To, v.Force = to, request.GetForce()
	layout, layoutErr := api.LayoutFromProto(l)
	switch {
	case err == nil && to < 1:
		err = allocator.Errorf(allocator.Invalid, "to: %d; allowed: 1 or more", to)
	case err == nil && len(c.Form["room"]) == 0:
		err = errNoRoom
	}
	if err := cmp.Or(err, layoutErr); err != nil {
		return err
	}
	for _, room := range v.Rooms {
		if !room.Checked {
			continue
		}
		from := t.GetTag().GetStart()
		for _, m := range t.GetMarks() {
			if m.GetRoom() == room.Name {
				from = max(from, m.GetNext())
			}
		}
		s := skipRoom{Room: room.Name, From: from, To: max(to, from)}
		s.Lost = layout.CountIDs(layout.Ranges[allocator.Room(room.Name)], s.From, s.To)
		v.What = append(v.What, s)
	}
	if v.Confirm = slices.ContainsFunc(v.What, func(s skipRoom) bool { return s.To > s.From }); !v.Confirm {
		return allocator.Errorf(allocator.Invalid,
			"to: %d; allowed: above the mark of a chosen room, otherwise nothing would change", to)
	}
	return nil
}

var errNoRoom = allocator.Errorf(allocator.Invalid, "rooms: none is chosen; allowed: one or more")

func (h *Handler) skipTag(c *call) (string, error) {
	request := &marchv1.SkipTagRequest{Name: c.PathValue("tag")}
	if err := c.fill(request, setting.SkipFields...); err != nil {
		return "", err
	}
	if len(c.Form["room"]) == 0 {
		return "", errNoRoom
	}
	if c.FormValue("all") == "" {
		request.Rooms = c.Form["room"]
	}
	_, err := h.console.SkipTag(c.Context(), request)
	return "/tags/" + escape(request.GetName()) + "?done=skipped", err
}

// prescaleView is the form of a prescale and its effect.
type prescaleView struct {
	Fields    []settingField
	For       string
	Confirm   bool
	Instances int
	Each, All int64
	Problem   *problem
}

func newPrescale(c *call, t *marchv1.GetTagResponse) prescaleView {
	v := prescaleView{Problem: c.problemOf("prescale", "step", "duration"), Instances: len(t.GetChains())}
	request := &marchv1.PrescaleTagRequest{Step: t.GetTag().GetPrescale()}
	if c.failed == "prescale" || c.Method == http.MethodGet && c.URL.Query().Get("do") == "prescale" {
		c.asked = "prescale"
		if v.Problem == nil {
			if err := v.read(c, request, t); err != nil {
				c.failed, c.err = "prescale", err
				v.Problem = c.problemOf("prescale", "step", "duration")
			}
		}
	}
	v.Fields = c.fields("prescale", "pre", setting.PrescaleFields, request, v.Problem)
	return v
}

// read reads the form, and what the prescale in it does. Its error is Invalid.
func (v *prescaleView) read(c *call, request *marchv1.PrescaleTagRequest, t *marchv1.GetTagResponse) error {
	if err := c.fill(request, setting.PrescaleFields...); err != nil {
		return err
	}
	v.Each, v.For = request.GetStep(), shortest(request.GetDuration().AsDuration())
	if most := t.GetTag().GetMaxStep(); v.Each > most {
		return allocator.Errorf(allocator.Invalid, "step: %d; allowed: 0 to max_step (%d)", v.Each, most)
	}
	for _, chain := range t.GetChains() {
		v.All += max(v.Each-chain.GetHeld(), 0)
	}
	v.Confirm = true
	return nil
}

func (h *Handler) prescaleTag(c *call) (string, error) {
	request := &marchv1.PrescaleTagRequest{Name: c.PathValue("tag")}
	if err := c.fill(request, setting.PrescaleFields...); err != nil {
		return "", err
	}
	_, err := h.console.PrescaleTag(c.Context(), request)
	return "/tags/" + escape(request.GetName()) + "?done=prescaled", err
}

package web

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
)

const (
	// costsSoon is after how long a page no longer waits for the cost of its plan: a page
	// must come at once. costsLater is how long later requests of that page wait for the cost.
	costsSoon  = 100 * time.Millisecond
	costsLater = time.Second
	// applyWithin is how long a form waits until a plan is applied. It is short
	// enough that the page can still say why a plan was not applied.
	applyWithin = 5 * time.Second
)

// planner is the form of a plan, and the plan.
type planner struct {
	palette
	Version  int64
	Boundary string
	Rows     []row
	Ranges   *list
	Bar      *bar // of the typed layout
	Now      *bar
	Atomic   bool
	Force    bool
	Broken   bool      // a field is wrong, or the layout
	Touched  bool      // the form was sent
	Changed  bool      // and it differs from the current layout
	Problems []problem // of the boundary (Field is boundary), or of all
	Plan     *marchv1.Plan
	Moves    []moveView
	Costs    *costs
	JSON     string   // the plan, as it is applied
	Do       string   // apply: to be confirmed
	Refused  *problem // the apply
	Fields   []field  // of the apply
	Begun    int64    // the version of the layout for which the form was first shown
	Stale    string   // the actor that changed the layout since, and the differences; empty if none did
	May      bool     // the caller may apply it
	Again    string   // the address that plans it again
}

// row is a room in the planner's form.
type row struct {
	ID                        string
	Room, Lower, Upper, Drain field
	Was                       *marchv1.Range // nil for a room that is not in the current layout
	Problems                  []string
}

func newRow(i int, room, lower, upper string, was *marchv1.Range) row {
	of := " room " + room
	if room == "" {
		of = " the new room"
	}
	in := func(name, label, value string) field {
		return field{Name: name, Label: label + of, Value: value, Room: room, Bare: true, Digits: name != "room"}
	}
	r := row{ID: "row-" + strconv.Itoa(i), Was: was, Room: in("room", "Name of", room),
		Lower: in("lower", "Lower end of", lower), Upper: in("upper", "Upper end of", upper),
		Drain: in("drain", "Drain", "")}
	r.Room.Place, r.Room.Most, r.Drain.Type = "new room", 63, "checkbox"
	return r
}

// listRanges shows the rows, and one more for a new room.
func (p *planner) listRanges() {
	p.Ranges = newList("Ranges", []setting.Column[row]{
		setting.Col("Room", func(r row) cell {
			if r.Was == nil {
				return cell{Colour: p.palette[r.Room.Value], Field: &r.Room}
			}
			return cell{Colour: p.palette[r.Room.Value], Room: r.Room.Value,
				Text: html(`<input type="hidden" name="room" value="%s">`, r.Room.Value)}
		}),
		setting.Col("Lower", func(r row) field { return r.Lower }),
		setting.Col("Upper", func(r row) field { return r.Upper }),
		setting.Col("Drain", func(r row) any {
			if r.Was == nil {
				return nil
			}
			return r.Drain
		}),
		setting.Col("Now", func(r row) *marchv1.Range { return r.Was }),
	}, append(p.Rows, newRow(len(p.Rows), "", "", "", nil)), p.palette, func(r row) listRow {
		return listRow{ID: r.ID, Wrong: r.Problems}
	})
	p.Ranges.Class = "list rows"
}

type costs struct {
	*marchv1.CountPlanCostResponse
	Worst *list
	ID    string // of the HTML element; the same for the same plan
	Again string // the address that asks again; empty if the cost is counted
	Wrong string // why it is not being counted; empty if it is
}

// plan reads the planner's form and plans. Faults of the form are shown in it and
// are not errors. During a migration it only keeps what was typed.
func (h *Handler) plan(c *call, during bool) (*planner, error) {
	_ = c.ParseForm() // the page shows the fields that can be read
	form, now := c.Form, c.layout.GetLayout().GetLayout()
	p := &planner{
		May:     c.may(marchv1.ConsoleService_ApplyMigration_FullMethodName, ""),
		Version: now.GetVersion(), Boundary: num(now.GetBoundary()), Begun: now.GetVersion(),
		Touched: form.Has("boundary"), Atomic: form.Has("atomic"), Force: form.Has("force"),
		Refused: c.problemOf("apply", "hold"), Again: "/migrations?" + typed(form).Encode(),
	}
	p.Fields = c.fields("apply", "apply", setting.ApplyFields,
		&marchv1.ApplyMigrationRequest{Hold: &durationpb.Duration{}}, p.Refused)
	var err error
	if begun, _ := parseInt(form.Get("version")); 0 < begun && begun < now.GetVersion() {
		p.Begun = begun
		err = h.stale(c, c.layout.GetLayout(), p)
	}
	if err == nil && form.Has("scale") && !during {
		err = h.scale(c, now, p)
	}
	if err != nil {
		return nil, err
	}
	target := p.read(form, now)
	names := slices.Clone(c.layout.GetEver())
	for _, row := range p.Rows {
		names = append(names, row.Room.Value)
	}
	p.palette = colours(append(names, "")...) // of a new room, too
	p.Now, p.Bar = newBar(now, p.palette), newBar(target, p.palette)
	p.Bar.movable()
	if p.Bar.Boundary > 0 {
		p.Bar.moved(p.Now)
	}
	defer p.listRanges()
	if p.wrong() || !p.Touched || during {
		return p, nil
	}
	checked, err := h.console.ValidateLayout(c.Context(), &marchv1.ValidateLayoutRequest{Layout: target})
	if err != nil {
		return nil, err
	}
	p.blame(checked.GetDetails())
	p.Changed = slices.ContainsFunc(roomChanges(now, target), func(c change) bool { return !c.same })
	if p.wrong() || !p.Changed {
		return p, nil
	}
	answer, err := h.console.PlanMigration(c.Context(),
		&marchv1.PlanMigrationRequest{Target: target, Atomic: p.Atomic, Force: p.Force})
	switch {
	case allocator.KindOf(err) == allocator.Unavailable:
		return nil, err
	case err != nil: // the plan is wrong, or a value cannot be read
		p.Problems, p.Broken = append(p.Problems, problem{Text: sentence(err.Error())}), true
		return p, nil
	}
	p.Plan = answer.GetPlan()
	p.Moves = moveViews(now, p.Plan.GetMoves(), p.palette)
	text, err := protojson.Marshal(p.Plan)
	if err != nil {
		return nil, err
	}
	if p.JSON = string(text); form.Get("do") == "apply" || c.failed == "apply" {
		p.Do = "apply"
	}
	h.countCosts(c, p)
	return p, nil
}

// wrong reports whether a field of the form is wrong, or the layout.
func (p *planner) wrong() bool {
	p.Broken = len(p.Problems) > 0 || slices.ContainsFunc(p.Rows, func(r row) bool { return len(r.Problems) > 0 })
	return p.Broken
}

// read takes the target from the form, or from the current layout if there is no form. A
// value that cannot be read becomes its row's problem.
func (p *planner) read(form url.Values, now *marchv1.Layout) *marchv1.Layout {
	target := &marchv1.Layout{Boundary: now.GetBoundary(), Rooms: make(map[string]*marchv1.Range)}
	if !p.Touched {
		for _, name := range operator.ByLower(now.GetRooms()) {
			r := now.GetRooms()[name]
			p.Rows = append(p.Rows, newRow(len(p.Rows), name, num(r.GetLower()), num(r.GetUpper()), r))
			target.Rooms[name] = r
		}
		return target
	}
	p.Boundary = form.Get("boundary")
	if boundary, err := parseInt(p.Boundary); err == nil {
		target.Boundary = boundary
	} else {
		p.Problems = append(p.Problems, problem{"boundary",
			"Boundary: " + strconv.Quote(p.Boundary) + "; allowed: a whole number, 1 or more"})
	}
	n := min(len(form["room"]), len(form["lower"]), len(form["upper"]), 4*allocator.MaxRooms)
	for i, name := range form["room"][:n] {
		r := newRow(len(p.Rows), name, form["lower"][i], form["upper"][i], now.GetRooms()[name])
		if r.Was != nil && slices.Contains(form["drain"], name) {
			r.Drain.Value = "on"
		}
		lower, lowerErr := parseInt(r.Lower.Value)
		upper, upperErr := parseInt(r.Upper.Value)
		_, twice := target.GetRooms()[name]
		switch {
		case name+r.Lower.Value+r.Upper.Value == "":
			continue
		case r.Drain.Value != "":
		case name == "":
			r.blame(&r.Room, "Room: empty; allowed: a name for the new room")
		case twice:
			r.blame(&r.Room, "Room "+name+": named twice; allowed: once, because a room has one range")
		case lowerErr != nil || upperErr != nil:
			if lowerErr != nil {
				r.blame(&r.Lower, "Lower: "+strconv.Quote(r.Lower.Value)+"; allowed: a whole number, 0 or more")
			}
			if upperErr != nil {
				r.blame(&r.Upper, "Upper: "+strconv.Quote(r.Upper.Value)+
					"; allowed: a whole number, up to the boundary")
			}
		default:
			target.Rooms[name] = &marchv1.Range{Lower: lower, Upper: upper}
		}
		p.Rows = append(p.Rows, r)
	}
	return target
}

func (r *row) blame(f *field, text string) {
	r.Problems, f.Wrong = append(r.Problems, text), r.ID+"-wrong"
}

// blame puts each problem of a layout next to its field.
func (p *planner) blame(problems []*marchv1.LayoutProblem) {
	for _, b := range problems {
		found := false
		for i := range p.Rows {
			if r := &p.Rows[i]; slices.Contains(b.GetRooms(), r.Room.Value) && r.Drain.Value == "" {
				r.blame(&r.Lower, sentence(b.GetText()))
				r.Upper.Wrong, found = r.Lower.Wrong, true
			}
		}
		if !found {
			p.Problems = append(p.Problems, problem{"boundary", sentence(b.GetText())})
		}
	}
}

// stale notes the actor that changed the layout since a plan was begun, and the differences.
func (h *Handler) stale(c *call, now *marchv1.LayoutRecord, p *planner) error {
	then, err := h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{Version: p.Begun})
	if err != nil {
		return err
	}
	was, wasErr := api.LayoutFromProto(then.GetLayout().GetLayout())
	is, err := api.LayoutFromProto(now.GetLayout())
	if err := cmp.Or(wasErr, err); err != nil {
		return err
	}
	by := operator.MadeBy(now.GetActor(), func(id string) (string, error) {
		m, err := h.console.GetMigration(c.Context(), &marchv1.GetMigrationRequest{Id: id})
		return m.GetMigration().GetActor(), err
	})
	p.Stale = fmt.Sprintf("%s made layout %d at %s, after this plan was begun: %s. What is planned here undoes that "+
		"where it differs", by, is.Version, stamp(now.GetTime()), plan.Differences(was, is))
	return nil
}

// scale fills the form with the ranges scaled to a new boundary.
func (h *Handler) scale(c *call, now *marchv1.Layout, p *planner) error {
	boundary, err := parseInt(c.Form.Get("boundary"))
	if err != nil || boundary == now.GetBoundary() || boundary == 0 {
		return nil // read reports the problem
	}
	// force, because only the ranges are needed
	answer, err := h.console.PlanMigration(c.Context(), &marchv1.PlanMigrationRequest{Boundary: boundary, Force: true})
	if allocator.KindOf(err) == allocator.Invalid || allocator.KindOf(err) == allocator.Refused {
		p.Problems = append(p.Problems, problem{"boundary", sentence(err.Error())})
		return nil
	}
	if err != nil {
		return err
	}
	target := answer.GetPlan().GetTarget()
	c.Form["room"], c.Form["lower"], c.Form["upper"] = nil, nil, nil
	for _, name := range operator.ByLower(target.GetRooms()) {
		r := target.GetRooms()[name]
		c.Form.Add("room", name)
		c.Form.Add("lower", num(r.GetLower()))
		c.Form.Add("upper", num(r.GetUpper()))
	}
	return nil
}

// applyMigration handles a form that holds the plan which was shown. The console
// refuses the plan if it would now plan other moves.
func (h *Handler) applyMigration(c *call) (string, error) {
	request := &marchv1.ApplyMigrationRequest{Plan: &marchv1.Plan{}, Count: c.FormValue("costs")}
	if err := protojson.Unmarshal([]byte(c.FormValue("plan")), request.GetPlan()); err != nil {
		return "", allocator.Errorf(allocator.Invalid, "plan: not a plan that this page made: %w; plan again", err)
	}
	if err := c.fill(request, setting.ApplyFields...); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(c.Context(), applyWithin)
	defer cancel()
	answer, err := h.console.ApplyMigration(ctx, request)
	return "/migrations/" + answer.GetMigration().GetId(), err
}

// countCosts asks for the cost of the planner's plan. The console goes on counting
// while the page asks again.
func (h *Handler) countCosts(c *call, p *planner) {
	wait, count := max(costsSoon-time.Since(c.began), 0), c.Form.Get("costs")
	if count != "" {
		wait = costsLater
	}
	form := typed(c.Form)
	if form.Del("do"); p.Do != "" {
		form.Set("do", p.Do)
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(form.Encode()))
	p.Costs = &costs{ID: "costs-" + strconv.FormatUint(sum.Sum64(), 16)}
	answer, err := h.console.CountPlanCost(c.Context(), &marchv1.CountPlanCostRequest{Plan: p.Plan,
		Wait: durationpb.New(wait), Count: count})
	if p.Costs.CountPlanCostResponse = answer; err != nil {
		p.Costs.CountPlanCostResponse, p.Costs.Wrong = &marchv1.CountPlanCostResponse{}, err.Error()
	}
	if answer.GetCost() == nil {
		form.Set("costs", answer.GetCount())
		p.Costs.Again = "/migrations?" + form.Encode()
	}
	// The IDs themselves have no place on a page.
	p.Costs.Worst = newList("The tags that skip the most", slices.Delete(slices.Clone(setting.RoomCosts), 2, 4),
		slices.DeleteFunc(setting.RoomCostsOf(answer.GetCost().GetWorst()), func(c setting.RoomCost) bool {
			return c.GetSkipped() == 0
		}), p.palette, nil)
}

// typed returns the fields that a user filled in of the planner's form.
func typed(form url.Values) url.Values {
	kept := url.Values{}
	for _, name := range []string{"version", "boundary", "room", "lower", "upper", "drain", "atomic", "force", "do"} {
		if values := form[name]; len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// MayApply reports whether the plan may be applied, as far as is known.
func (p *planner) MayApply() bool {
	return p.May && (p.Force || p.Costs.GetCost() != nil && p.Costs.GetRefused() == "")
}

// Switches reports whether a move of the plan is a switch.
func (p *planner) Switches() bool {
	return slices.ContainsFunc(p.Plan.GetMoves(), func(m *marchv1.Move) bool {
		return m.GetKind() == marchv1.MoveKind_MOVE_KIND_SWITCH
	})
}

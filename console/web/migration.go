package web

import (
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

type migrationView struct {
	*marchv1.Migration
	From, Target *bar
	Moves        []moveView
	Says         string // the present activity
	Waits        []wait
	Loads        *loads  // nil in a card
	Timeline     []event // none in a card
	Ended        bool
	May          bool     // the caller may steer it
	Percent      string   // the share of the moves and waits that is done
	Do           string   // the action to confirm
	Leave        []string // the instances that the migration is to go on without, to be confirmed
	Problem      *problem
}

// moveView is a move of a migration or a plan.
type moveView struct {
	*marchv1.Move
	Number    int
	State     string // made, next, later
	Before    *bar
	After     *bar
	Numbers   []change
	Reports   []report // of the instances that must report it
	Reported  int
	WaitsFor  bool
	LastOfAll bool
}

// change is the effect of a move on a room.
type change struct {
	Room       string
	Colour     int
	Was, Is    string
	Gains, Los int64 // residues; only under one boundary
}

// report says whether an instance has reported a move. The console knows which
// instances the move waits for; the page shows the silent ones of these as silent.
type report struct {
	*marchv1.Report
	Colour       int
	State        string                 // silent, or the console's state
	Since, Until *timestamppb.Timestamp // of a silent instance
}

// changes lists what differs between two layouts, room by room.
func changes(before, after *marchv1.Layout, colour map[string]int) []change {
	var list []change
	for _, room := range sortedRooms(before, after) {
		was, is := before.GetRooms()[room], after.GetRooms()[room]
		if was != nil && is != nil && was.GetLower() == is.GetLower() && was.GetUpper() == is.GetUpper() &&
			before.GetBoundary() == after.GetBoundary() {
			continue
		}
		c := change{Room: room, Colour: colour[room], Was: interval(was), Is: interval(is)}
		if before.GetBoundary() == after.GetBoundary() {
			both := max(0, min(was.GetUpper(), is.GetUpper())-max(was.GetLower(), is.GetLower()))
			c.Los, c.Gains = was.GetUpper()-was.GetLower()-both, is.GetUpper()-is.GetLower()-both
		}
		list = append(list, c)
	}
	return list
}

// sortedRooms returns the rooms of two layouts by name.
func sortedRooms(one, other *marchv1.Layout) []string {
	rooms := append(operator.ByLower(one.GetRooms()), operator.ByLower(other.GetRooms())...)
	slices.Sort(rooms)
	return slices.Compact(rooms)
}

// moveViews draws moves, starting at a layout.
func moveViews(from *marchv1.Layout, moves []*marchv1.Move, colour map[string]int) []moveView {
	var list []moveView
	before := from
	for i, m := range moves {
		list = append(list, moveView{
			Move: m, Number: i + 1, State: "later", Before: newBar(before, colour),
			After:   newBar(m.GetLayout(), colour),
			Numbers: changes(before, m.GetLayout(), colour), LastOfAll: i == len(moves)-1,
		})
		before = m.GetLayout()
	}
	return list
}

// roomNames returns all rooms of the first layout and of the layouts of moves.
func roomNames(names []string, from *marchv1.Layout, moves []*marchv1.Move) []string {
	names = append(slices.Clone(names), operator.ByLower(from.GetRooms())...)
	for _, m := range moves {
		names = append(names, operator.ByLower(m.GetLayout().GetRooms())...)
	}
	return names
}

func view(c *call, m *marchv1.Migration, colour map[string]int) *migrationView {
	m.Problems = c.shown(m.GetProblems())
	v := &migrationView{
		May:       c.may(marchv1.ConsoleService_PauseMigration_FullMethodName, ""),
		Migration: m, From: newBar(m.GetFrom(), colour), Target: newBar(m.GetTarget(), colour),
		Moves: moveViews(m.GetFrom(), m.GetMoves(), colour),
		Ended: api.Ended(m.GetState()), Waits: waits(m, colour),
	}
	done, all := 0, 0
	for i := range v.Moves {
		move := &v.Moves[i]
		made := i < int(m.GetReached())
		all++
		switch {
		case made:
			move.State = "made"
			done++
		case i == int(m.GetReached()) && len(m.GetWaiting()) == 0:
			move.State = "next"
		}
		for _, r := range move.GetReports() {
			r := newReport(m, r, colour)
			move.Reports = append(move.Reports, r)
			all++
			switch r.State {
			case "reported", "without":
				move.Reported++
				done++
			case "waiting", "silent":
				move.WaitsFor = true
			}
		}
	}
	v.Percent = "100%"
	if all > 0 && m.GetState() != marchv1.MigrationState_MIGRATION_STATE_DONE {
		v.Percent = pct(100 * float64(done) / float64(all))
	}
	v.Says = says(v)
	return v
}

func newReport(m *marchv1.Migration, r *marchv1.Report, colour map[string]int) report {
	room, _, _ := strings.Cut(r.GetInstance(), "/")
	shown := report{Report: r, Colour: colour[room], State: api.Word(r.GetState())}
	for _, w := range m.GetWaiting() {
		waits := w.GetInstance() == r.GetInstance() && r.GetState() == marchv1.ReportState_REPORT_STATE_WAITING
		if waits && w.GetSilentSince() != nil {
			shown.State, shown.Since, shown.Until = "silent", w.GetSilentSince(), w.GetUntil()
		}
	}
	return shown
}

// Errors returns the problems that stop the migration, without those of Waits.
func (v *migrationView) Errors() []*marchv1.Problem {
	return slices.DeleteFunc(slices.Clone(v.GetProblems()), func(p *marchv1.Problem) bool {
		return p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_MIGRATION_WAITS
	})
}

// RoomOf returns the room of an instance.
func (*migrationView) RoomOf(instance string) string {
	room, _, _ := strings.Cut(instance, "/")
	return room
}

// says returns a sentence about the present activity of a migration.
func says(v *migrationView) string {
	var waiting []string
	for _, w := range v.GetWaiting() {
		waiting = append(waiting, w.GetInstance())
	}
	back := ""
	if v.GetAbort() {
		back = "Going back. "
	}
	switch v.GetState() {
	case marchv1.MigrationState_MIGRATION_STATE_DONE:
		return "Done: all moves were made and reported."
	case marchv1.MigrationState_MIGRATION_STATE_ABORTED:
		if v.GetNoWayBack() != "" {
			return "Aborted at the current layout, because there is no way back: " + v.GetNoWayBack() + "."
		}
		return "Aborted: the layout is as it was."
	case marchv1.MigrationState_MIGRATION_STATE_PAUSED:
		return back + "Paused before the next move. So it is since " + stamp(v.GetUpdated()) +
			", and until an operator resumes it."
	}
	switch {
	case v.GetError() != "":
		return back + "It cannot go on now."
	case len(waiting) > 0:
		return back + "Waiting until " + strings.Join(waiting, ", ") + " reports."
	case int(v.GetReached()) < len(v.GetMoves()):
		return back + "Making the next move."
	}
	return back + "Finishing."
}

func (h *Handler) migration(c *call) (string, any, error) {
	answer, err := h.console.GetMigration(c.Context(), &marchv1.GetMigrationRequest{Id: c.PathValue("id")})
	if err != nil {
		return "", nil, err
	}
	l, err := h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{})
	if err != nil {
		return "", nil, err
	}
	m := answer.GetMigration()
	colour := colours(roomNames(l.GetEver(), m.GetFrom(), m.GetMoves())...)
	v := view(c, m, colour)
	var rates map[string]float64
	if !v.Ended {
		rates = h.rates(c.Context())
	}
	v.Timeline, v.Loads = timeline(m), newLoads(m.GetFrom(), m.GetTarget(), rates, colour)
	v.Problem = c.problemOf("steer")
	if do := c.URL.Query().Get("do"); c.Method == http.MethodGet && !v.Ended {
		v.Leave = c.URL.Query()["without"]
		if do == "abort" || do == "continue" && len(v.Leave) > 0 {
			v.Do = do
		}
	}
	return "Migration", v, nil
}

func (h *Handler) pauseMigration(c *call) (string, error) {
	id := c.PathValue("id")
	_, err := h.console.PauseMigration(c.Context(), &marchv1.PauseMigrationRequest{Id: id})
	return "/migrations/" + escape(id) + "?done=paused", err
}

func (h *Handler) resumeMigration(c *call) (string, error) {
	id := c.PathValue("id")
	_, err := h.console.ResumeMigration(c.Context(), &marchv1.ResumeMigrationRequest{Id: id})
	return "/migrations/" + escape(id) + "?done=resumed", err
}

func (h *Handler) abortMigration(c *call) (string, error) {
	id := c.PathValue("id")
	_, err := h.console.AbortMigration(c.Context(), &marchv1.AbortMigrationRequest{Id: id})
	return "/migrations/" + escape(id) + "?done=aborted", err
}

func (h *Handler) continueMigration(c *call) (string, error) {
	id := c.PathValue("id")
	if len(c.Form["without"]) == 0 {
		return "", allocator.Errorf(allocator.Invalid,
			"without: no instance is chosen; allowed: one or more of the instances that the migration waits for")
	}
	_, err := h.console.ContinueMigration(c.Context(), &marchv1.ContinueMigrationRequest{Id: id,
		Without: c.Form["without"]})
	return "/migrations/" + escape(id) + "?done=continued", err
}

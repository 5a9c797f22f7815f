package web

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

type migrationView struct {
	*marchv1.Migration
	palette
	From, Target *bar
	Moves        []moveView
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
	Reported  int
	WaitsFor  bool
	LastOfAll bool
}

// change is the effect of a move on a room.
type change struct {
	Room       string
	Was, Is    *marchv1.Range
	Gains, Los int64 // residues; only under one boundary
}

// changes lists what differs between two layouts, room by room.
func changes(before, after *marchv1.Layout) (list []change) {
	same := before.GetBoundary() == after.GetBoundary()
	for _, room := range sortedRooms(before, after) {
		was, is := before.GetRooms()[room], after.GetRooms()[room]
		if same && proto.Equal(was, is) {
			continue
		}
		c := change{Room: room, Was: was, Is: is}
		if same {
			both := max(0, min(was.GetUpper(), is.GetUpper())-max(was.GetLower(), is.GetLower()))
			c.Los, c.Gains = was.GetUpper()-was.GetLower()-both, is.GetUpper()-is.GetLower()-both
		}
		list = append(list, c)
	}
	return list
}

// sortedRooms returns the rooms of layouts by name.
func sortedRooms(layouts ...*marchv1.Layout) (rooms []string) {
	for _, l := range layouts {
		rooms = append(rooms, operator.ByLower(l.GetRooms())...)
	}
	slices.Sort(rooms)
	return slices.Compact(rooms)
}

// moveViews draws moves, starting at a layout.
func moveViews(from *marchv1.Layout, moves []*marchv1.Move, colour palette) []moveView {
	var list []moveView
	before := from
	for i, m := range moves {
		list = append(list, moveView{
			Move: m, Number: i + 1, State: "later", Before: newBar(before, colour),
			After:   newBar(m.GetLayout(), colour),
			Numbers: changes(before, m.GetLayout()), LastOfAll: i == len(moves)-1,
		})
		before = m.GetLayout()
	}
	return list
}

// coloursOf returns the colours of all rooms that ever were, and of those that a migration brings.
func coloursOf(l *marchv1.GetLayoutResponse, m *marchv1.Migration) palette {
	names := append(slices.Clone(l.GetEver()), operator.ByLower(m.GetFrom().GetRooms())...)
	for _, move := range m.GetMoves() {
		names = append(names, operator.ByLower(move.GetLayout().GetRooms())...)
	}
	return colours(names...)
}

func view(c *call, m *marchv1.Migration, colour palette) *migrationView {
	m.Problems = c.shown(m.GetProblems())
	v := &migrationView{
		May:       c.may(marchv1.ConsoleService_PauseMigration_FullMethodName, ""),
		Migration: m, palette: colour, From: newBar(m.GetFrom(), colour), Target: newBar(m.GetTarget(), colour),
		Moves: moveViews(m.GetFrom(), m.GetMoves(), colour), Ended: api.Ended(m.GetState()),
	}
	done, all := 0, 0
	for i := range v.Moves {
		move := &v.Moves[i]
		switch {
		case i < int(m.GetReached()):
			move.State = "made"
			done++
		case i == int(m.GetReached()) && len(m.GetWaiting()) == 0:
			move.State = "next"
		}
		for _, r := range move.GetReports() {
			switch r.GetState() {
			case marchv1.ReportState_REPORT_STATE_REPORTED, marchv1.ReportState_REPORT_STATE_WITHOUT:
				move.Reported++
			case marchv1.ReportState_REPORT_STATE_WAITING:
				move.WaitsFor = true
			}
		}
		done, all = done+move.Reported, all+1+len(move.GetReports())
	}
	v.Percent = "100%"
	if all > 0 && m.GetState() != marchv1.MigrationState_MIGRATION_STATE_DONE {
		v.Percent = pct(100 * float64(done) / float64(all))
	}
	return v
}

// Silent returns the wait for a report of an instance that is silent; nil for any other report.
func (v *migrationView) Silent(r *marchv1.Report) *marchv1.Waiting {
	for _, w := range v.GetWaiting() {
		if w.GetInstance() == r.GetInstance() && w.GetSilentSince() != nil &&
			r.GetState() == marchv1.ReportState_REPORT_STATE_WAITING {
			return w
		}
	}
	return nil
}

// Made returns when the last move was made; nil before that.
func (v *migrationView) Made() *timestamppb.Timestamp {
	if v.GetReached() == 0 {
		return nil
	}
	return v.GetMoves()[v.GetReached()-1].GetMade()
}

// Errors returns the problems that stop the migration, without those that its waits show.
func (v *migrationView) Errors() []*marchv1.Problem {
	return slices.DeleteFunc(slices.Clone(v.GetProblems()), func(p *marchv1.Problem) bool {
		return p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_MIGRATION_WAITS
	})
}

func (h *Handler) migration(c *call) (any, error) {
	answer, err := h.console.GetMigration(c.Context(), &marchv1.GetMigrationRequest{Id: c.PathValue("id")})
	if err != nil {
		return nil, err
	}
	m := answer.GetMigration()
	v := view(c, m, coloursOf(c.layout, m))
	var rates map[string]float64
	if !v.Ended {
		rates = h.rates(c.Context())
	}
	v.Timeline, v.Loads = timeline(m), newLoads(m.GetFrom(), m.GetTarget(), rates, v.palette)
	v.Problem = c.problemOf("steer")
	if do := c.query().Get("do"); !v.Ended {
		v.Leave = c.query()["without"]
		if do == "abort" || do == "continue" && len(v.Leave) > 0 {
			v.Do = do
		}
	}
	return v, nil
}

// readContinue reads the form of a migration that goes on without instances. Its error is Invalid.
func readContinue(c *call, r *marchv1.ContinueMigrationRequest) error {
	if r.Without = c.Form["without"]; len(r.GetWithout()) == 0 {
		return allocator.Errorf(allocator.Invalid,
			"without: no instance is chosen; allowed: one or more of the instances that the migration waits for")
	}
	return nil
}

package web

import (
	"cmp"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/words"
)

type migrationView struct {
	*marchv1.Migration
	palette
	From, Target *bar
	Moves        []moveView
	Waits        *list
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
	Numbers   *list
	Reported  int
	WaitsFor  bool
	LastOfAll bool
}

// change is what a layout changes for a room, and the load on its ranges.
type change struct {
	room         string
	was, is      *marchv1.Range
	same         bool    // the range, under one boundary
	residues     string  // that it gains and loses, under one boundary
	rate         float64 // IDs per second now; -1 for unknown
	before, then float64 // the part of rate that falls on a hundredth of the residues; -1 for unknown, or no range
}

// The columns of a layout's changes, and those that there are besides where rates are known.
var (
	changeColumns = []setting.Column[change]{
		setting.Key(setting.Col("Room", func(c change) setting.Room { return setting.Room(c.room) })),
		setting.Num("Before", func(c change) *marchv1.Range { return c.was }),
		setting.Num("After", func(c change) *marchv1.Range { return c.is }),
		setting.Num("Residues", func(c change) string { return cmp.Or(c.residues, "–") }),
	}
	loadColumns = append(slices.Clone(changeColumns),
		setting.Num("IDs/s now", func(c change) setting.Rate { return setting.Rate(c.rate) }),
		setting.Num("per 1% before", func(c change) setting.Rate { return setting.Rate(c.before) }),
		setting.Num("per 1% after", func(c change) setting.Rate { return setting.Rate(c.then) }))
)

// roomChanges lists the rooms of two layouts, in the order of a drawing.
func roomChanges(before, after *marchv1.Layout) (list []change) {
	rooms := make(map[string]*marchv1.Range)
	maps.Copy(rooms, before.GetRooms())
	maps.Copy(rooms, after.GetRooms())
	for _, room := range operator.ByLower(rooms) {
		c := change{room: room, was: before.GetRooms()[room], is: after.GetRooms()[room]}
		if before.GetBoundary() == after.GetBoundary() {
			c.same = proto.Equal(c.was, c.is)
			both := max(0, min(c.was.GetUpper(), c.is.GetUpper())-max(c.was.GetLower(), c.is.GetLower()))
			if gains := c.is.GetUpper() - c.is.GetLower() - both; gains > 0 {
				c.residues = "+" + num(gains)
			}
			if loses := c.was.GetUpper() - c.was.GetLower() - both; loses > 0 {
				c.residues = strings.TrimSpace(c.residues + " −" + num(loses))
			}
		}
		list = append(list, c)
	}
	return list
}

func listChanges(caption string, columns []setting.Column[change], changes []change, colour palette) *list {
	l := newList(caption, columns, changes, colour, nil)
	l.Class = "numbers"
	return l
}

// moveViews draws moves, starting at a layout.
func moveViews(from *marchv1.Layout, moves []*marchv1.Move, colour palette) []moveView {
	var list []moveView
	before := from
	for i, m := range moves {
		changes := slices.DeleteFunc(roomChanges(before, m.GetLayout()), func(c change) bool { return c.same })
		list = append(list, moveView{
			Move: m, Number: i + 1, State: "later", Before: newBar(before, colour),
			After: newBar(m.GetLayout(), colour), LastOfAll: i == len(moves)-1,
			Numbers: listChanges(fmt.Sprintf("What move %d changes", i+1), changeColumns, changes, colour),
		})
		before = m.GetLayout()
	}
	return list
}

// coloursOf returns the colours of all rooms that ever were, and of those that migrations bring.
func coloursOf(l *marchv1.GetLayoutResponse, migrations ...*marchv1.Migration) palette {
	names := slices.Clone(l.GetEver())
	for _, m := range migrations {
		names = append(names, operator.ByLower(m.GetFrom().GetRooms())...)
		for _, move := range m.GetMoves() {
			names = append(names, operator.ByLower(move.GetLayout().GetRooms())...)
		}
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
	v.Waits = newList("Instances that the migration waits for", append(slices.Clone(setting.Waits),
		setting.Col("What to do", v.whatToDo)), m.GetWaiting(), colour, nil)
	v.Waits.Class = "list waits"
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

// whatToDo says what an operator does about an instance that the migration waits for.
func (v *migrationView) whatToDo(w *marchv1.Waiting) template.HTML {
	switch {
	case w.GetSilentSince() == nil:
		return html(`Nothing: an instance reports within seconds. After minutes, `+
			`<a href="/instances%s">look at it</a>.`, with(nil, "room", roomOf(w.GetInstance())))
	case !v.May:
		return "Start it again."
	}
	return html(`Start it again. If you are sure that it does not run, `+
		`<a href="/migrations/%s%s">go on without it</a>.`, v.GetId(),
		with(nil, "do", "continue", "without", w.GetInstance()))
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

type migrationsView struct {
	Unreadable []*marchv1.Unreadable
	Active     *migrationView     // nil without one
	Problems   []*marchv1.Problem // that keep all rooms from leasing
	History    *list
	pages
	Planner *planner
}

const historyPage = 10

func (h *Handler) migrations(c *call) (any, error) {
	q := c.URL.Query()
	list, err := h.console.ListMigrations(c.Context(),
		&marchv1.ListMigrationsRequest{PageSize: historyPage, PageToken: q.Get("before")})
	if err != nil {
		return nil, err
	}
	v := &migrationsView{pages: pagesOf(url.Values{"before": q["before"]}, "before", list.GetNextPageToken()),
		Problems: c.shown(c.layout.GetProblems()), Unreadable: list.GetUnreadable()}
	colour := coloursOf(c.layout, list.GetMigrations()...)
	for _, m := range list.GetMigrations() {
		if !api.Ended(m.GetState()) {
			v.Active = view(c, m, colour)
		}
	}
	v.History = newList("Migrations", setting.Migrations[1:], list.GetMigrations(), colour, // a row links to its ID
		func(m *marchv1.Migration) listRow {
			return listRow{ID: "m-" + m.GetId(), Page: "/migrations/" + m.GetId()}
		})
	if c.layout.GetLayout() != nil && !c.live { // a plan is of a layout, and not in the live part
		v.Planner, err = h.plan(c, v.Active != nil)
	}
	return v, err
}

// refresh returns the address at which a browser without scripts asks again for a
// cost that is being counted; empty if none is.
func (v *migrationsView) refresh() string {
	if v.Planner == nil || v.Planner.Costs == nil {
		return ""
	}
	return v.Planner.Costs.Again
}

// event is a line of a migration's timeline.
type event struct {
	Time  *timestamppb.Timestamp
	Class string // of style.css: move, report, wait, error, end, or empty for what operators did
	Text  string
}

// noticeable is how long a migration must have waited between two moves for its timeline to say so.
const noticeable = time.Second

// timeline returns the events of a migration, the first one first: those of its log, the moves
// with their layouts, the waits between moves, and the reports that are not in the log yet.
func timeline(m *marchv1.Migration) (list []event) {
	logged := make(map[string]bool)
	for i, e := range m.GetLog() {
		kind, text := e.GetKind(), e.GetText()
		if kind == marchv1.MigrationEvent_MIGRATION_EVENT_UNSPECIFIED {
			kind = kindOfText(i, text)
		}
		switch kind {
		case marchv1.MigrationEvent_MIGRATION_EVENT_MOVED: // moves follow, with more about each
			continue
		case marchv1.MigrationEvent_MIGRATION_EVENT_STARTED:
			text = fmt.Sprintf("Planned and applied by %s: %s from layout %d to layout %d", m.GetActor(),
				words.Counted(len(m.GetMoves()), "move"), m.GetFrom().GetVersion(), m.GetTarget().GetVersion())
		case marchv1.MigrationEvent_MIGRATION_EVENT_REPORTED: // its text begins with an instance's name
			logged[text] = true
		default:
			text = sentence(text)
		}
		list = append(list, event{e.GetTime(), classOf[kind], text + "."})
	}
	for i, move := range m.GetMoves() {
		if move.GetMade() == nil {
			continue
		}
		if i > 0 {
			if w, long := waited(m.GetMoves()[i-1], move.GetMade()); long {
				list = append(list, w)
			}
		}
		list = append(list, event{move.GetMade(), "move", fmt.Sprintf("Move %d of %d is made, and layout %d holds: %s.",
			i+1, len(m.GetMoves()), move.GetLayout().GetVersion(), move.GetWhy())})
		for _, r := range move.GetReports() {
			text := fmt.Sprintf("%s reported move %d", r.GetInstance(), i+1)
			if r.GetReported() != nil && !logged[text] {
				list = append(list, event{r.GetReported(), "report", text + "."})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b event) int { return a.Time.AsTime().Compare(b.Time.AsTime()) })
	return list
}

// waited returns the wait between a move and what followed it at next. It reports whether the
// wait was long enough to say so.
func waited(move *marchv1.Move, next *timestamppb.Timestamp) (event, bool) {
	took := next.AsTime().Sub(move.GetMade().AsTime())
	text := "Waited " + short(durationpb.New(took))
	if len(move.GetLoses()) > 0 {
		text += " for the reports of " + strings.Join(move.GetLoses(), ", ")
	}
	return event{next, "wait", text + "."}, took >= noticeable
}

// classOf has the classes of the events of a log that are not what operators did.
var classOf = map[marchv1.MigrationEvent]string{
	marchv1.MigrationEvent_MIGRATION_EVENT_REPORTED:  "report",
	marchv1.MigrationEvent_MIGRATION_EVENT_CONTINUED: "wait",
	marchv1.MigrationEvent_MIGRATION_EVENT_STOPPED:   "error",
	marchv1.MigrationEvent_MIGRATION_EVENT_ENDED:     "end",
}

// kindOfText returns the kind of the log's entry i by its text. The release that testdata/previous
// names, and those before it, stored entries without a kind. Once it names a release that stores
// kinds, no console adds such entries any more: this function may go then. Without it, the
// timelines of migrations from before show moves twice, perhaps also reports, and events lose
// their classes.
func kindOfText(i int, text string) marchv1.MigrationEvent {
	switch {
	case i == 0:
		return marchv1.MigrationEvent_MIGRATION_EVENT_STARTED
	case strings.HasPrefix(text, "move "):
		return marchv1.MigrationEvent_MIGRATION_EVENT_MOVED
	case strings.Contains(text, " reported move "):
		return marchv1.MigrationEvent_MIGRATION_EVENT_REPORTED
	case strings.HasPrefix(text, "cannot go on"):
		return marchv1.MigrationEvent_MIGRATION_EVENT_STOPPED
	case strings.HasPrefix(text, "goes on without"):
		return marchv1.MigrationEvent_MIGRATION_EVENT_CONTINUED
	case text == "done", text == "aborted", strings.HasPrefix(text, "ended "):
		return marchv1.MigrationEvent_MIGRATION_EVENT_ENDED
	}
	return marchv1.MigrationEvent_MIGRATION_EVENT_UNSPECIFIED
}

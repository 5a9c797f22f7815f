package web

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/words"
)

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

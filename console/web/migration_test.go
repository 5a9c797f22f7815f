package web_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/web"
)

// told is a console with answers that a test chooses.
type told struct {
	marchv1.UnimplementedConsoleServiceServer
	migration *marchv1.Migration
	rates     map[string]float64 // IDs per second, by room
}

func (c *told) GetOverview(context.Context, *marchv1.GetOverviewRequest) (*marchv1.GetOverviewResponse, error) {
	o := &marchv1.GetOverviewResponse{}
	for room, rate := range c.rates {
		o.Rooms = append(o.Rooms, &marchv1.RoomStatus{Name: room, Rate: &rate})
	}
	return o, nil
}

func (c *told) GetMigration(context.Context, *marchv1.GetMigrationRequest) (*marchv1.GetMigrationResponse, error) {
	return &marchv1.GetMigrationResponse{Migration: c.migration}, nil
}

func (c *told) GetLayout(context.Context, *marchv1.GetLayoutRequest) (*marchv1.GetLayoutResponse, error) {
	return &marchv1.GetLayoutResponse{Layout: &marchv1.LayoutRecord{Layout: c.migration.GetFrom()}}, nil
}

// shown returns a console's page.
func shown(t *testing.T, c marchv1.ConsoleServiceServer, path string) string {
	t.Helper()
	answer, page := get(t, servePages(t, web.Config{Console: inProcess(c)})+path)
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s\n%s", path, answer.Status, page)
	}
	return page
}

const oneMigration = "/migrations/01M7ZJKZWRJWBA2S6WT424NRG9"

// TestReports: the page shows the instances that the console waits for, move by move.
func TestReports(t *testing.T) {
	full := func(version, upper int64) *marchv1.Layout {
		return &marchv1.Layout{Version: version, Boundary: 100, Rooms: map[string]*marchv1.Range{"a": {Upper: upper}}}
	}
	m := &marchv1.Migration{
		State: marchv1.MigrationState_MIGRATION_STATE_RUNNING, Reached: 2, From: full(1, 100), Target: full(4, 40),
		Moves: []*marchv1.Move{
			{Kind: marchv1.MoveKind_MOVE_KIND_RETRACT, Loses: []string{"a"}, Layout: full(2, 80),
				Reports: []*marchv1.Report{
					{Instance: "a/away", State: marchv1.ReportState_REPORT_STATE_UNNEEDED},
					{Instance: "a/one", State: marchv1.ReportState_REPORT_STATE_UNNEEDED},
					{Instance: "a/two", State: marchv1.ReportState_REPORT_STATE_WITHOUT},
				}},
			{Kind: marchv1.MoveKind_MOVE_KIND_RETRACT, Loses: []string{"a"}, Layout: full(3, 60),
				Reports: []*marchv1.Report{
					{Instance: "a/away", State: marchv1.ReportState_REPORT_STATE_WAITING},
					{Instance: "a/one", State: marchv1.ReportState_REPORT_STATE_WAITING},
					{Instance: "a/two", State: marchv1.ReportState_REPORT_STATE_REPORTED},
				}},
			{Kind: marchv1.MoveKind_MOVE_KIND_RETRACT, Loses: []string{"a"}, Layout: full(4, 40),
				Reports: []*marchv1.Report{{Instance: "a/one", State: marchv1.ReportState_REPORT_STATE_LATER}}},
		},
		Waiting: []*marchv1.Waiting{
			{Instance: "a/away", SilentSince: timestamppb.New(time.Date(2026, 11, 21, 11, 30, 0, 0, time.UTC)),
				Until: timestamppb.New(time.Date(2026, 11, 21, 11, 40, 0, 0, time.UTC))},
			{Instance: "a/one", Version: 2},
		},
	}
	screen(t, "reports", shown(t, &told{migration: m}, oneMigration))
}

// TestTimeline: the page has all events of a migration in their order: also the reports that the
// console saw and has not written down yet, and the waits between moves. Entries of the log
// without a kind, from the previous release, give the same page.
func TestTimeline(t *testing.T) {
	at := func(second int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 11, 21, 11, 30, second, 0, time.UTC))
	}
	layout := func(version, edge int64) *marchv1.Layout {
		return &marchv1.Layout{Version: version, Boundary: 100,
			Rooms: map[string]*marchv1.Range{"a": {Upper: 50}, "b": {Lower: edge, Upper: 100}}}
	}
	reported := func(instance string, second int) *marchv1.Report {
		return &marchv1.Report{Instance: instance, State: marchv1.ReportState_REPORT_STATE_REPORTED,
			Reported: at(second)}
	}
	entry := func(second int, kind marchv1.MigrationEvent, text string) *marchv1.MigrationLog {
		return &marchv1.MigrationLog{Time: at(second), Kind: kind, Text: text}
	}
	m := &marchv1.Migration{
		State: marchv1.MigrationState_MIGRATION_STATE_RUNNING, Reached: 2, From: layout(1, 50),
		Target: layout(4, 90), Actor: "ann",
		Moves: []*marchv1.Move{
			{Layout: layout(2, 60), Loses: []string{"b"}, Why: "room b shrinks", Made: at(1),
				Reports: []*marchv1.Report{reported("b/one", 3), reported("b/two", 9)}},
			{Layout: layout(3, 70), Loses: []string{"b"}, Why: "room b shrinks more", Made: at(10),
				Reports: []*marchv1.Report{
					reported("b/one", 11), {Instance: "b/two", State: marchv1.ReportState_REPORT_STATE_WAITING},
				}},
			{Layout: layout(4, 90), Loses: []string{"b"}},
		},
		Log: []*marchv1.MigrationLog{
			entry(0, marchv1.MigrationEvent_MIGRATION_EVENT_STARTED, "started by ann"),
			entry(1, marchv1.MigrationEvent_MIGRATION_EVENT_MOVED, "move retract made: layout version 2"),
			entry(3, marchv1.MigrationEvent_MIGRATION_EVENT_REPORTED, "b/one reported move 1"),
			entry(9, marchv1.MigrationEvent_MIGRATION_EVENT_REPORTED, "b/two reported move 1"),
			entry(10, marchv1.MigrationEvent_MIGRATION_EVENT_MOVED, "move retract made: layout version 3"),
			entry(5, marchv1.MigrationEvent_MIGRATION_EVENT_PAUSED, "paused by bob"),
			entry(6, marchv1.MigrationEvent_MIGRATION_EVENT_STOPPED, "cannot go on: no space"),
			entry(7, marchv1.MigrationEvent_MIGRATION_EVENT_CONTINUED, "goes on without b/old for one move, says bob"),
		},
		Waiting: []*marchv1.Waiting{{Instance: "b/two", Version: 2}},
	}
	console := &told{migration: m, rates: map[string]float64{"a": 100, "b": 400}}
	page := shown(t, console, oneMigration)
	screen(t, "timeline", page)
	for class, want := range map[string]int{"": 2, "move": 2, "report": 3, "wait": 2, "error": 1} {
		if got := strings.Count(page, `<li class="`+class+`"><span class="code dim">`); got != want {
			t.Errorf("%d events are of class %q, want %d", got, class, want)
		}
	}
	for _, e := range m.GetLog() {
		e.Kind = marchv1.MigrationEvent_MIGRATION_EVENT_UNSPECIFIED
	}
	if old := shown(t, console, oneMigration); old != page {
		t.Errorf("with a log without kinds the page is\n%s\nwant\n%s", old, page)
	}
}

// TestAborted: the page says whether an abort led back. Before, it judged by the log's text.
func TestAborted(t *testing.T) {
	layout := &marchv1.Layout{Version: 1, Boundary: 100, Rooms: map[string]*marchv1.Range{"a": {Upper: 100}}}
	for problem, want := range map[string]string{
		"": "Aborted: the layout is as it was.",
		"the layout is version 3": "Aborted at the current layout, because there is no way back: " +
			"the layout is version 3.",
	} {
		m := &marchv1.Migration{State: marchv1.MigrationState_MIGRATION_STATE_ABORTED, Abort: true, From: layout,
			Target: layout, NoWayBack: problem}
		if page := shown(t, &told{migration: m}, oneMigration); !strings.Contains(page, want) {
			t.Errorf("the page does not say %q:\n%s", want, page)
		}
	}
}

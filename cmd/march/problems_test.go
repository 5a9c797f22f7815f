package main

import (
	"bytes"
	"strings"
	"testing"
	"text/tabwriter"

	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

func at(seconds int64) *timestamppb.Timestamp {
	return &timestamppb.Timestamp{Seconds: 1_767_225_600 + seconds}
}

// text returns the text that write writes.
func text(write func(w *tabwriter.Writer)) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	write(w)
	_ = w.Flush()
	return b.String()
}

// Each problem is shown with its beginning, its end, the remedy and the command, if there are
// any. Control characters do not reach the terminal.
func TestProblemsText(t *testing.T) {
	var b bytes.Buffer
	problemsText(&b, []*marchv1.Problem{
		{What: "one\x1b is wrong", Since: at(0), Until: at(60), Remedy: "Mend it.", Command: "march mend\x1b"},
		{What: "two is", Since: at(0), Remedy: "Wait."},
		{What: "three is", Until: at(0), Remedy: "Wait."},
		{What: "four is", Remedy: "Wait."},
	})
	const want = "\none\ufffd is wrong\n  Since 2026-01-01T00:00:00Z. It ends by itself at 2026-01-01T00:01:00Z. " +
		"Mend it. Next: `march mend\ufffd`\n" +
		"\ntwo is\n  Since 2026-01-01T00:00:00Z. Wait.\n" +
		"\nthree is\n  It ends by itself at 2026-01-01T00:00:00Z. Wait.\n" +
		"\nfour is\n  Wait.\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// `march status` shows the list of problems, and nothing of it twice.
func TestStatusShowsProblems(t *testing.T) {
	o := &marchv1.GetOverviewResponse{
		Rooms: []*marchv1.RoomStatus{{Name: "a", Problems: []string{"a/one: no IDs"}}},
		Halt:  &marchv1.Halt{By: "ann", Why: "a restore", Time: at(0)},
	}
	o.Problems = []*marchv1.Problem{{What: "leasing is halted in all rooms by ann: a restore", Since: at(0),
		Remedy: "Recover.", Command: "march recover"}}
	got := text(func(w *tabwriter.Writer) { statusText(w, o) })
	if !strings.HasSuffix(got, "\nleasing is halted in all rooms by ann: a restore\n  Since 2026-01-01T00:00:00Z. "+
		"Recover. Next: `march recover`\n") || strings.Count(got, "halted") != 1 {
		t.Errorf("got %q", got)
	}
}

// `march status` shows which stored formats are turned on, and which ones may be.
func TestStatusShowsFormats(t *testing.T) {
	o := &marchv1.GetOverviewResponse{NewestFormats: 2,
		Layout: &marchv1.LayoutRecord{Layout: &marchv1.Layout{Version: 3, Boundary: 100}}}
	for on, want := range map[int32]string{0: "formats  1; `march cluster upgrade` turns 2 on\n", 2: "formats  2\n"} {
		o.Layout.Formats = on
		if got := text(func(w *tabwriter.Writer) { statusText(w, o) }); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// `march migrate status` shows the cause that keeps a migration from going on. So does the
// line of apply and watch. Both show since when, and the remedy.
func TestMigrationShowsProblems(t *testing.T) {
	m := &marchv1.Migration{Id: "M", State: marchv1.MigrationState_MIGRATION_STATE_RUNNING,
		Error: "the layout is version 3", ErrorSince: at(0)}
	m.Problems = []*marchv1.Problem{{What: "migration M cannot go on: the layout is version 3", Since: at(0),
		Remedy: "End it.", Command: "march migrate abort M"}}
	status := text(func(w *tabwriter.Writer) { migrationText(w, m) })
	line := migrationLine(m) + "\n"
	if !strings.Contains(status,
		"\nmigration M cannot go on: the layout is version 3\n  Since 2026-01-01T00:00:00Z. End it. Next: "+
			"`march migrate abort M`\n") ||
		!strings.HasSuffix(line,
			"  ERROR since 2026-01-01T00:00:00Z: the layout is version 3. End it. Next: `march migrate abort M`\n") {
		t.Errorf("%q, %q", status, line)
	}
}

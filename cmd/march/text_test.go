package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/imports"
	"github.com/march-id/march/internal/setting"
)

// crowded is a layout of 64 rooms, and their names.
func crowded() (*marchv1.Layout, []string) {
	l := &marchv1.Layout{Version: 7, Boundary: 6400, Rooms: make(map[string]*marchv1.Range)}
	var names []string
	for i := range int64(64) {
		name := fmt.Sprintf("europe-west-%d", i)
		l.Rooms[name] = &marchv1.Range{Lower: 100 * i, Upper: 100*i + 100}
		names = append(names, name)
	}
	return l, names
}

// widest returns the columns of the longest line.
func widest(text string) (most int) {
	for line := range strings.Lines(text) {
		most = max(most, len([]rune(strings.TrimSuffix(line, "\n"))))
	}
	return most
}

// Before, with 64 rooms a line of a plan, or of a migration's status, had 1,000 columns.
func TestSixtyFourRoomsFit(t *testing.T) {
	l, names := crowded()
	var waiting []*marchv1.Waiting
	var instances []string
	skips := make(map[string]int64)
	for _, name := range names {
		waiting = append(waiting, &marchv1.Waiting{Instance: name + "/host-1"})
		instances = append(instances, name+"/host-1")
		skips[name] = 1_000_000
	}
	now := timestamppb.New(time.Unix(1_767_225_600, 0))
	why := "rooms " + strings.Join(names, ", ") + " shrink to what old and new have in common"
	moves := []*marchv1.Move{{Kind: marchv1.MoveKind_MOVE_KIND_RETRACT, Why: why, Layout: l, Loses: names,
		ClientsUntil: now}, {Kind: marchv1.MoveKind_MOVE_KIND_EXPAND, Why: why, Layout: l}}
	plan := text(func(w *tabwriter.Writer) {
		movesText(w, &marchv1.Plan{From: l, Target: l, Moves: moves, Instances: instances, Silent: instances,
			Cost: &marchv1.PlanCost{Worst: []*marchv1.TagCost{{Tag: "order", Rooms: skips}}}})
	})
	status := text(func(w *tabwriter.Writer) {
		migrationText(w, &marchv1.Migration{Id: "01ARZ3NDEKTSV4RRFFQ69G5FAV", From: l, Moves: moves, Reached: 1,
			Waiting: waiting, Created: now})
	})
	for what, text := range map[string]string{"plan": plan, "status": status} {
		if got := widest(text); got > 160 {
			t.Errorf("the %s has a line of %d columns:\n%s", what, got, text)
		}
		for _, name := range names { // each layout names all rooms
			if n := strings.Count(text, name+" ["); n != 3 {
				t.Errorf("the %s has the range of %s %d times", what, name, n)
			}
		}
	}
	line := migrationLine(&marchv1.Migration{Id: "01ARZ3NDEKTSV4RRFFQ69G5FAV", Moves: moves, Waiting: waiting})
	if got := widest(line); got > 160 || !strings.HasSuffix(line, "/host-1 and 61 more") {
		t.Errorf("progress: %q", line)
	}
	if got := cell(rangeParts(l)); got != "europe-west-0 [0, 100), europe-west-1 [100, 200), europe-west-2 [200, "+
		"300) and 61 more" {
		t.Errorf("a cell: %q", got)
	}
}

// Short text stays on its line.
func TestFold(t *testing.T) {
	for _, test := range []struct {
		parts []string
		want  string
	}{
		{nil, ""}, {[]string{"a"}, "a"}, {[]string{"aa", "bb"}, "aa, bb"}, {[]string{"aa", "bb", "cc"}, "aa, bb,|cc"},
		{[]string{"aaaaaaaaaaaa", "b"}, "aaaaaaaaaaaa,|b"},
	} {
		if got := strings.Join(fold(test.parts, ",", 8), "|"); got != test.want {
			t.Errorf("%q: %q, want %q", test.parts, got, test.want)
		}
	}
}

// The lines of an error are set in but for the first, which has the command's name, so none looks like another message.
func TestSetIn(t *testing.T) {
	for text, want := range map[string]string{
		"no tag x": "no tag x",
		"no tag x\nmarch: all is well\x1b[2J\r\n": "no tag x\n  march: all is well\ufffd[2J\ufffd",
		"f:1:2: b\n  a: b\n     ^":                "f:1:2: b\n    a: b\n       ^",
	} {
		if got := setIn(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A text that a caller chose forges no row of a table and no line, and sends the terminal no command.
func TestNoForgedLine(t *testing.T) {
	const forged = "order\n2026-11-26T10:00:00Z  token:root  delete tag\x1b[2J\u009b31m\u202e\ttags/x"
	actor := marchv1.AuditEntry{Actor: forged, Action: forged, Object: forged}
	for name, write := range map[string]func(w *tabwriter.Writer){
		"audit": func(w *tabwriter.Writer) {
			list(w, setting.Audit, []*marchv1.AuditEntry{&actor})
		},
		"halt": func(w *tabwriter.Writer) {
			recoverText(w, &recovery.Report{UUID: "1" + forged, Halt: record.Halt{By: forged, Why: forged},
				Missing: []recovery.Missing{{ID: "a/1", Incarnation: forged[5:], Why: forged}}})
		},
		"import": func(w *tabwriter.Writer) {
			(&imported{Tags: []imports.Result{{Why: forged, Counter: imports.Counter{Name: forged, Tag: "x",
				Notes: []string{forged}}}}}).text(w)
		},
		"notes and progress": func(w *tabwriter.Writer) {
			c := &common{stderr: w}
			c.sayNotes(&marchv1.UpdateTagResponse{Behind: []string{forged}, Effects: []string{forged}})
			(&progress{c: c}).say(forged)
		},
		"problem": func(w *tabwriter.Writer) {
			problemsText(w, []*marchv1.Problem{{What: forged, Remedy: forged, Command: forged}})
		},
	} {
		var out bytes.Buffer
		c := &common{stdout: &out, stderr: &out, output: "text"}
		if err := c.print(nil, write); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), "\n2026-11") {
			t.Errorf("%s: a forged line:\n%s", name, out.String())
		}
		for _, r := range out.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%s: %U reaches the terminal", name, r)
			}
		}
	}
}

// text returns the text that write writes.
func text(write func(w *tabwriter.Writer)) string {
	var b bytes.Buffer
	_ = aligned(&b, write)
	return b.String()
}

// TestWords: -o json has words for the values of enums at any depth, numbers for values
// that this program does not know, and all other texts as they are.
func TestWords(t *testing.T) {
	m := &marchv1.Migration{
		Id: "MIGRATION_STATE_DONE", State: marchv1.MigrationState_MIGRATION_STATE_PAUSED,
		From: &marchv1.Layout{Rooms: map[string]*marchv1.Range{"kind": {}}},
		Moves: []*marchv1.Move{
			{Kind: marchv1.MoveKind_MOVE_KIND_SWITCH, Why: `"kind":"MOVE_KIND_SHIFT"`,
				Reports: []*marchv1.Report{{State: 99}, {State: marchv1.ReportState_REPORT_STATE_LATER}}},
			{Kind: 77},
		},
		Problems: []*marchv1.Problem{{Kind: marchv1.ProblemKind_PROBLEM_KIND_MIGRATION_WAITS}},
	}
	b, err := marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"id":"MIGRATION_STATE_DONE","state":"paused",`,
		`"moves":[{"kind":"switch","why":"\"kind\":\"MOVE_KIND_SHIFT\"",`,
		`{"instance":"","version":"0","state":99,"reported":null},{"instance":"","version":"0","state":"later","reported":null}`, `{"kind":77,`, `"kind":"migration_waits"`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s; want %s in it", b, want)
		}
	}
	read := &marchv1.Migration{}
	if err := unmarshal(b, read); err != nil || !proto.Equal(read, m) {
		t.Errorf("read again: %v, %v", read, err)
	}
	for _, name := range []string{`{"state":"paused"}`, `{"state":"MIGRATION_STATE_PAUSED"}`, `{"state":2}`} {
		if err := unmarshal([]byte(name), read); err != nil || read.GetState() != m.GetState() {
			t.Errorf("%s: %v, %v", name, read, err)
		}
	}
	for _, wrong := range []string{"", "{", `{"state":`, `{"state":"asleep"}`, `{"state":"Paused"}`,
		`{"moves":[{"kind":"paused"}]}`, `]`} {
		if err := unmarshal([]byte(wrong), read); err == nil {
			t.Errorf("%s was read: %v", wrong, read)
		}
	}
}

package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	marchv1 "github.com/march-id/march/api/march/v1"
)

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

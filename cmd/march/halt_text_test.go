package main

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// TestStoppedText: an earlier console has no list of problems. For it, a halt and an unusable
// layout are shown in the words of the list. Control characters in operators' names do not
// reach the terminal.
func TestStoppedText(t *testing.T) {
	halt := &marchv1.Halt{By: "ann\x1b", Why: "a restore", Time: &timestamppb.Timestamp{Seconds: 1_767_225_600}}
	const halted = "\nleasing is halted in all rooms by ann\ufffd: a restore\n  Since 2026-01-01T00:00:00Z. " +
		"Rooms issue the IDs that they hold, and lease none. When etcd has the right data, let them lease again. " +
		"Next: `march recover`\n"
	const other = "\nelse\n  Mend it.\n"
	for _, test := range []struct {
		problems []*marchv1.Problem
		halt     *marchv1.Halt
		unusable string
		want     string
	}{
		{nil, nil, "", ""},
		{nil, halt, "", halted},
		{[]*marchv1.Problem{{What: "else", Remedy: "Mend it."}}, halt, "bad", other},
		{nil, nil, "the layout in etcd cannot be used",
			"\nthe layout in etcd cannot be used\n  Rooms issue the IDs that they hold, under the last good layout. " +
				"See which key is damaged, and how to repair it. Next: `march verify`\n"},
	} {
		var b bytes.Buffer
		if stoppedText(&b, test.problems, test.halt, test.unusable); b.String() != test.want {
			t.Errorf("got %q, want %q", b.String(), test.want)
		}
	}
}

package main

import (
	"io"
	"strings"
	"testing"
)

// The commands that an output names have the context of the command whose output it is: those of March, in backquotes
// or as a problem's command in JSON, but for servers, which have none.
func TestInContext(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Next: `march recover`\n":            "Next: `march --context prod recover`\n",
		"`march tag create a`, or `march x`": "`march --context prod tag create a`, or `march --context prod x`",
		`"command":"march verify"`:           `"command":"march --context prod verify"`,
		`"command": "march migrate plan"`:    `"command": "march --context prod migrate plan"`,
		"Next: `march room a`, `march console`; is `march dev` running?": "Next: `march room a`, `march console`; " +
			"is `march dev` running?",
		"Next: `etcdctl endpoint status`; the march is long": "Next: `etcdctl endpoint status`; the march is long",
	} {
		var b strings.Builder
		if n, err := io.WriteString(inContext{&b, "prod"}, text); n != len(text) || err != nil || b.String() != want {
			t.Errorf("%q: got %q, %d, %v", text, b.String(), n, err)
		}
	}
}

// A command in a folded text is in one line.
func TestFoldedCommand(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	command := "`march instance forget a a-long-name-of-an-instance`"
	folded(&b, "  ", strings.Repeat("word ", 18)+"(see "+command+"), and a single ` too")
	if !strings.Contains(b.String(), "\n  "+command+"), and a single ` too\n") {
		t.Error(b.String())
	}
}

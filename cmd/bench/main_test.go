package main

import (
	"strings"
	"testing"
)

// A row without figures says so, and the others have theirs.
func TestPrint(t *testing.T) {
	b := &bench{rows: []*row{
		{what: "half", unit: "/s", goal: 1.5, yards: []float64{3}},
		{what: "void", unit: "/s", goal: 1, void: "no processor"},
		{what: "both", unit: "/s", goal: 2, measured: []float64{6, 9}, yards: []float64{3, 3}},
		{what: "most", unit: "s", goal: 0.5, atMost: true, measured: []float64{0.7}, note: "slow"},
	}}
	var out strings.Builder
	if err := b.print(&out); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := []string{"WHAT MARCH YARDSTICK RATIO GOAL", "half - - - - not measured",
		"void - - - - not measured no processor", "both 9 /s 3 /s 3 >= 2 reached", "most 0.7 s - 0.7 <= 0.5 short slow"}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", out.String())
	}
}

// A part ends with its first failure, and all that was started for it ends with it.
func TestPart(t *testing.T) {
	var ended []string
	err := (&bench{}).part(t.Context(), measurement{"broken", func(p *part) {
		p.Cleanup(func() { ended = append(ended, "first") })
		p.Cleanup(func() { p.Fatal("cannot end") })
		p.check(nil)
		p.Fatalf("%d rows", 3)
		t.Error("it went on")
	}})
	if err == nil || err.Error() != "3 rows\ncannot end" || len(ended) != 1 {
		t.Errorf("%v; ended %q", err, ended)
	}
}

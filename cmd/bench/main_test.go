package main

import (
	"strings"
	"testing"
)

// If -rows chooses one part of a row only, that row has no figures, and the others have theirs.
func TestPrint(t *testing.T) {
	b := &bench{}
	b.add(row{what: "half", unit: "/s", goal: 1.5, yard: []float64{3}})
	b.add(row{what: "none", unit: "/s", goal: 1})
	b.add(row{what: "both", unit: "/s", goal: 2, measured: []float64{6, 9}, yard: []float64{3, 3}})
	var out strings.Builder
	if err := b.print(&out); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := []string{"what March yardstick ratio goal", "half - - - - not measured", "none - - - - not measured",
		"both 9 /s 3 /s 3 >= 2 reached"}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", out.String())
	}
}

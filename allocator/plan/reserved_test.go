package plan_test

import (
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
)

// No move gives a room a residue that is reserved before and after, and each layout is valid.
func TestReservedStaysAlone(t *testing.T) {
	plans := 0
	rapid.Check(t, func(t *rapid.T) {
		for range pairs { // of which one in ten has a plan, and residues that are free in both
			from, target := drawPair(t)
			if from.Boundary != target.Boundary || from.Equal(target) {
				continue
			}
			both := allocator.Layout{Boundary: from.Boundary, Ranges: maps.Clone(from.Ranges)}
			for room, r := range target.Ranges {
				both.Ranges["target-"+room] = r
			}
			free := both.Free(allocator.Range{Upper: from.Boundary})
			if len(free) == 0 {
				continue
			}
			reserved := map[allocator.Room]allocator.Range{"other": rapid.SampledFrom(free).Draw(t, "reserved")}
			from.Reserved, target.Reserved = reserved, maps.Clone(reserved)
			if planKeepsReserved(t, from, target) {
				plans++
			}
		}
	})
	if plans < 20 {
		t.Errorf("%d plans were made", plans)
	}
}

// planKeepsReserved reports whether there is a plan between two layouts that reserve the same,
// after it has checked that each move reserves that, too.
func planKeepsReserved(t *rapid.T, from, target allocator.Layout) bool {
	p, err := plan.New(from, target, false)
	if err != nil {
		if allocator.KindOf(err) != allocator.Refused {
			t.Fatal(err)
		}
		return false
	}
	for _, m := range p.Moves {
		if err := m.Layout.Validate(); err != nil || !maps.Equal(m.Layout.Reserved, from.Reserved) {
			t.Fatalf("%+v: %v", m.Layout, err)
		}
	}
	if !p.Target.Equal(target) {
		t.Fatalf("reached %+v, want %+v", p.Target, target)
	}
	return true
}

func TestReservedEdits(t *testing.T) {
	from := allocator.Layout{Version: 4, Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Upper: 40},
		"b": {Lower: 40, Upper: 80}}}
	edit := func(l allocator.Layout, text string) (allocator.Layout, error) {
		t.Helper()
		e, err := plan.ParseReserve(text)
		if err != nil {
			return l, err
		}
		return plan.Apply(l, e)
	}
	reserved, err := edit(from, "other=80-100")
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.New(from, reserved, false)
	if err != nil || len(p.Moves) != 1 || len(p.Moves[0].Loses) != 0 || !p.Target.Equal(reserved) {
		t.Fatalf("%+v, %v", p, err)
	}
	if got, want := p.Moves[0].Why, "[80, 100) is reserved for other; no room gains a residue"; got != want {
		t.Errorf("why: %q, want %q", got, want)
	}
	if got, want := plan.Picture(reserved, 10), "[aaaabbbb##]"; got != want {
		t.Errorf("picture %s, want %s", got, want)
	}
	if from.Reserved != nil {
		t.Error("the layout that was edited has changed")
	}
	for text, says := range map[string]string{
		"other=70-90":  "room b [40, 80) and reserved range other [70, 90) overlap in [70, 80)",
		"other":        "allowed: NAME=LOWER-UPPER",
		"other=90-90":  "allowed: LOWER-UPPER",
		"other=90-101": "allowed: 0 <= lower < upper <= 100",
	} {
		if _, err := edit(from, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	for says, e := range map[string]plan.Edit{
		"room c [90, 95) and reserved range other [80, 100) overlap": must(plan.ParseAddRoom("c=90-95")),
		"boundary: 200; allowed: 100 while ranges are reserved":      plan.ScaleBoundary(200),
		"other is reserved already":                                  must(plan.ParseReserve("other=80-90")),
		"no reserved range nothing; allowed: one of [other]":         plan.Release("nothing"),
	} {
		if _, err := plan.Apply(reserved, e); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	back, err := plan.Apply(reserved, plan.Release("other"))
	if err != nil || !back.Equal(from) {
		t.Errorf("released: %+v, %v", back, err)
	}
	stored := reserved
	stored.Version = 5
	if p, err := plan.New(stored, back, false); err != nil ||
		p.Moves[0].Why != "[80, 100) is no longer reserved for other; no room gains a residue" {
		t.Errorf("why: %+v, %v", p.Moves, err)
	}
	if _, err := plan.Apply(back, plan.Release("other")); err == nil ||
		!strings.Contains(err.Error(), "release: other; the layout has no reserved range") {
		t.Errorf("released twice: %v", err)
	}
	moved := allocator.Layout{Boundary: 100, Ranges: map[allocator.Room]allocator.Range{"a": {Upper: 40}}}
	if kept, err := plan.KeepReserved(reserved, moved); err != nil || !maps.Equal(kept.Reserved, reserved.Reserved) {
		t.Errorf("kept %+v, %v", kept, err)
	}
	moved.Boundary = 50
	if _, err := plan.KeepReserved(reserved, moved); allocator.KindOf(err) != allocator.Invalid {
		t.Errorf("another boundary: %v", err)
	}
}

func must(e plan.Edit, err error) plan.Edit {
	if err != nil {
		panic(err)
	}
	return e
}

package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every mutant and limit in a model's source has a run, and every run names one.
func TestRunsCoverTheModel(t *testing.T) {
	inModel := map[string]bool{} // by file, kind and name
	for _, file := range []string{"march.pml", "workers.pml", "lives.pml", "order.pml"} {
		model, err := models.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`\b(MUTANT|LIMIT)_([A-Z_]*[A-Z])\b`).FindAllStringSubmatch(
			string(model), -1) {
			inModel[file+" "+strings.ToLower(found[1])+" "+found[2]] = true
		}
	}
	names := map[string]bool{}
	if lines := strings.Count(runsText, "\n") - strings.Count(runsText, "#"); len(runs) != lines {
		t.Errorf("%d lines are %d runs", lines, len(runs))
	}
	for _, r := range runs {
		if names[r.name] {
			t.Errorf("two runs are named %s", r.name)
		}
		names[r.name] = true
		if r.states < 1 || r.what == "" {
			t.Errorf("%s: states %d, what %q; want some", r.name, r.states, r.what)
		}
		if r.kind == holds {
			continue
		}
		if r.large {
			t.Errorf("%s is left out by -quick", r.name)
		}
		in := r.file + " " + r.kind + " " + r.name
		if !inModel[in] {
			t.Errorf("%s %s is not in %s", r.kind, r.name, r.file)
		}
		delete(inModel, in)
	}
	for name := range inModel {
		t.Errorf("%s is not run", name)
	}
}

// Outputs of spin 6.5.2.
const (
	unique = `
Full statespace search for:
State-vector 92 byte, depth reached 311, errors: 0
   997010 states, stored
  2162344 states, matched
  260.459	total actual memory usage
`
	violated = `
pan:1: assertion violated  !((in[i].segment&issued)) (at depth 107)
pan: wrote march.pml.trail
Warning: Search not completed
State-vector 92 byte, depth reached 209, errors: 1
 1.25e+08 states, stored
  130.631	total actual memory usage
`
	blocked = `
pan:1: invalid end state (at depth 92)
Warning: Search not completed
State-vector 92 byte, depth reached 209, errors: 1
      100 states, stored
`
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, said string
		want       outcome
		fails      bool
	}{
		{name: "unique", said: unique, want: outcome{complete: true, states: 997010, memory: 260}},
		{name: "out of memory", said: "Warning: Search not completed\n" + unique,
			want: outcome{states: 997010, memory: 260}},
		{name: "too deep", said: "error: max search depth too small\n" + unique,
			want: outcome{states: 997010, memory: 260}},
		{name: "violated", said: violated, want: outcome{violated: true, states: 125_000_000, memory: 130}},
		{name: "another error", said: blocked, fails: true},
		{name: "nothing", said: "", fails: true},
	} {
		got, err := parse([]byte(c.said))
		if (err != nil) != c.fails {
			t.Errorf("%s: error %v, want one: %v", c.name, err, c.fails)
		}
		if !c.fails && got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestVerdict(t *testing.T) {
	config := run{kind: holds, name: "x", states: 100}
	broken := run{kind: mutant, name: "X", states: 10}
	for _, c := range []struct {
		name  string
		run   run
		o     outcome
		wrong string // part of the verdict; empty if nothing is wrong
	}{
		{"unique", config, outcome{complete: true, states: 100}, ""},
		{"twice", config, outcome{violated: true, states: 100}, "issued twice"},
		{"not all", config, outcome{states: 100}, "not all states"},
		{"shrank", config, outcome{complete: true, states: 99}, "shrank"},
		{"caught", broken, outcome{violated: true, states: 10}, ""},
		{"lives", broken, outcome{complete: true, states: 1000}, "not caught"},
		{"caught too soon", broken, outcome{violated: true, states: 9}, "shrank"},
	} {
		if got := c.run.verdict(c.o, nil); (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) {
			t.Errorf("%s: verdict %q, want %q in it", c.name, got, c.wrong)
		}
	}
}

func TestSelected(t *testing.T) {
	if _, err := selected("no such", false); err == nil {
		t.Error("a run that does not exist was found")
	}
	quick, err := selected("", true)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(quick, func(r run) bool { return r.large }) || len(quick) == 0 {
		t.Errorf("quick runs: %d, some large ones among them", len(quick))
	}
}

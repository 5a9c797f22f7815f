package main

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed runs.txt
var runsText string

// run is one question to a model: a line of runs.txt.
type run struct {
	file        string // of the model
	kind, name  string
	states      int64 // the fewest that must be met
	large, deep bool
	options     string
	what        string // the question, or the broken part
}

const (
	holds  = "holds"  // no ID is issued twice, and all states were met
	mutant = "mutant" // the protocol is broken in one place: an ID is issued twice
	limit  = "limit"  // an assumption is taken away: an ID is issued twice, as README says
)

var runs = readRuns(runsText)

// readRuns reads lines of runs. What is no number of states is 0, which a test refuses.
func readRuns(text string) (all []run) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), " | ")
		if strings.HasPrefix(line, "#") || len(f) != 7 {
			continue
		}
		states, _ := strconv.ParseInt(f[3], 10, 64)
		all = append(all, run{file: f[0] + ".pml", kind: f[1], name: f[2], states: states, large: f[4] == "large",
			deep: f[4] == "deep", options: strings.TrimPrefix(f[5], "-"), what: f[6]})
	}
	return all
}

// defines returns spin's options for r.
func (r run) defines() []string {
	args := make([]string, 0, 8)
	for _, option := range strings.Fields(r.options) {
		args = append(args, "-D"+option)
	}
	switch r.kind {
	case mutant:
		args = append(args, "-DMUTANT_"+r.name)
	case limit:
		args = append(args, "-DLIMIT_"+r.name)
	}
	return args
}

// verdict returns what is wrong with the outcome of r, or an empty text.
func (r run) verdict(o outcome, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case r.kind != holds && !o.violated:
		return fmt.Sprintf("%s %s was not caught: no ID was issued twice", r.kind, r.name)
	case r.kind == holds && o.violated:
		return fmt.Sprintf("%s: an ID was issued twice; `-replay %s` shows how", r.name, r.name)
	case r.kind == holds && !o.complete:
		return fmt.Sprintf("%s: not all states were met within the bounds of memory and depth", r.name)
	case o.states < r.states:
		return fmt.Sprintf("%s met %d states, fewer than the %d recorded: the model shrank", r.name, o.states, r.states)
	}
	return ""
}

// result is r's entry in the table.
func (r run) result(verdict string) string {
	switch {
	case verdict != "":
		return "FAILED"
	case r.kind == holds:
		return "unique"
	}
	return "caught"
}

// find returns the run of a name.
func find(name string) (run, error) {
	names := make([]string, 0, len(runs))
	for _, r := range runs {
		if r.name == name {
			return r, nil
		}
		names = append(names, r.name)
	}
	return run{}, fmt.Errorf("there is no run %q; there are %s", name, strings.Join(names, ", "))
}

package main

import (
	"fmt"
	"strings"
)

// run is one question to the model.
type run struct {
	kind    string // holds, mutant or limit
	name    string
	what    string // what is asked, or what is broken
	options string // of march.pml, without the mutant's own
	states  int64  // the fewest that must be met; those that spin met when this was recorded, less a percent
	large   bool   // left out by -quick
}

const (
	holds  = "holds"  // no ID is issued twice, and all states were met
	mutant = "mutant" // the protocol broken in one place: an ID is issued twice
	limit  = "limit"  // an assumption taken away: an ID is issued twice, as README says
)

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

// verdict returns what is wrong with the outcome of r; nothing where it is empty.
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

// find returns the run with a name.
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

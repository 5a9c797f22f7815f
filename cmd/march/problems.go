package main

import (
	"io"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// problemsText lists what is wrong: each with since when, what to do, and the command.
func problemsText(w io.Writer, problems []*marchv1.Problem) {
	_, _ = io.WriteString(w, problem.Lines(problems, printable))
}

// doText says what to do about a problem, and the command.
func doText(p *marchv1.Problem) string { return problem.Do(p, printable) }

// stoppedText lists what is wrong. A console of an earlier version has no list, and tells
// only of a halt and of a layout that cannot be used.
func stoppedText(w io.Writer, problems []*marchv1.Problem, halt *marchv1.Halt, unusable string) {
	if len(problems) == 0 && halt != nil {
		problems = append(problems, problem.Halted(halt.GetBy(), halt.GetWhy(), halt.GetTime().AsTime()))
	}
	if len(problems) == 0 && unusable != "" {
		problems = append(problems, problem.Unusable(unusable))
	}
	problemsText(w, problems)
}

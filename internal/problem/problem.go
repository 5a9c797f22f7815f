// Package problem has the texts of the problems of a cluster, an instance or a key. Rooms
// use it for their own problems, and consoles for those of the cluster. So
// readyz?verbose, `march status`, the console's pages and `march verify` show the same
// texts.
package problem

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// Stamp returns a time as a message, or nil for the zero time.
func Stamp(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// Unique returns a list with one problem of each kind and object: the first one, with
// the earliest time of all.
func Unique(list []*marchv1.Problem) []*marchv1.Problem {
	first := make(map[id]*marchv1.Problem, len(list))
	unique := make([]*marchv1.Problem, 0, len(list))
	for _, p := range list {
		was, ok := first[idOf(p)]
		switch {
		case !ok:
			first[idOf(p)] = p
			unique = append(unique, p)
		case was.GetSince() == nil || p.GetSince() != nil && p.GetSince().AsTime().Before(was.GetSince().AsTime()):
			was.Since = p.GetSince()
		}
	}
	return unique
}

// Some returns the first problems of a list, and a problem that has the number of the
// others.
func Some(all []*marchv1.Problem, most int, of string) []*marchv1.Problem {
	if len(all) <= most {
		return all
	}
	more := &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_MORE, Of: of,
		What:   fmt.Sprintf("%d more problems with %s", len(all)-most, of),
		Remedy: "First solve the problems that are listed.",
	}
	return append(all[:most:most], more)
}

// id identifies a problem in a list.
type id struct {
	kind marchv1.ProblemKind
	of   string
}

func idOf(p *marchv1.Problem) id { return id{p.GetKind(), p.GetOf()} }

// Lines writes problems for a terminal: two lines each, after an empty one.
func Lines(list []*marchv1.Problem, printable func(string) string) string {
	var b strings.Builder
	for _, p := range list {
		fmt.Fprintf(&b, "\n%s\n  %s%s\n", printable(p.GetWhat()), times(p), Do(p, printable))
	}
	return b.String()
}

// Line writes a problem in one line: what, since when, and what to do.
func Line(p *marchv1.Problem) string {
	return strings.TrimRight(p.GetWhat()+". "+times(p)+Plain(p), " ")
}

// AsLines writes problems, a line each.
func AsLines(list []*marchv1.Problem) []string {
	lines := make([]string, len(list))
	for k, p := range list {
		lines[k] = Line(p)
	}
	return lines
}

// times returns since when and until when a problem exists, as a text; empty if
// neither is known.
func times(p *marchv1.Problem) string {
	at := func(t *timestamppb.Timestamp) string { return t.AsTime().Format(time.RFC3339) }
	switch since, until := p.GetSince(), p.GetUntil(); {
	case since != nil && until != nil:
		return fmt.Sprintf("Since %s, until %s. ", at(since), at(until))
	case since != nil:
		return fmt.Sprintf("Since %s. ", at(since))
	case until != nil:
		return fmt.Sprintf("Until %s. ", at(until))
	}
	return ""
}

// Do returns the remedy of a problem, and the command.
func Do(p *marchv1.Problem, printable func(string) string) string {
	text := printable(p.GetRemedy())
	if p.GetCommand() != "" {
		text += " Next: `" + printable(p.GetCommand()) + "`"
	}
	return text
}

// Plain is Do for a log, which escapes texts itself.
func Plain(p *marchv1.Problem) string {
	return Do(p, func(text string) string { return text })
}

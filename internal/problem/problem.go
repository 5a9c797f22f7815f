// Package problem words the problems of a cluster, an instance or a key. Rooms word their
// own problems with it, and consoles those of the cluster. So readyz?verbose, `march
// status`, the console's pages and `march verify` use the same words.
package problem

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// Stamp returns a time as a problem has it: nil for the zero time.
func Stamp(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// Unique returns a list without what it has already of a kind and an object. The first
// of them stays, with the earliest of their times.
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

// Some returns the first problems of a list, and how many more there are of something.
func Some(all []*marchv1.Problem, most int, of string) []*marchv1.Problem {
	if len(all) <= most {
		return all
	}
	more := &marchv1.Problem{
		Kind: marchv1.ProblemKind_PROBLEM_KIND_MORE, Of: of, What: fmt.Sprintf("%d more problems with %s", len(all)-most, of),
		Remedy: "Mend those that are listed first.",
	}
	return append(all[:most:most], more)
}

// id is what a list has one problem of.
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
	asIs := func(text string) string { return text }
	return strings.TrimRight(p.GetWhat()+". "+times(p)+Do(p, asIs), " ")
}

// AsLines writes problems, a line each.
func AsLines(list []*marchv1.Problem) []string {
	lines := make([]string, len(list))
	for k, p := range list {
		lines[k] = Line(p)
	}
	return lines
}

// times says since when and until when a problem is, in a sentence; nothing where
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

// Do says what to do about a problem, and the command.
func Do(p *marchv1.Problem, printable func(string) string) string {
	text := printable(p.GetRemedy())
	if p.GetCommand() != "" {
		text += " Next: `" + printable(p.GetCommand()) + "`"
	}
	return text
}

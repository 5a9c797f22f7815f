package problem

import (
	"slices"
	"strings"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Unique returns a list with one problem of each kind and object: the first one, with the earliest time of all, and
// with what each of them hits.
func Unique(list []*marchv1.Problem) []*marchv1.Problem {
	first := make(map[id]*marchv1.Problem, len(list))
	unique := make([]*marchv1.Problem, 0, len(list))
	for _, p := range list {
		was, ok := first[idOf(p)]
		if !ok {
			first[idOf(p)] = p
			unique = append(unique, p)
			continue
		}
		earlier(was, p)
		hits(was, p.GetHits()...)
	}
	return unique
}

// Group returns a list in which each cause is one problem. The problems that it causes are named among those that it
// hits; they are not problems of their own.
func Group(list []*marchv1.Problem) []*marchv1.Problem {
	list = Unique(list)
	gone := make(map[*marchv1.Problem]bool)
	for _, cause := range list {
		// Those of its own kind first: what these hit, it hits too.
		for _, own := range []bool{true, false} {
			for _, p := range list {
				if p == cause || gone[cause] || gone[p] || (p.GetKind() == cause.GetKind()) != own || !causes(cause,
					p) {
					continue
				}
				gone[p] = true
				if own {
					earlier(cause, p)
				}
				Hit(cause, p)
			}
		}
	}
	return slices.DeleteFunc(list, func(p *marchv1.Problem) bool { return gone[p] })
}

// causes reports whether p is an effect of cause.
func causes(cause, p *marchv1.Problem) bool {
	kind := p.GetKind()
	return kind == cause.GetKind() && hides(kind, kind) || Explains(cause, kind, p.GetOf())
}

// Explains reports whether a problem of a kind and of a thing is an effect of cause.
func Explains(cause *marchv1.Problem, kind marchv1.ProblemKind, thing string) bool {
	of := cause.GetOf()
	return hides(cause.GetKind(), kind) && (of == "" || of == thing || strings.HasPrefix(thing, of+"/") ||
		slices.Contains(cause.GetHits(), thing))
}

func hides(cause, kind marchv1.ProblemKind) bool {
	return slices.ContainsFunc(Table, func(r *Row) bool { return r.Kind == cause && slices.Contains(r.Hides, kind) })
}

// Hit notes that a problem is an effect of another one.
func Hit(cause, p *marchv1.Problem) {
	of := p.GetOf()
	if of != "" && (of != cause.GetOf() || strings.Contains(of, "/")) { // of an instance it is said how it shows there
		hits(cause, shownAs(cause, p))
	}
	hits(cause, p.GetHits()...)
}

// shownAs names what a problem is of and, where it is of another kind than its cause, how it shows there.
func shownAs(cause, p *marchv1.Problem) string {
	if p.GetKind() == cause.GetKind() {
		return p.GetOf()
	}
	return p.GetOf() + " (" + strings.ReplaceAll(api.Word(p.GetKind()), "_", " ") + ")"
}

// hits adds what a problem hits.
func hits(p *marchv1.Problem, more ...string) {
	p.Hits = append(p.Hits, more...)
	slices.Sort(p.Hits)
	p.Hits = slices.Compact(p.Hits)
	// "a/one (not ready)" says more than "a/one"
	p.Hits = slices.DeleteFunc(p.Hits, func(hit string) bool {
		return slices.ContainsFunc(p.Hits, func(other string) bool { return strings.HasPrefix(other, hit+" (") })
	})
}

// earlier gives a problem the time of another one of its cause, if that is earlier.
func earlier(p, other *marchv1.Problem) {
	if p.GetSince() == nil || other.GetSince() != nil && other.GetSince().AsTime().Before(p.GetSince().AsTime()) {
		p.Since = other.GetSince()
	}
}

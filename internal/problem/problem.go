// Package problem has the table of what can be wrong with a cluster, an instance, a host or a key: the words, what it
// does to callers, what to do, and by which command. `/readyz?verbose`, `march status`, `march doctor`, the pages, the
// logs and the runbook show its rows. Host serves what only a process itself can say of its host.
package problem

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// New returns a problem of a thing. params are names of parameters of the row, each followed by its value.
func New(row *Row, of string, since time.Time, params ...any) *marchv1.Problem {
	fill, link := fillers(of, params)
	return &marchv1.Problem{
		Kind: row.Kind, Of: of, Since: Stamp(since), What: fill.Replace(row.What), Effect: fill.Replace(row.Effect),
		Remedy: fill.Replace(row.Remedy), Command: fill.Replace(row.Command), Page: link.Replace(row.Page),
		Button: link.Replace(row.Button),
	}
}

// fillers return what puts the values of parameters into a text, and into the path of a page. Those of params come
// before those of the thing.
func fillers(of string, params []any) (text, link *strings.Replacer) {
	room, instance, _ := strings.Cut(of, "/")
	params = append(slices.Clip(params), "of", of, "room", room, "instance", instance)
	var texts, links []string
	for i := 0; i+1 < len(params); i += 2 {
		name, value := fmt.Sprintf("{%v}", params[i]), oneLine(fmt.Sprint(params[i+1]))
		texts, links = append(texts, name, value), append(links, name, url.PathEscape(value))
	}
	return strings.NewReplacer(texts...), strings.NewReplacer(links...)
}

// oneLine returns a text of several lines as one. A line that is set in shows the place of a mistake in a file, which
// the line before has named.
func oneLine(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); line != "" && line == strings.TrimLeft(line, " \t") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// Slice names the workers of a width that a room may take.
func Slice(in allocator.Room, bits int) string { return fmt.Sprintf("%s, %d bits", in, bits) }

// Away returns the problem that etcd does not answer a process, names. The members say how many answer, cause why none
// does.
func Away(of, names, effect string, members store.Members, cause error, since time.Time,
	etcdctl string) *marchv1.Problem {
	text := members.String()
	switch {
	case cause != nil && members.All == 0:
		text = cause.Error()
	case cause != nil && members.Answer == 0:
		text += "; " + cause.Error()
	}
	return New(EtcdAway, of, since, "names", names, "effect", effect, "members", text, "etcdctl", etcdctl)
}

// Safety lists what is wrong with a server's TLS. process names it in a text, of in the list of problems. insecure is
// why it is insecure, empty if it is not; broken why its certificates' files cannot be used, nil if they can.
func Safety(process, of, insecure string, broken error) (list []*marchv1.Problem) {
	if insecure != "" {
		list = append(list, New(Insecure, of, time.Time{}, "process", process, "why", insecure))
	}
	if broken != nil {
		list = append(list, New(Certificate, of, time.Time{}, "process", process, "why", broken))
	}
	return list
}

// Warning reports whether problems of a kind stop nothing now.
func Warning(kind marchv1.ProblemKind) bool {
	return slices.ContainsFunc(Table, func(r *Row) bool { return r.Kind == kind && r.Warning })
}

// OfCluster reports whether problems of a kind are listed before those of instances.
func OfCluster(kind marchv1.ProblemKind) bool {
	return slices.ContainsFunc(Table, func(r *Row) bool { return r.Kind == kind && r.Cluster })
}

// CallOf returns the method of ConsoleService by which the button of a kind of problems solves it; empty for none.
func CallOf(kind marchv1.ProblemKind) string {
	at := slices.IndexFunc(Table, func(r *Row) bool { return r.Kind == kind && r.Call != "" })
	return Table[max(at, 0)].Call // the first row, More, has none
}

// Stamp returns a time as a message, or nil for the zero time.
func Stamp(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// Some returns the first problems of a list, and a problem that has the number of the
// others.
func Some(all []*marchv1.Problem, most int, of string) []*marchv1.Problem {
	if len(all) <= most {
		return all
	}
	more := New(More, of, time.Time{}, "count", len(all)-most)
	return append(all[:most:most], more)
}

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

// at returns a time as a text; empty for none.
func at(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339)
}

// times returns since when a problem exists and what comes when, as a text; empty if neither is known.
func times(p *marchv1.Problem) (text string) {
	if p.GetSince() != nil {
		text = fmt.Sprintf("Since %s. ", at(p.GetSince()))
	}
	if p.GetUntil() != nil {
		text += fmt.Sprintf("%s %s. ", Until(p), at(p.GetUntil()))
	}
	return text
}

// Until says what comes at the time of the field until.
func Until(p *marchv1.Problem) string {
	if p.GetKind() == silent {
		return "A console forgets it at"
	}
	return "It ends by itself at"
}

// Do returns what a problem hits and does, the remedy and the command.
func Do(p *marchv1.Problem, printable func(string) string) string {
	text := printable(About(p))
	if p.GetCommand() != "" {
		text += " Next: `" + printable(p.GetCommand()) + "`"
	}
	return text
}

// maxHits is how many things that a problem hits are named in a text.
const maxHits = 10

// About returns what a problem hits and does, and the remedy.
func About(p *marchv1.Problem) string {
	var parts []string
	if n := len(p.GetHits()); n > maxHits {
		parts = append(parts, fmt.Sprintf("It hits %s and %d more.", strings.Join(p.GetHits()[:maxHits], ", "),
			n-maxHits))
	} else if n > 0 {
		parts = append(parts, "It hits "+strings.Join(p.GetHits(), ", ")+".")
	}
	for _, part := range []string{p.GetEffect(), p.GetRemedy()} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, " ")
}

// Plain is Do for a log, which escapes texts itself.
func Plain(p *marchv1.Problem) string {
	return Do(p, func(text string) string { return text })
}

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

// Log remembers when it first met each problem that has no time of its own. The zero
// value is ready to use. Methods are safe for concurrent use.
type Log struct {
	mu struct {
		sync.Mutex
		first map[id]time.Time
	}
}

// Note adds times to a list of all problems, and forgets problems that are not in
// it.
func (l *Log) Note(all []*marchv1.Problem, now time.Time) []*marchv1.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	there := make(map[id]bool, len(all))
	for _, p := range all {
		there[idOf(p)] = true
	}
	maps.DeleteFunc(l.mu.first, func(known id, _ time.Time) bool { return !there[known] })
	l.fill(all, now)
	return all
}

// Fill adds times to a list of some problems.
func (l *Log) Fill(some []*marchv1.Problem, now time.Time) []*marchv1.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fill(some, now)
	return some
}

// fill gives problems a time. The lock is held.
func (l *Log) fill(list []*marchv1.Problem, now time.Time) {
	if l.mu.first == nil {
		l.mu.first = make(map[id]time.Time)
	}
	for _, p := range list {
		at := now
		switch {
		case p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_MORE || p.GetSince() != nil && !met(p):
			continue
		case p.GetSince() != nil:
			at = p.GetSince().AsTime()
		}
		first, ok := l.mu.first[idOf(p)]
		if !ok || at.Before(first) {
			first = at
			l.mu.first[idOf(p)] = at
		}
		p.Since = Stamp(first)
	}
}

// met reports whether a problem's time is when a process first met it. Of several such
// times the earliest is shown.
func met(p *marchv1.Problem) bool {
	switch p.GetKind() {
	case marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE, marchv1.ProblemKind_PROBLEM_KIND_UNUSABLE,
		marchv1.ProblemKind_PROBLEM_KIND_NO_RANGE:
		return true
	}
	return false
}

// Changes logs which problems begin and end. The zero value is ready to use. It is for one goroutine.
type Changes struct{ noted map[id]noted }

// noted is a problem of the list before. One that is there a second time has its line: not what only a start shows.
type noted struct {
	what   string
	logged bool
	gone   time.Time // zero while the problem is there
}

// over is how long a problem must be gone to be over: the log does not follow one that comes and goes.
const over = 10 * time.Second

// Write logs what changed since the list before, a line each with the remedy.
func (c *Changes) Write(log hclog.Logger, list []*marchv1.Problem, now time.Time) {
	if c.noted == nil {
		c.noted = make(map[id]noted)
	}
	present := make(map[id]bool, len(list))
	for _, p := range list {
		present[idOf(p)] = true
		n, again := c.noted[idOf(p)]
		if again && !n.logged {
			log.Warn("a problem began", "kind", api.Word(p.GetKind()), "what", p.GetWhat(),
				"since", at(p.GetSince()), "remedy", Plain(p))
		}
		c.noted[idOf(p)] = noted{what: p.GetWhat(), logged: again}
	}
	for key, n := range c.noted {
		switch {
		case present[key]:
		case !n.logged:
			delete(c.noted, key)
		case n.gone.IsZero():
			n.gone = now
			c.noted[key] = n
		case now.Sub(n.gone) >= over:
			delete(c.noted, key)
			log.Info("a problem is over", "kind", api.Word(key.kind), "what", n.what)
		}
	}
}

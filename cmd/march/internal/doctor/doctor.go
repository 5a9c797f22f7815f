// Package doctor judges how a cluster does: the list of its problems, and what its
// processes, their hosts and etcd tell of themselves. Each finding says what to do.
package doctor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/problem"
)

// Level is how bad a finding is.
type Level string

// The levels. A Warning stops nothing now. Unknown is what could not be asked.
const (
	OK      Level = "ok"
	Unknown Level = "unknown"
	Warning Level = "warning"
	Failed  Level = "failed"
)

// Finding is the outcome of one check.
type Finding struct {
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	What    string `json:"what"`
	Remedy  string `json:"remedy,omitempty"`
	Command string `json:"command,omitempty"`
}

// finding returns the finding of a row of the table of problems. params are as problem.New takes them.
func finding(check string, level Level, c problem.Case, of string, params ...any) Finding {
	p := problem.New(c, of, time.Time{}, params...)
	return Finding{check, level, p.GetWhat(), problem.About(p), p.GetCommand()}
}

// Answer is what a process told of itself.
type Answer struct {
	Process string // the instance, ROOM/NAME, or the console
	Sent    time.Time
	Took    time.Duration
	Got     *marchv1.DiagnoseResponse // nil where it did not answer
	Err     error
}

// Facts are what the findings are about.
type Facts struct {
	Overview  *marchv1.GetOverviewResponse
	Instances []*marchv1.Instance
	Answers   []Answer
	Tags      []*marchv1.TagSummary // those that have used most, and those that end first
	TagsTotal int64                 // how many tags there are
	TagsRead  bool                  // the console has read them all
	Shards    int64                 // how many shards callers have, by id mod Shards; 0 if that was not said

	// Why the console did not give them; nil if it did.
	OverviewErr, InstancesErr, TagsErr error
}

// The bounds, from which on a finding is a warning or a failure.
const (
	slowEtcd, stuckEtcd  = 100 * time.Millisecond, time.Second
	slowSync, stuckSync  = 100 * time.Millisecond, time.Second
	clockOff, clockWrong = 500 * time.Millisecond, 10 * time.Second
	leastFree            = 256 << 20 // bytes of a journal's disk
	mostHistory          = 2_000_000 // revisions that etcd keeps: consoles leave two hours
	certSoon, certNow    = 30 * 24 * time.Hour, 7 * 24 * time.Hour
	nearLimit, atLimit   = 0.8, 0.99 // of a tag's IDs
	endsSoon, endsNow    = 30 * 24 * time.Hour, 24 * time.Hour
)

// Examine returns the findings, the worst first.
func Examine(f Facts) []Finding {
	all := slices.Concat(f.problems(), f.unanswered(), f.etcd(), f.etcdClocks(), f.clocks(), f.certificates(),
		f.journals(), f.versions(), f.formats(), f.shards(), f.tags())
	slices.SortStableFunc(all, func(a, b Finding) int { return rank(b.Level) - rank(a.Level) })
	return all
}

func rank(l Level) int { return slices.Index([]Level{OK, Unknown, Warning, Failed}, l) }

// Wrong returns how many findings are warnings or failures.
func Wrong(all []Finding) (n int) {
	for _, f := range all {
		if rank(f.Level) >= rank(Warning) {
			n++
		}
	}
	return n
}

// problems takes over the list that `march status` and the pages show.
func (f Facts) problems() []Finding {
	if f.OverviewErr != nil {
		return []Finding{finding("problems", Failed, problem.Unknown, "", "why", f.OverviewErr)}
	}
	list := f.Overview.GetProblems()
	if len(list) == 0 {
		return []Finding{{Check: "problems", Level: OK, What: "the console lists no problem"}}
	}
	findings := make([]Finding, 0, len(list))
	for _, p := range list {
		level := Failed
		if problem.Warning(p.GetKind()) {
			level = Warning
		}
		what := p.GetWhat()
		if p.GetSince() != nil {
			what += ", since " + p.GetSince().AsTime().Format(time.RFC3339)
		}
		if p.GetUntil() != nil {
			what += ", until " + p.GetUntil().AsTime().Format(time.RFC3339)
		}
		findings = append(findings, Finding{"problems", level, what, problem.About(p), p.GetCommand()})
	}
	return findings
}

// lists reports whether the console lists a problem of a kind, and of one of some things if these are given: what the
// processes say of the same cause is no finding of its own.
func (f Facts) lists(kind marchv1.ProblemKind, of ...string) bool {
	return slices.ContainsFunc(f.Overview.GetProblems(), func(p *marchv1.Problem) bool {
		return p.GetKind() == kind && (len(of) == 0 || slices.Contains(of, p.GetOf()))
	})
}

// unanswered lists the processes that told nothing of themselves.
func (f Facts) unanswered() (list []Finding) {
	if f.InstancesErr != nil {
		list = append(list, finding("process", Unknown, problem.Unlisted, "", "why", f.InstancesErr))
	}
	for _, a := range f.Answers {
		if a.Got == nil {
			list = append(list, finding("process", Unknown, problem.Unasked, a.Process, "why", a.Err))
		}
	}
	return list
}

// answered returns the processes that told of themselves.
func (f Facts) answered() []Answer {
	return slices.DeleteFunc(slices.Clone(f.Answers), func(a Answer) bool { return a.Got == nil })
}

// versions compares the versions of all processes.
func (f Facts) versions() []Finding {
	of := make(map[string][]string)
	for _, a := range f.answered() {
		of[a.Got.GetBuild()] = append(of[a.Got.GetBuild()], a.Process)
	}
	if len(of) == 0 {
		return nil
	}
	names := make([]string, 0, len(of))
	for version, processes := range of {
		names = append(names, fmt.Sprintf("%s (%s)", version, some(processes)))
	}
	slices.Sort(names)
	if len(of) > 1 {
		return []Finding{finding("versions", Warning, problem.Versions, "", "count", len(of), "versions",
			strings.Join(names, ", "))}
	}
	return []Finding{{Check: "versions", Level: OK, What: "all processes run " + names[0]}}
}

// shards says which rooms do not reach all of the callers' shards.
func (f Facts) shards() (list []Finding) {
	layout, err := api.LayoutFromProto(f.Overview.GetLayout().GetLayout())
	if f.Shards == 0 || err != nil {
		return nil // a layout that is broken is a problem already
	}
	unreached, err := operator.Unreached(layout, f.Shards)
	if err != nil {
		return []Finding{finding("shards", Unknown, problem.Unknown, "", "why", err)}
	}
	for _, why := range unreached {
		list = append(list, finding("shards", Warning, problem.Shards, "", "why", why))
	}
	if list == nil {
		evenly := fmt.Sprintf("each room reaches all %d shards evenly", f.Shards)
		list = []Finding{{Check: "shards", Level: OK, What: evenly}}
	}
	return list
}

// formats says which stored formats are turned on, and whether newer ones may be.
func (f Facts) formats() []Finding {
	if f.Overview.GetLayout() == nil || len(f.Instances) == 0 {
		return nil
	}
	on, known := max(f.Overview.GetLayout().GetFormats(), 1), int32(math.MaxInt32)
	var behind, least []string
	for _, i := range f.Instances {
		name, knows := i.GetRoom()+"/"+i.GetName(), max(i.GetFormats(), 1)
		if i.GetUnreadable() != "" {
			continue // it is a problem already
		}
		if knows < on {
			behind = append(behind, name)
		}
		if knows < known {
			known, least = knows, nil
		}
		if knows == known {
			least = append(least, name)
		}
	}
	what := fmt.Sprintf("formats %d are turned on", on)
	switch {
	case len(behind) > 0:
		return []Finding{finding("formats", Failed, problem.FormatsBehind, some(behind), "on", on)}
	case known > on && len(least) > 0:
		return []Finding{finding("formats", OK, problem.FormatsNew, "", "on", on, "known", known)}
	case on < record.Formats && len(least) > 0:
		what += fmt.Sprintf("; %d can be turned on once %s has a newer version", record.Formats, some(least))
	}
	return []Finding{{Check: "formats", Level: OK, What: what}}
}

// tags lists the tags that are near their limit.
func (f Facts) tags() []Finding {
	var list []Finding
	for _, t := range f.Tags {
		if t.GetTag().GetTime() != nil { // its end is one of the cluster's problems
			continue
		}
		lasts, name := t.GetLasts(), t.GetTag().GetName()
		var level Level
		divided := t.GetTag().GetPeriod()
		switch ends := lasts != nil && divided == nil; { // a period ends by the calendar
		case t.GetUsed() >= atLimit || ends && lasts.AsDuration() < endsNow:
			level = Failed
		case t.GetUsed() >= nearLimit || ends && lasts.AsDuration() < endsSoon:
			level = Warning
		default:
			continue
		}
		if divided != nil {
			list = append(list, finding("tags", level, problem.PeriodNearLimit, name,
				"used", fmt.Sprintf("%.1f%%", 100*t.GetUsed()), "period", divided.GetCurrent(),
				"next", divided.GetEnds().AsTime().Format(time.RFC3339),
				"unit", strings.ToLower(strings.TrimPrefix(divided.GetUnit().String(), "PERIOD_UNIT_"))))
			continue
		}
		used := fmt.Sprintf("has used %.1f%% of its IDs", 100*t.GetUsed())
		if lasts != nil && lasts.AsDuration() <= 0 {
			used += ", and a room in use has none left"
		} else if lasts != nil {
			used += fmt.Sprintf(", and comes to its limit in %v at the present rate",
				lasts.AsDuration().Round(time.Second))
		}
		list = append(list, finding("tags", level, problem.TagNearLimit, name, "used", used))
	}
	if f.TagsErr != nil {
		return append(list, Finding{Check: "tags", Level: Unknown,
			What:   fmt.Sprintf("the console does not list the tags as they are now: %v", f.TagsErr),
			Remedy: problem.Table[problem.Unlisted].Remedy})
	}
	if f.OverviewErr != nil {
		return nil
	}
	if list == nil && !f.TagsRead && f.Overview.GetLayout() != nil {
		list = []Finding{finding("tags", Unknown, problem.TagsUnread, "")}
	}
	if list == nil {
		list = []Finding{{Check: "tags", Level: OK, What: fmt.Sprintf("no tag has used %.0f%% of its IDs, "+
			"or comes to its limit within %d days", 100*nearLimit, endsSoon/(24*time.Hour))}}
	}
	return list
}

// some names up to three of many.
func some(names []string) string {
	slices.Sort(names)
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

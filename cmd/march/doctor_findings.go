package main

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

// How bad a finding is. A warning stops nothing now. Unknown is what could not be asked.
const (
	levelOK      = "ok"
	levelUnknown = "unknown"
	levelWarning = "warning"
	levelFailed  = "failed"
)

// verdict is the outcome of one check, a finding.
type verdict struct {
	Check   string `json:"check"`
	Level   string `json:"level"`
	What    string `json:"what"`
	Remedy  string `json:"remedy,omitempty"`
	Command string `json:"command,omitempty"`
}

// judge returns the verdict of a row of the table of problems. params are as problem.New takes them.
func judge(check string, level string, c problem.Case, of string, params ...any) verdict {
	p := problem.New(c, of, time.Time{}, params...)
	return verdict{check, level, p.GetWhat(), problem.About(p), p.GetCommand()}
}

// processAnswer is what a process told of itself.
type processAnswer struct {
	Process string // the instance, ROOM/NAME, or the console
	Sent    time.Time
	Took    time.Duration
	Got     *marchv1.DiagnoseResponse // nil where it did not answer
	Err     error
}

// doctorFacts are what the findings are about.
type doctorFacts struct {
	Overview  *marchv1.GetOverviewResponse
	Instances []*marchv1.Instance
	Answers   []processAnswer
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

// examine returns the findings, the worst first.
func examine(f doctorFacts) []verdict {
	all := slices.Concat(f.problems(), f.unanswered(), f.etcd(), f.etcdClocks(), f.clocks(), f.certificates(),
		f.journals(), f.versions(), f.formats(), f.shards(), f.tags())
	slices.SortStableFunc(all, func(a, b verdict) int { return rankOf(b.Level) - rankOf(a.Level) })
	return all
}

func rankOf(l string) int {
	return slices.Index([]string{levelOK, levelUnknown, levelWarning, levelFailed}, l)
}

// wrongOf returns how many findings are warnings or failures.
func wrongOf(all []verdict) (n int) {
	for _, f := range all {
		if rankOf(f.Level) >= rankOf(levelWarning) {
			n++
		}
	}
	return n
}

// problems takes over the list that `march status` and the pages show.
func (f doctorFacts) problems() []verdict {
	if f.OverviewErr != nil {
		return []verdict{judge("problems", levelFailed, problem.Unknown, "", "why", f.OverviewErr)}
	}
	list := f.Overview.GetProblems()
	if len(list) == 0 {
		return []verdict{{Check: "problems", Level: levelOK, What: "the console lists no problem"}}
	}
	findings := make([]verdict, 0, len(list))
	for _, p := range list {
		level := levelFailed
		if problem.Warning(p.GetKind()) {
			level = levelWarning
		}
		what := p.GetWhat()
		if p.GetSince() != nil {
			what += ", since " + p.GetSince().AsTime().Format(time.RFC3339)
		}
		if p.GetUntil() != nil {
			what += ". " + problem.Until(p) + " " + p.GetUntil().AsTime().Format(time.RFC3339)
		}
		findings = append(findings, verdict{"problems", level, what, problem.About(p), p.GetCommand()})
	}
	return findings
}

// lists reports whether the console lists a problem of a kind and of a thing, or one that explains it: what processes
// say of the same cause is no finding of its own.
func (f doctorFacts) lists(kind marchv1.ProblemKind, of string) bool {
	return slices.ContainsFunc(f.Overview.GetProblems(), func(p *marchv1.Problem) bool {
		return p.GetKind() == kind && (p.GetOf() == of || of == "") || problem.Explains(p, kind, of)
	})
}

// unanswered lists the processes that told nothing of themselves.
func (f doctorFacts) unanswered() (list []verdict) {
	if f.InstancesErr != nil {
		list = append(list, judge("process", levelUnknown, problem.Unlisted, "", "why", f.InstancesErr))
	}
	for _, a := range f.Answers {
		if a.Got == nil {
			list = append(list, judge("process", levelUnknown, problem.Unasked, a.Process, "why", a.Err))
		}
	}
	return list
}

// answered returns the processes that told of themselves.
func (f doctorFacts) answered() []processAnswer {
	return slices.DeleteFunc(slices.Clone(f.Answers), func(a processAnswer) bool { return a.Got == nil })
}

// versions compares the versions of all processes.
func (f doctorFacts) versions() []verdict {
	of := make(map[string][]string)
	for _, a := range f.answered() {
		of[a.Got.GetBuild()] = append(of[a.Got.GetBuild()], a.Process)
	}
	if len(of) == 0 {
		return nil
	}
	names := make([]string, 0, len(of))
	for version, processes := range of {
		names = append(names, fmt.Sprintf("%s (%s)", version, someOf(processes)))
	}
	slices.Sort(names)
	if len(of) > 1 {
		return []verdict{judge("versions", levelWarning, problem.Versions, "", "count", len(of), "versions",
			strings.Join(names, ", "))}
	}
	return []verdict{{Check: "versions", Level: levelOK, What: "all processes run " + names[0]}}
}

// shards says which rooms do not reach all of the callers' shards.
func (f doctorFacts) shards() (list []verdict) {
	layout, err := api.LayoutFromProto(f.Overview.GetLayout().GetLayout())
	if f.Shards == 0 || err != nil {
		return nil // a layout that is broken is a problem already
	}
	unreached, err := operator.Unreached(layout, f.Shards)
	if err != nil {
		return []verdict{judge("shards", levelUnknown, problem.Unknown, "", "why", err)}
	}
	for _, why := range unreached {
		list = append(list, judge("shards", levelWarning, problem.Shards, "", "why", why))
	}
	if list == nil {
		evenly := fmt.Sprintf("each room reaches all %d shards evenly", f.Shards)
		list = []verdict{{Check: "shards", Level: levelOK, What: evenly}}
	}
	return list
}

// formats says which stored formats are turned on, and whether newer ones may be.
func (f doctorFacts) formats() []verdict {
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
		return []verdict{judge("formats", levelFailed, problem.FormatsBehind, someOf(behind), "on", on)}
	case known > on && len(least) > 0:
		return []verdict{judge("formats", levelOK, problem.FormatsNew, "", "on", on, "known", known)}
	case on < record.Formats && len(least) > 0:
		what += fmt.Sprintf("; %d can be turned on once %s has a newer version", record.Formats, someOf(least))
	}
	return []verdict{{Check: "formats", Level: levelOK, What: what}}
}

// tags lists the tags that are near their limit.
func (f doctorFacts) tags() []verdict {
	var list []verdict
	well := true
	for _, t := range f.Tags {
		lasts, name := t.GetLasts(), t.GetTag().GetName()
		if f.lists(marchv1.ProblemKind_PROBLEM_KIND_TAG_USED_UP, name) {
			well = false
			continue
		}
		if t.GetTag().GetTime() != nil { // its end is one of the cluster's problems
			continue
		}
		var level string
		divided := t.GetTag().GetPeriod()
		switch ends := lasts != nil && divided == nil; { // a period ends by the calendar
		case t.GetUsed() >= atLimit || ends && lasts.AsDuration() < endsNow:
			level = levelFailed
		case t.GetUsed() >= nearLimit || ends && lasts.AsDuration() < endsSoon:
			level = levelWarning
		default:
			continue
		}
		if divided != nil {
			list = append(list, judge("tags", level, problem.PeriodNearLimit, name,
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
		list = append(list, judge("tags", level, problem.TagNearLimit, name, "used", used))
	}
	if f.TagsErr != nil {
		return append(list, verdict{Check: "tags", Level: levelUnknown,
			What:   fmt.Sprintf("the console does not list the tags as they are now: %v", f.TagsErr),
			Remedy: problem.Table[problem.Unlisted].Remedy})
	}
	if f.OverviewErr != nil {
		return nil
	}
	if list == nil && !f.TagsRead && f.Overview.GetLayout() != nil {
		list = []verdict{judge("tags", levelUnknown, problem.TagsUnread, "")}
	}
	if list == nil && well {
		list = []verdict{{Check: "tags", Level: levelOK, What: fmt.Sprintf("no tag has used %.0f%% of its IDs, "+
			"or comes to its limit within %d days", 100*nearLimit, endsSoon/(24*time.Hour))}}
	}
	return list
}

// someOf names up to three of many.
func someOf(names []string) string {
	slices.Sort(names)
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

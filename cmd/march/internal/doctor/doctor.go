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
	marchv1 "github.com/march-id/march/api/march/v1"
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
		f.journals(), f.versions(), f.formats(), f.tags())
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
		return []Finding{{Check: "problems", Level: Failed, What: f.OverviewErr.Error(),
			Remedy: "First solve this: other checks need the answer."}}
	}
	list := f.Overview.GetProblems()
	if len(list) == 0 {
		return []Finding{{Check: "problems", Level: OK, What: "the console lists no problem"}}
	}
	findings := make([]Finding, 0, len(list))
	for _, p := range list {
		level := Failed
		switch p.GetKind() {
		case marchv1.ProblemKind_PROBLEM_KIND_ETCD_NEARLY_FULL, marchv1.ProblemKind_PROBLEM_KIND_TIME_ENDS,
			marchv1.ProblemKind_PROBLEM_KIND_WORKERS_USED, marchv1.ProblemKind_PROBLEM_KIND_MIGRATION_WAITS,
			marchv1.ProblemKind_PROBLEM_KIND_SILENT, marchv1.ProblemKind_PROBLEM_KIND_NO_ANSWER:
			level = Warning
		}
		what := p.GetWhat()
		if p.GetSince() != nil {
			what += ", since " + p.GetSince().AsTime().Format(time.RFC3339)
		}
		if p.GetUntil() != nil {
			what += ", until " + p.GetUntil().AsTime().Format(time.RFC3339)
		}
		findings = append(findings, Finding{"problems", level, what, p.GetRemedy(), p.GetCommand()})
	}
	return findings
}

// unanswered lists the processes that told nothing of themselves.
func (f Facts) unanswered() (list []Finding) {
	if f.InstancesErr != nil {
		list = append(list, Finding{
			Check: "process", Level: Unknown,
			What:   fmt.Sprintf("no instance was asked, as the console does not list them: %v", f.InstancesErr),
			Remedy: "First solve the problems that are listed.",
		})
	}
	for _, a := range f.Answers {
		if a.Got == nil {
			list = append(list, Finding{
				Check: "process", Level: Unknown,
				What:   fmt.Sprintf("%s was not asked for its clock, disk and etcd: %v", a.Process, a.Err),
				Remedy: "Run this command where the process can be reached, and see that it is of this version.",
			})
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
	finding := Finding{Check: "versions", Level: OK, What: "all processes run " + names[0]}
	if len(of) > 1 {
		finding.Level, finding.What = Warning, fmt.Sprintf("%d versions run: %s", len(of), strings.Join(names, ", "))
		finding.Remedy = "A version and the next one run beside each other: finish the upgrade, or go back."
	}
	return []Finding{finding}
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
		return []Finding{{"formats", Failed, fmt.Sprintf("%s, and %s does not know them: it leases nothing", what,
			some(behind)), "Upgrade it. There is no way back to its version.", "march instance list"}}
	case known > on && len(least) > 0:
		return []Finding{{"formats", OK, fmt.Sprintf("%s; all instances know %d, which can be turned on", what, known),
			"After that there is no way back to the version before.", "march cluster upgrade"}}
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
			list = append(list, Finding{
				"tags", level, fmt.Sprintf("tag %s has used %.1f%% of the IDs of the period %s", name,
					100*t.GetUsed(), divided.GetCurrent()),
				fmt.Sprintf("The next period begins at %s. If that is too late, create a tag with more digits, "+
					"and move the callers there.", divided.GetEnds().AsTime().Format(time.RFC3339)),
				fmt.Sprintf("march tag create TAG --period %s --period-digits DIGITS",
					strings.ToLower(strings.TrimPrefix(divided.GetUnit().String(), "PERIOD_UNIT_"))),
			})
			continue
		}
		what := fmt.Sprintf("tag %s has used %.1f%% of its IDs", name, 100*t.GetUsed())
		if lasts != nil {
			what += fmt.Sprintf(", and comes to its limit in %v at the present rate",
				lasts.AsDuration().Round(time.Second))
		}
		list = append(list, Finding{
			"tags", level, what, "Raise its limit if its callers take larger IDs, or move them to another tag.",
			"march tag update " + name + " --limit LIMIT",
		})
	}
	if f.TagsErr != nil {
		return append(list, Finding{
			Check: "tags", Level: Unknown,
			What:   fmt.Sprintf("the console does not list the tags as they are now: %v", f.TagsErr),
			Remedy: "First solve the problems that are listed.",
		})
	}
	if f.OverviewErr != nil {
		return nil
	}
	if list == nil && !f.TagsRead && f.Overview.GetLayout() != nil {
		list = []Finding{{Check: "tags", Level: Unknown, What: "the console reads all tags for the first time",
			Remedy: "Ask again when it has read them."}}
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

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/words"
)

func newDoctor(c *common) *cobra.Command {
	t := c.target()
	var shards int64
	cmd := command(callRow{
		use: "doctor", short: "Check the cluster, its hosts and etcd, and say what to do",
		long: `Check the cluster, its hosts and etcd, and say what to do: the problems that
'march status' and the pages list; etcd's version, size, history and latency, as
the console and each instance see it; the processes' clocks and versions; the
disks of the journals; and the tags that are near their limit. It asks the
console, and each instance at the address at which the others reach it.

Exit codes: 0 nothing is wrong, 1 something is (a warning, too), 2 wrong usage,
5 the console does not answer. A check whose server did not answer is "unknown", and
does not count. With -o json each finding has check, level (ok, unknown, warning, failed),
what, remedy and command.`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		facts, err := collect(cmd.Context(), t, &marchv1.DiagnoseRequest{})
		if err != nil {
			return err
		}
		if facts.Shards = shards; shards < 0 {
			return usagef("shards: %d; allowed: 1 or more, 0 for none", shards)
		}
		found := examine(facts)
		err = c.print(map[string]any{"findings": found}, func(w *tabwriter.Writer) {
			for _, f := range found {
				folded(w, fmt.Sprintf("%-8s %-16s ", f.Level, f.Check), f.What)
				if f.Remedy != "" {
					folded(w, strings.Repeat(" ", 26), f.Remedy)
				}
				if f.Command != "" {
					put(w, "%26s`%s`\n", "", f.Command)
				}
			}
		})
		if err != nil {
			return err
		}
		if n := wrongOf(found); n > 0 {
			return finding{refusedf("%s found", words.Counted(n, "problem"))}
		}
		return nil
	})
	cmd.Flags().Int64Var(&shards, "shards", 0, shardsHelp)
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

// collect asks a console and all instances. Each may take as long as the timeout says.
func collect(ctx context.Context, t *target, ask *marchv1.DiagnoseRequest) (facts doctorFacts, err error) {
	given, err := t.credentials()
	if err != nil {
		return facts, usageError{err}
	}
	link := *t
	link.timeout = 2*t.timeout + 2*time.Second // the console, then the instances; and etcd may be slow
	err = link.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		facts, err = collectFacts(ctx, conn, ask, t.timeout, func(address, room,
			name string) (*grpc.ClientConn, error) {
			return api.Dial(address, append(given.InstanceOptions(room, name), grpc.WithContextDialer(t.connect))...)
		})
		return err
	})
	return facts, err
}

const (
	// askedAtOnce is how many instances are asked at the same time.
	askedAtOnce = 16
	// maxDiagnosis bounds an answer, in bytes: one with profiles is large.
	maxDiagnosis = 64 << 20
)

// collectFacts asks a console for what it knows, and each process for what it tells of itself.
// ask says what they tell, and within bounds how long each instance may take. Its errors are
// those of the console's overview, but not that the console refuses to make one. dial connects to an instance.
func collectFacts(ctx context.Context, console grpc.ClientConnInterface, ask *marchv1.DiagnoseRequest,
	within time.Duration, dial dialInstance) (doctorFacts, error) {
	c := marchv1.NewConsoleServiceClient(console)
	var f doctorFacts
	var err error
	// A console without a cluster refuses, but etcd and the console can be judged.
	if f.Overview, err = freshOverview(ctx, c); allocator.KindOf(api.FromStatus(err)) == allocator.Refused {
		f.OverviewErr = api.FromStatus(err)
	} else if err != nil {
		return f, err
	}
	f.Answers = []processAnswer{askProcess(ctx, "the console", console, ask)}
	if f.Overview.GetLayout() == nil { // there is no cluster yet, or its layout is lost: the problems say which
		return f, nil
	}
	listed, err := c.ListInstances(ctx, &marchv1.ListInstancesRequest{Status: true})
	// While etcd is away, or refuses the console, the overview still has the problems.
	if err != nil {
		f.InstancesErr = err
	}
	f.Instances = listed.GetInstances()
	// Without etcd the console answers with the instances and tags as it read them before.
	// Instances can be asked all the same.
	if f.TagsErr = f.searchTags(ctx, c); f.TagsErr == nil {
		f.TagsErr = etcdAway(f.Overview)
	}
	if ctx.Err() != nil {
		return f, ctx.Err()
	}
	f.Answers = append(f.Answers, askInstances(ctx, f.Instances, ask, within, dial)...)
	return f, nil
}

// etcdAway returns why the console cannot read etcd, nil if it can.
func etcdAway(o *marchv1.GetOverviewResponse) error {
	for _, p := range o.GetProblems() {
		if p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY && p.GetOf() == "console" {
			return errors.New(p.GetWhat())
		}
	}
	return nil
}

// A console measures instances and reads tags only while it is asked. So a first answer may
// be old, or lack them: it is asked again, this often and this long.
const (
	againAfter  = 100 * time.Millisecond
	againWithin = 2500 * time.Millisecond
)

// askUntilFresh calls ask again until it reports true, or for againWithin.
func askUntilFresh(ctx context.Context, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, againWithin)
	defer cancel()
	for {
		done, err := ask()
		if done || err != nil || !store.Sleep(ctx, againAfter) { // what was answered has to do
			return err
		}
	}
}

// freshOverview returns an overview with the problems of instances, if the console has them in time.
func freshOverview(ctx context.Context, c marchv1.ConsoleServiceClient) (o *marchv1.GetOverviewResponse, err error) {
	err = askUntilFresh(ctx, func() (bool, error) {
		o, err = c.GetOverview(ctx, &marchv1.GetOverviewRequest{})
		return o.GetAsOf() != nil || o.GetLayout() == nil, err
	})
	return o, err
}

// searchTags takes the scarce tags as they are now.
func (f *doctorFacts) searchTags(ctx context.Context, c marchv1.ConsoleServiceClient) error {
	var before *timestamppb.Timestamp
	first := true
	err := askUntilFresh(ctx, func() (bool, error) {
		found, err := c.SearchTags(ctx, &marchv1.SearchTagsRequest{Sort: marchv1.TagSort_TAG_SORT_USED, PageSize: 1})
		if first {
			before, first = found.GetAsOf(), false
			return false, err
		}
		return found.GetAsOf() != nil && !proto.Equal(found.GetAsOf(), before), err
	})
	if err != nil {
		return err
	}
	tags, found, err := operator.ScarceTags(func(r *marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse, error) {
		return c.SearchTags(ctx, r)
	})
	f.Tags, f.TagsTotal, f.TagsRead = tags, found.GetTotal(), found.GetAsOf() != nil
	return err
}

// dialInstance returns a connection to an instance, which must prove that it is that one.
type dialInstance func(address, room, name string) (*grpc.ClientConn, error)

// askInstances asks all instances that are alive, or answered the console without heartbeats.
func askInstances(ctx context.Context, instances []*marchv1.Instance, ask *marchv1.DiagnoseRequest,
	within time.Duration, dial dialInstance) []processAnswer {
	alive := slices.DeleteFunc(slices.Clone(instances), func(i *marchv1.Instance) bool {
		return !i.GetAlive() && i.GetStatus() == nil
	})
	answers := make([]processAnswer, len(alive))
	var work errgroup.Group
	work.SetLimit(askedAtOnce)
	for k, i := range alive {
		work.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			process := i.GetRoom() + "/" + i.GetName()
			conn, err := dial(cmp.Or(i.GetAdminAddress(), i.GetAddress()), i.GetRoom(), i.GetName())
			if err != nil {
				answers[k] = processAnswer{Process: process, Err: err}
				return nil
			}
			defer func() { _ = conn.Close() }()
			answers[k] = askProcess(ctx, process, conn, ask)
			return nil
		})
	}
	_ = work.Wait()
	return answers
}

func askProcess(ctx context.Context, process string, conn grpc.ClientConnInterface,
	ask *marchv1.DiagnoseRequest) processAnswer {
	a := processAnswer{Process: process, Sent: time.Now()}
	a.Got, a.Err = marchv1.NewDiagnoseServiceClient(conn).Diagnose(ctx, ask, grpc.MaxCallRecvMsgSize(maxDiagnosis))
	a.Took = time.Since(a.Sent)
	if a.Err != nil {
		a.Got = nil
	}
	return a
}

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

// examination is an examination of facts.
type examination struct {
	doctorFacts
	found []verdict
}

// judge adds the verdict of a row of the table of problems. params are as problem.New takes them.
func (f *examination) judge(check, level string, row *problem.Row, of string, params ...any) *verdict {
	p := problem.New(row, of, time.Time{}, params...)
	f.found = append(f.found, verdict{check, level, p.GetWhat(), problem.About(p), p.GetCommand()})
	return &f.found[len(f.found)-1]
}

// ok adds that a check found nothing wrong, if it did not.
func (f *examination) ok(check, format string, args ...any) {
	if !f.says(check) {
		f.found = append(f.found, verdict{Check: check, Level: levelOK, What: fmt.Sprintf(format, args...)})
	}
}

// says reports whether there is a verdict of a check.
func (f *examination) says(check string) bool {
	return slices.ContainsFunc(f.found, func(v verdict) bool { return v.Check == check })
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
func examine(facts doctorFacts) []verdict {
	f := &examination{doctorFacts: facts}
	for _, check := range []func(){f.problems, f.unanswered, f.etcd, f.etcdClocks, f.clocks, f.certificates, f.journals,
		f.versions, f.formats, f.shards, f.tags} {
		check()
	}
	slices.SortStableFunc(f.found, func(a, b verdict) int { return rankOf(b.Level) - rankOf(a.Level) })
	return f.found
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
func (f *examination) problems() {
	if f.OverviewErr != nil {
		f.judge("problems", levelFailed, problem.Unknown, "", "why", f.OverviewErr)
	}
	for _, p := range f.Overview.GetProblems() {
		level := levelFailed
		if problem.Warning(p.GetKind()) {
			level = levelWarning
		}
		what := p.GetWhat()
		if p.GetSince() != nil {
			what += ", since " + cellText(p.GetSince())
		}
		if p.GetUntil() != nil {
			what += ". " + problem.Until(p) + " " + cellText(p.GetUntil())
		}
		f.found = append(f.found, verdict{"problems", level, what, problem.About(p), p.GetCommand()})
	}
	f.ok("problems", "the console lists no problem")
}

// lists reports whether the console lists a problem of a kind and of a thing, or one that explains it: what processes
// say of the same cause is no finding of its own.
func (f doctorFacts) lists(kind marchv1.ProblemKind, of string) bool {
	return slices.ContainsFunc(f.Overview.GetProblems(), func(p *marchv1.Problem) bool {
		return p.GetKind() == kind && (p.GetOf() == of || of == "") || problem.Explains(p, kind, of)
	})
}

// unanswered lists the processes that told nothing of themselves.
func (f *examination) unanswered() {
	if f.InstancesErr != nil {
		f.judge("process", levelUnknown, problem.Unlisted, "", "why", f.InstancesErr)
	}
	for _, a := range f.Answers {
		if a.Got == nil {
			f.judge("process", levelUnknown, problem.Unasked, a.Process, "why", a.Err)
		}
	}
}

// answered returns the processes that told of themselves.
func (f doctorFacts) answered() []processAnswer {
	return slices.DeleteFunc(slices.Clone(f.Answers), func(a processAnswer) bool { return a.Got == nil })
}

// versions compares the versions of all processes.
func (f *examination) versions() {
	of := make(map[string][]string)
	for _, a := range f.answered() {
		of[a.Got.GetBuild()] = append(of[a.Got.GetBuild()], a.Process)
	}
	var names []string
	for _, version := range sortedKeys(of) {
		names = append(names, fmt.Sprintf("%s (%s)", version, someOf(of[version])))
	}
	if len(names) > 1 {
		f.judge("versions", levelWarning, problem.Versions, "", "count", len(of), "versions", strings.Join(names, ", "))
	} else if len(names) == 1 {
		f.ok("versions", "all processes run %s", names[0])
	}
}

// shards says which rooms do not reach all of the callers' shards.
func (f *examination) shards() {
	layout, err := api.LayoutFromProto(f.Overview.GetLayout().GetLayout())
	if f.Shards == 0 || err != nil {
		return // a layout that is broken is a problem already
	}
	unreached, err := operator.Unreached(layout, f.Shards)
	if err != nil {
		f.judge("shards", levelUnknown, problem.Unknown, "", "why", err)
	}
	for _, why := range unreached {
		f.judge("shards", levelWarning, problem.Shards, "", "why", why)
	}
	f.ok("shards", "each room reaches all %d shards evenly", f.Shards)
}

// formats says which stored formats are turned on, and whether newer ones may be.
func (f *examination) formats() {
	if f.Overview.GetLayout() == nil || len(f.Instances) == 0 {
		return
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
	switch {
	case len(behind) > 0:
		f.judge("formats", levelFailed, problem.FormatsBehind, someOf(behind), "on", on)
	case known > on && len(least) > 0:
		f.judge("formats", levelOK, problem.FormatsNew, "", "on", on, "known", known)
	case on < record.Formats && len(least) > 0:
		f.ok("formats", "formats %d are turned on; %d can be turned on once %s has a newer version", on, record.Formats,
			someOf(least))
	default:
		f.ok("formats", "formats %d are turned on", on)
	}
}

// tags lists the tags that are near their limit.
func (f *examination) tags() {
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
		used := fmt.Sprintf("%.1f%%", 100*t.GetUsed())
		if divided != nil {
			f.judge("tags", level, problem.PeriodNearLimit, name, "used", used, "period", divided.GetCurrent(), "next",
				cellText(divided.GetEnds()), "unit", api.Word(divided.GetUnit()))
			continue
		}
		used = "has used " + used + " of its IDs"
		if lasts != nil && lasts.AsDuration() <= 0 {
			used += ", and a room in use has none left"
		} else if lasts != nil {
			used += fmt.Sprintf(", and comes to its limit in %v at the present rate",
				lasts.AsDuration().Round(time.Second))
		}
		f.judge("tags", level, problem.TagNearLimit, name, "used", used)
	}
	switch {
	case f.TagsErr != nil:
		f.found = append(f.found, verdict{Check: "tags", Level: levelUnknown,
			What:   fmt.Sprintf("the console does not list the tags as they are now: %v", f.TagsErr),
			Remedy: problem.Unlisted.Remedy})
	case f.OverviewErr != nil || f.says("tags"):
	case !f.TagsRead && f.Overview.GetLayout() != nil:
		f.judge("tags", levelUnknown, problem.TagsUnread, "")
	case well:
		f.ok("tags", "no tag has used %.0f%% of its IDs, or comes to its limit within %d days", 100*nearLimit,
			endsSoon/(24*time.Hour))
	}
}

// someOf names up to three of many.
func someOf(names []string) string {
	slices.Sort(names)
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}

// etcd judges what each process sees of etcd.
func (f *examination) etcd() {
	versions := make(map[string][]string)
	var last, away *marchv1.EtcdStatus
	var slowest time.Duration
	all := true                // whether etcd answers all processes
	var without, slow []string // the processes that etcd does not answer, and that it answers late
	for _, a := range f.answered() {
		e := a.Got.GetEtcd()
		if e.GetError() != "" {
			all = false
			if kind := marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY; !f.lists(kind, "") && !f.lists(kind, a.Process) {
				without, away = append(without, a.Process), e
			}
			continue
		}
		versions[e.GetVersion()] = append(versions[e.GetVersion()], a.Process)
		if e.GetRevision() >= last.GetRevision() {
			last = e
		}
		took := e.GetLatency().AsDuration()
		if slowest = max(slowest, took); levelOf(took, slowEtcd, stuckEtcd) != levelOK {
			slow = append(slow, a.Process)
		}
	}
	if without != nil {
		names := someOf(without)
		f.judge("etcd", levelFailed, problem.EtcdAway, names, "names", names, "members", away.GetError(), "effect", "",
			"etcdctl", etcdctlOf(away))
	}
	if slow != nil {
		f.judge("etcd latency", levelOf(slowest, slowEtcd, stuckEtcd), problem.EtcdSlow, someOf(slow), "took",
			slowest.Round(time.Millisecond), "slow", slowEtcd, "etcdctl", etcdctlOf(last))
	}
	if last == nil {
		return
	}
	if len(versions) > 1 {
		f.judge("etcd version", levelWarning, problem.EtcdVersions, "", "versions", someOf(sortedKeys(versions)),
			"etcdctl", etcdctlOf(last))
	} else if err := store.CheckVersion(last.GetVersion()); err != nil {
		f.judge("etcd version", levelFailed, problem.EtcdOld, "", "why", err)
	}
	f.ok("etcd version", "etcd is %s", last.GetVersion())
	// That it is full, or nearly, is one of the cluster's problems, too.
	switch size, quota := last.GetSize()>>20, last.GetQuota()>>20; {
	case f.lists(marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL, ""):
	case last.GetNoSpace():
		f.judge("etcd quota", levelFailed, problem.EtcdFull, "", "revision", last.GetRevision(), "etcdctl",
			etcdctlOf(last)).What += fmt.Sprintf("; it has %d of %d MiB, and its alarm NOSPACE is raised", size, quota)
	case quota == 0:
		f.judge("etcd quota", levelUnknown, problem.EtcdNoQuota, "", "size", size)
	default:
		f.ok("etcd quota", "etcd has %d MiB of the %d MiB that it may have", size, quota)
	}
	kept := last.GetRevision() - last.GetCompacted()
	if kept > mostHistory {
		f.judge("etcd compaction", levelWarning, problem.EtcdHistory, "", "kept", kept, "most", mostHistory,
			"revision", last.GetRevision()-mostHistory/20, "etcdctl", etcdctlOf(last))
	}
	f.ok("etcd compaction", "etcd keeps the history of %d revisions", kept)
	if all && slowest > 0 && slowest < slowEtcd {
		f.ok("etcd latency", "etcd answers every process within %v", slowest.Round(time.Microsecond))
	}
}

// etcdClocks compares the clock of etcd, as each process measured it, with the process's own.
func (f *examination) etcdClocks() {
	type group struct {
		processes []string
		most      time.Duration // the largest difference
	}
	off := make(map[string]*group)
	var unknown *processAnswer
	known := 0
	for _, a := range f.answered() {
		e := a.Got.GetEtcd()
		switch {
		case e.GetError() != "": // a finding of its own says so
		case e.GetClockAhead() == nil:
			unknown = cmp.Or(unknown, &a)
		default:
			known++
			ahead := e.GetClockAhead().AsDuration()
			side := sideOf(ahead)
			if levelOf(ahead.Abs()-e.GetClockUnsure().AsDuration(), clockOff, clockWrong) == levelOK {
				continue
			}
			if off[side] == nil {
				off[side] = &group{}
			}
			off[side].processes = append(off[side].processes, a.Process)
			off[side].most = max(off[side].most, ahead.Abs())
		}
	}
	for _, side := range sortedKeys(off) {
		g := off[side]
		// Nothing that March promises depends on it, so it is never a failure.
		f.judge("etcd clock", levelWarning, problem.EtcdClock, someOf(g.processes), "off",
			fmt.Sprintf("%v %s", g.most.Round(time.Second), side))
	}
	if known > 0 {
		f.ok("etcd clock", "etcd's clock agrees with those of %d processes, as far as whole seconds tell", known)
	}
	if unknown != nil {
		f.judge("etcd clock", levelUnknown, problem.EtcdClockUnknown, unknown.Process, "why",
			cmp.Or(unknown.Got.GetEtcd().GetClockError(), "the process is of an older version"))
	}
}

// sideOf says on which side of another clock one is.
func sideOf(ahead time.Duration) string {
	if ahead < 0 {
		return "behind"
	}
	return "ahead of"
}

// levelOf returns the level of something that took so long.
func levelOf(took, slow, stuck time.Duration) string {
	switch {
	case took >= stuck:
		return levelFailed
	case took >= slow:
		return levelWarning
	}
	return levelOK
}

// clocks compares the processes' clocks with their median. How long an answer was on its way is unknown, so a clock is
// off only by what that cannot explain: process and command read their clocks at the same moment within Took.
func (f *examination) clocks() {
	ahead := func(a processAnswer) time.Duration { return a.Got.GetClock().AsTime().Sub(a.Sent.Add(a.Took)) }
	all := slices.DeleteFunc(f.answered(), func(a processAnswer) bool { return a.Got.GetClock() == nil })
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(a, b processAnswer) int { return cmp.Compare(ahead(a), ahead(b)) })
	median, agree := ahead(all[len(all)/2]), true
	for _, a := range all {
		off := ahead(a) - median
		level := levelOf(off.Abs()-a.Took, clockOff, clockWrong)
		if level == levelOK {
			continue
		}
		if agree = false; !f.lists(marchv1.ProblemKind_PROBLEM_KIND_CLOCK, a.Process) {
			f.judge("clocks", level, problem.Clock, a.Process, "off",
				fmt.Sprintf("%v %s", off.Abs().Round(time.Millisecond), sideOf(off)))
		}
	}
	if agree {
		f.ok("clocks", "%d clocks agree within %v", len(all), clockOff)
	}
}

// certificates tells when the certificates of the processes end.
func (f *examination) certificates() {
	n, first := 0, time.Duration(0)
	for _, a := range f.answered() {
		for _, c := range a.Got.GetCertificates() {
			of := fmt.Sprintf("%s (--%s of %s)", c.GetPath(), c.GetSetting(), a.Process)
			if c.GetError() != "" {
				f.judge("certificates", levelFailed, problem.CertificateUnread, of, "why", c.GetError())
				continue
			}
			left := c.GetEnds().AsTime().Sub(a.Got.GetClock().AsTime())
			if n++; n == 1 || left < first {
				first = left
			}
			level, ends := levelFailed, fmt.Sprintf("ends in %d days", int64(left/(24*time.Hour)))
			switch {
			case 0 < left && left < 48*time.Hour:
				ends = fmt.Sprintf("ends in %d hours", int64(left/time.Hour))
			case left <= 0:
				ends = "ended at " + cellText(c.GetEnds())
			case left >= certSoon:
				continue
			case left >= certNow:
				level = levelWarning
			}
			f.judge("certificates", level, problem.CertificateEnds, of, "ends", ends, "subject", c.GetSubject(), "path",
				c.GetPath())
		}
	}
	if n > 0 {
		f.ok("certificates", "the first of %d certificates ends in %d days", n, int64(first/(24*time.Hour)))
	}
}

// journals judges the disks of the journals.
func (f *examination) journals() {
	n, slowest := 0, time.Duration(0)
	for _, a := range f.answered() {
		j := a.Got.GetJournal()
		if j == nil {
			continue
		}
		n++
		took := j.GetSync().AsDuration()
		slowest = max(slowest, took)
		if level := levelOf(took, slowSync, stuckSync); j.GetError() != "" {
			f.judge("journal", levelFailed, problem.JournalUnwritable, a.Process, "path", j.GetPath(), "why",
				j.GetError())
		} else if level != levelOK {
			f.judge("journal", level, problem.JournalSlow, a.Process, "took", took.Round(time.Microsecond), "slow",
				slowSync, "path", j.GetPath())
		}
		if j.Free != nil && j.GetFree() < leastFree {
			f.judge("journal", levelWarning, problem.JournalNearlyFull, a.Process, "free", j.GetFree()>>20,
				"least", leastFree>>20, "path", j.GetPath())
		}
	}
	if n > 0 {
		f.ok("journal", "the disks of %d journals have room, and sync within %v", n, slowest.Round(time.Microsecond))
	}
}

// etcdctlOf returns the command that asks a process's etcd. A process of an earlier version names none.
func etcdctlOf(e *marchv1.EtcdStatus) string { return cmp.Or(e.GetEtcdctl(), "etcdctl") }

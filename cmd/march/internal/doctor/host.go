package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// etcd judges what each process sees of etcd.
func (f Facts) etcd() []Finding {
	var list []Finding
	versions := make(map[string][]string)
	var last, away *marchv1.EtcdStatus
	var slowest time.Duration
	var without, slow []string // the processes that etcd does not answer, and that it answers late
	for _, a := range f.answered() {
		e := a.Got.GetEtcd()
		if e.GetError() != "" {
			without, away = append(without, a.Process), e
			continue
		}
		versions[e.GetVersion()] = append(versions[e.GetVersion()], a.Process)
		if e.GetRevision() >= last.GetRevision() {
			last = e
		}
		took := e.GetLatency().AsDuration()
		slowest = max(slowest, took)
		if above(took, slowEtcd, stuckEtcd) != OK {
			slow = append(slow, a.Process)
		}
	}
	if without != nil && !f.lists(marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY) {
		names := some(without)
		list = append(list, finding("etcd", Failed, problem.EtcdAway, names, "names", names, "members",
			away.GetError(), "effect", "", "etcdctl", etcdctl(away)))
	}
	if slow != nil {
		list = append(list, finding("etcd latency", above(slowest, slowEtcd, stuckEtcd), problem.EtcdSlow, some(slow),
			"took", slowest.Round(time.Millisecond), "slow", slowEtcd, "etcdctl", etcdctl(last)))
	}
	if last == nil {
		return list
	}
	if len(versions) > 1 {
		names := slices.Collect(maps.Keys(versions))
		list = append(list, finding("etcd version", Warning, problem.EtcdVersions, "", "versions", some(names),
			"etcdctl",
			etcdctl(last)))
	} else if err := store.CheckVersion(last.GetVersion()); err != nil {
		list = append(list, finding("etcd version", Failed, problem.EtcdOld, "", "why", err))
	} else {
		list = append(list, Finding{Check: "etcd version", Level: OK, What: "etcd is " + last.GetVersion()})
	}
	if !f.lists(marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL) {
		list = append(list, quota(last))
	}
	list = append(list, history(last))
	if slowest > 0 && slowest < slowEtcd {
		list = append(list, Finding{Check: "etcd latency", Level: OK,
			What: fmt.Sprintf("etcd answers every process within %v", slowest.Round(time.Microsecond))})
	}
	return list
}

// quota tells how full etcd is. That it is nearly full is one of the cluster's problems.
func quota(e *marchv1.EtcdStatus) Finding {
	if e.GetNoSpace() {
		full := finding("etcd quota", Failed, problem.EtcdFull, "", "etcdctl", etcdctl(e))
		full.What += fmt.Sprintf("; it has %d of %d MiB, and its alarm NOSPACE is raised", e.GetSize()>>20,
			e.GetQuota()>>20)
		return full
	}
	if e.GetQuota() == 0 {
		return finding("etcd quota", Unknown, problem.EtcdNoQuota, "", "size", e.GetSize()>>20)
	}
	return Finding{
		Check: "etcd quota", Level: OK,
		What: fmt.Sprintf("etcd has %d MiB of the %d MiB that it may have", e.GetSize()>>20, e.GetQuota()>>20),
	}
}

// history tells whether etcd forgets its history.
func history(e *marchv1.EtcdStatus) Finding {
	kept := e.GetRevision() - e.GetCompacted()
	if kept > mostHistory {
		return finding("etcd compaction", Warning, problem.EtcdHistory, "", "kept", kept, "most", mostHistory,
			"revision", e.GetRevision()-mostHistory/20, "etcdctl", etcdctl(e))
	}
	return Finding{Check: "etcd compaction", Level: OK,
		What: fmt.Sprintf("etcd keeps the history of %d revisions", kept)}
}

// etcdClocks compares the clock of etcd, as each process measured it, with the process's own.
func (f Facts) etcdClocks() []Finding {
	type group struct {
		processes []string
		most      time.Duration // the largest difference
	}
	off := make(map[string]*group)
	var list, unknown []Finding
	known := 0
	for _, a := range f.answered() {
		e := a.Got.GetEtcd()
		switch {
		case e.GetError() != "": // a finding of its own says so
		case e.GetClockAhead() == nil && unknown == nil:
			why := cmp.Or(e.GetClockError(), "the process is of an older version")
			unknown = []Finding{finding("etcd clock", Unknown, problem.EtcdClockUnknown, a.Process, "why", why)}
		case e.GetClockAhead() != nil:
			known++
			ahead := e.GetClockAhead().AsDuration()
			side := "ahead of"
			if ahead < 0 {
				side = "behind"
			}
			if above(ahead.Abs()-e.GetClockUnsure().AsDuration(), clockOff, clockWrong) == OK {
				continue
			}
			if off[side] == nil {
				off[side] = &group{}
			}
			off[side].processes, off[side].most = append(off[side].processes, a.Process),
				max(off[side].most, ahead.Abs())
		}
	}
	for _, side := range slices.Sorted(maps.Keys(off)) {
		g := off[side]
		// Nothing that March promises depends on it, so it is never a failure.
		list = append(list, finding("etcd clock", Warning, problem.EtcdClock, some(g.processes), "off",
			fmt.Sprintf("%v %s", g.most.Round(time.Second), side)))
	}
	if list == nil && known > 0 {
		list = []Finding{{Check: "etcd clock", Level: OK,
			What: fmt.Sprintf("etcd's clock agrees with those of %d processes, as far as whole seconds tell", known)}}
	}
	return append(list, unknown...)
}

// above returns the level of something that took so long.
func above(took, slow, stuck time.Duration) Level {
	switch {
	case took >= stuck:
		return Failed
	case took >= slow:
		return Warning
	}
	return OK
}

// clocks compares the processes' clocks with their median. How long an answer was on its way
// is unknown, so a clock is off only by what that cannot explain.
func (f Facts) clocks() []Finding {
	type clock struct {
		process     string
		off, unsure time.Duration
	}
	var all []clock
	for _, a := range f.answered() {
		if a.Got.GetClock() != nil {
			// Process and command read their clocks at the same moment within Took.
			all = append(all, clock{a.Process, a.Got.GetClock().AsTime().Sub(a.Sent.Add(a.Took)), a.Took})
		}
	}
	if len(all) == 0 {
		return nil
	}
	offsets := make([]time.Duration, 0, len(all))
	for _, c := range all {
		offsets = append(offsets, c.off)
	}
	slices.Sort(offsets)
	median := offsets[len(offsets)/2]
	var list []Finding
	for _, c := range all {
		off := (c.off - median).Abs()
		level := above(off-c.unsure, clockOff, clockWrong)
		if level == OK || f.lists(marchv1.ProblemKind_PROBLEM_KIND_CLOCK, c.process) {
			continue
		}
		side := "ahead of"
		if c.off < median {
			side = "behind"
		}
		list = append(list, finding("clocks", level, problem.Clock, c.process, "off",
			fmt.Sprintf("%v %s", off.Round(time.Millisecond), side)))
	}
	if list == nil {
		list = []Finding{{Check: "clocks", Level: OK,
			What: fmt.Sprintf("%d clocks agree within %v", len(all), clockOff)}}
	}
	return list
}

// certificates tells when the certificates of the processes end.
func (f Facts) certificates() []Finding {
	var list []Finding
	n, first := 0, time.Duration(0)
	for _, a := range f.answered() {
		for _, c := range a.Got.GetCertificates() {
			of := fmt.Sprintf("%s (--%s of %s)", c.GetPath(), c.GetSetting(), a.Process)
			if c.GetError() != "" {
				list = append(list, finding("certificates", Failed, problem.CertificateUnread, of, "why", c.GetError()))
				continue
			}
			left := c.GetEnds().AsTime().Sub(a.Got.GetClock().AsTime())
			if n++; n == 1 || left < first {
				first = left
			}
			level, ends := OK, fmt.Sprintf("ends in %d days", int64(left/(24*time.Hour)))
			switch {
			case left <= 0:
				level, ends = Failed, "ended at "+c.GetEnds().AsTime().Format(time.RFC3339)
			case left < certNow:
				level = Failed
			case left < certSoon:
				level = Warning
			}
			if level != OK {
				list = append(list, finding("certificates", level, problem.CertificateEnds, of, "ends", ends, "subject",
					c.GetSubject(), "path", c.GetPath()))
			}
		}
	}
	if list == nil && n > 0 {
		list = []Finding{{Check: "certificates", Level: OK,
			What: fmt.Sprintf("the first of %d certificates ends in %d days", n, int64(first/(24*time.Hour)))}}
	}
	return list
}

// journals judges the disks of the journals.
func (f Facts) journals() []Finding {
	var list []Finding
	n, slowest := 0, time.Duration(0)
	for _, a := range f.answered() {
		j := a.Got.GetJournal()
		if j == nil {
			continue
		}
		n++
		took := j.GetSync().AsDuration()
		slowest = max(slowest, took)
		level := above(took, slowSync, stuckSync)
		switch {
		case j.GetError() != "":
			list = append(list, finding("journal", Failed, problem.JournalUnwritable, a.Process, "path", j.GetPath(),
				"why",
				j.GetError()))
		case level != OK:
			list = append(list, finding("journal", level, problem.JournalSlow, a.Process, "took",
				took.Round(time.Microsecond), "slow", slowSync, "path", j.GetPath()))
		}
		if j.Free != nil && j.GetFree() < leastFree {
			list = append(list, finding("journal", Warning, problem.JournalNearlyFull, a.Process, "free",
				j.GetFree()>>20,
				"least", leastFree>>20, "path", j.GetPath()))
		}
	}
	if list == nil && n > 0 {
		list = []Finding{{Check: "journal", Level: OK, What: fmt.Sprintf("the disks of %d journals have room, "+
			"and sync within %v", n, slowest.Round(time.Microsecond))}}
	}
	return list
}

// etcdctl returns the command that asks a process's etcd. A process of an earlier version names none.
func etcdctl(e *marchv1.EtcdStatus) string { return cmp.Or(e.GetEtcdctl(), "etcdctl") }

package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// etcd judges what each process sees of etcd.
func (f doctorFacts) etcd() []verdict {
	var list []verdict
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
		slowest = max(slowest, took)
		if levelOf(took, slowEtcd, stuckEtcd) != levelOK {
			slow = append(slow, a.Process)
		}
	}
	if without != nil {
		names := someOf(without)
		list = append(list, judge("etcd", levelFailed, problem.EtcdAway, names, "names", names, "members",
			away.GetError(), "effect", "", "etcdctl", etcdctlOf(away)))
	}
	if slow != nil {
		list = append(list, judge("etcd latency", levelOf(slowest, slowEtcd, stuckEtcd), problem.EtcdSlow,
			someOf(slow), "took", slowest.Round(time.Millisecond), "slow", slowEtcd, "etcdctl", etcdctlOf(last)))
	}
	if last == nil {
		return list
	}
	if len(versions) > 1 {
		names := sortedKeys(versions)
		list = append(list, judge("etcd version", levelWarning, problem.EtcdVersions, "", "versions", someOf(names),
			"etcdctl",
			etcdctlOf(last)))
	} else if err := store.CheckVersion(last.GetVersion()); err != nil {
		list = append(list, judge("etcd version", levelFailed, problem.EtcdOld, "", "why", err))
	} else {
		list = append(list, verdict{Check: "etcd version", Level: levelOK, What: "etcd is " + last.GetVersion()})
	}
	if !f.lists(marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL, "") {
		list = append(list, etcdQuota(last))
	}
	list = append(list, etcdHistory(last))
	if all && slowest > 0 && slowest < slowEtcd {
		list = append(list, verdict{Check: "etcd latency", Level: levelOK,
			What: fmt.Sprintf("etcd answers every process within %v", slowest.Round(time.Microsecond))})
	}
	return list
}

// etcdQuota tells how full etcd is. That it is nearly full is one of the cluster's problems.
func etcdQuota(e *marchv1.EtcdStatus) verdict {
	if e.GetNoSpace() {
		full := judge("etcd quota", levelFailed, problem.EtcdFull, "", "revision", e.GetRevision(),
			"etcdctl", etcdctlOf(e))
		full.What += fmt.Sprintf("; it has %d of %d MiB, and its alarm NOSPACE is raised", e.GetSize()>>20,
			e.GetQuota()>>20)
		return full
	}
	if e.GetQuota() == 0 {
		return judge("etcd quota", levelUnknown, problem.EtcdNoQuota, "", "size", e.GetSize()>>20)
	}
	return verdict{
		Check: "etcd quota", Level: levelOK,
		What: fmt.Sprintf("etcd has %d MiB of the %d MiB that it may have", e.GetSize()>>20, e.GetQuota()>>20),
	}
}

// etcdHistory tells whether etcd forgets its history.
func etcdHistory(e *marchv1.EtcdStatus) verdict {
	kept := e.GetRevision() - e.GetCompacted()
	if kept > mostHistory {
		return judge("etcd compaction", levelWarning, problem.EtcdHistory, "", "kept", kept, "most", mostHistory,
			"revision", e.GetRevision()-mostHistory/20, "etcdctl", etcdctlOf(e))
	}
	return verdict{Check: "etcd compaction", Level: levelOK,
		What: fmt.Sprintf("etcd keeps the history of %d revisions", kept)}
}

// etcdClocks compares the clock of etcd, as each process measured it, with the process's own.
func (f doctorFacts) etcdClocks() []verdict {
	type group struct {
		processes []string
		most      time.Duration // the largest difference
	}
	off := make(map[string]*group)
	var list, unknown []verdict
	known := 0
	for _, a := range f.answered() {
		e := a.Got.GetEtcd()
		switch {
		case e.GetError() != "": // a finding of its own says so
		case e.GetClockAhead() == nil && unknown == nil:
			why := cmp.Or(e.GetClockError(), "the process is of an older version")
			unknown = []verdict{judge("etcd clock", levelUnknown, problem.EtcdClockUnknown, a.Process, "why", why)}
		case e.GetClockAhead() != nil:
			known++
			ahead := e.GetClockAhead().AsDuration()
			side := "ahead of"
			if ahead < 0 {
				side = "behind"
			}
			if levelOf(ahead.Abs()-e.GetClockUnsure().AsDuration(), clockOff, clockWrong) == levelOK {
				continue
			}
			if off[side] == nil {
				off[side] = &group{}
			}
			off[side].processes, off[side].most = append(off[side].processes, a.Process),
				max(off[side].most, ahead.Abs())
		}
	}
	for _, side := range sortedKeys(off) {
		g := off[side]
		// Nothing that March promises depends on it, so it is never a failure.
		list = append(list, judge("etcd clock", levelWarning, problem.EtcdClock, someOf(g.processes), "off",
			fmt.Sprintf("%v %s", g.most.Round(time.Second), side)))
	}
	if list == nil && known > 0 {
		list = []verdict{{Check: "etcd clock", Level: levelOK,
			What: fmt.Sprintf("etcd's clock agrees with those of %d processes, as far as whole seconds tell", known)}}
	}
	return append(list, unknown...)
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

// clocks compares the processes' clocks with their median. How long an answer was on its way
// is unknown, so a clock is off only by what that cannot explain.
func (f doctorFacts) clocks() []verdict {
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
	var list []verdict
	agree := true
	for _, c := range all {
		off := (c.off - median).Abs()
		level := levelOf(off-c.unsure, clockOff, clockWrong)
		if level == levelOK {
			continue
		}
		if agree = false; f.lists(marchv1.ProblemKind_PROBLEM_KIND_CLOCK, c.process) {
			continue
		}
		side := "ahead of"
		if c.off < median {
			side = "behind"
		}
		list = append(list, judge("clocks", level, problem.Clock, c.process, "off",
			fmt.Sprintf("%v %s", off.Round(time.Millisecond), side)))
	}
	if agree {
		list = []verdict{{Check: "clocks", Level: levelOK,
			What: fmt.Sprintf("%d clocks agree within %v", len(all), clockOff)}}
	}
	return list
}

// certificates tells when the certificates of the processes end.
func (f doctorFacts) certificates() []verdict {
	var list []verdict
	n, first := 0, time.Duration(0)
	for _, a := range f.answered() {
		for _, c := range a.Got.GetCertificates() {
			of := fmt.Sprintf("%s (--%s of %s)", c.GetPath(), c.GetSetting(), a.Process)
			if c.GetError() != "" {
				list = append(list, judge("certificates", levelFailed, problem.CertificateUnread, of, "why",
					c.GetError()))
				continue
			}
			left := c.GetEnds().AsTime().Sub(a.Got.GetClock().AsTime())
			if n++; n == 1 || left < first {
				first = left
			}
			level, ends := levelOK, fmt.Sprintf("ends in %d days", int64(left/(24*time.Hour)))
			switch {
			case left <= 0:
				level, ends = levelFailed, "ended at "+c.GetEnds().AsTime().Format(time.RFC3339)
			case left < certNow:
				level = levelFailed
			case left < certSoon:
				level = levelWarning
			}
			if level != levelOK {
				list = append(list, judge("certificates", level, problem.CertificateEnds, of, "ends", ends, "subject",
					c.GetSubject(), "path", c.GetPath()))
			}
		}
	}
	if list == nil && n > 0 {
		list = []verdict{{Check: "certificates", Level: levelOK,
			What: fmt.Sprintf("the first of %d certificates ends in %d days", n, int64(first/(24*time.Hour)))}}
	}
	return list
}

// journals judges the disks of the journals.
func (f doctorFacts) journals() []verdict {
	var list []verdict
	n, slowest := 0, time.Duration(0)
	for _, a := range f.answered() {
		j := a.Got.GetJournal()
		if j == nil {
			continue
		}
		n++
		took := j.GetSync().AsDuration()
		slowest = max(slowest, took)
		level := levelOf(took, slowSync, stuckSync)
		switch {
		case j.GetError() != "":
			list = append(list, judge("journal", levelFailed, problem.JournalUnwritable, a.Process, "path", j.GetPath(),
				"why",
				j.GetError()))
		case level != levelOK:
			list = append(list, judge("journal", level, problem.JournalSlow, a.Process, "took",
				took.Round(time.Microsecond), "slow", slowSync, "path", j.GetPath()))
		}
		if j.Free != nil && j.GetFree() < leastFree {
			list = append(list, judge("journal", levelWarning, problem.JournalNearlyFull, a.Process, "free",
				j.GetFree()>>20,
				"least", leastFree>>20, "path", j.GetPath()))
		}
	}
	if list == nil && n > 0 {
		list = []verdict{{Check: "journal", Level: levelOK, What: fmt.Sprintf("the disks of %d journals have room, "+
			"and sync within %v", n, slowest.Round(time.Microsecond))}}
	}
	return list
}

// etcdctlOf returns the command that asks a process's etcd. A process of an earlier version names none.
func etcdctlOf(e *marchv1.EtcdStatus) string { return cmp.Or(e.GetEtcdctl(), "etcdctl") }

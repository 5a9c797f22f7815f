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
	var last *marchv1.EtcdStatus
	var slowest time.Duration
	for _, a := range f.answered() {
		e := a.Got.GetEtcd()
		if e.GetError() != "" {
			list = append(list, Finding{
				"etcd", Failed, fmt.Sprintf("etcd does not answer %s: %s", a.Process, e.GetError()),
				"Check the network from there to etcd, and etcd itself.", "etcdctl endpoint health --cluster",
			})
			continue
		}
		versions[e.GetVersion()] = append(versions[e.GetVersion()], a.Process)
		if e.GetRevision() >= last.GetRevision() {
			last = e
		}
		took := e.GetLatency().AsDuration()
		slowest = max(slowest, took)
		if level := above(took, slowEtcd, stuckEtcd); level != OK {
			list = append(list, Finding{
				"etcd latency", level, fmt.Sprintf("etcd took %v to answer %s; it should take less than %v",
					took.Round(time.Microsecond), a.Process, slowEtcd),
				"See etcd's disks (wal_fsync_duration_seconds) and the network between its members.",
				"etcdctl check perf",
			})
		}
	}
	if last == nil {
		return list
	}
	if len(versions) > 1 {
		names := slices.Collect(maps.Keys(versions))
		list = append(list, Finding{
			Check: "etcd version", Level: Warning, What: "etcd's members run different versions: " + some(names),
			Remedy: "Finish the upgrade of etcd, or go back.", Command: "etcdctl endpoint status --cluster",
		})
	} else if err := store.CheckVersion(last.GetVersion()); err != nil {
		list = append(list, Finding{Check: "etcd version", Level: Failed, What: err.Error(),
			Remedy: "Upgrade etcd, one member after the other."})
	} else {
		list = append(list, Finding{Check: "etcd version", Level: OK, What: "etcd is " + last.GetVersion()})
	}
	list = append(list, quota(last), history(last))
	if slowest > 0 && slowest < slowEtcd {
		list = append(list, Finding{Check: "etcd latency", Level: OK,
			What: fmt.Sprintf("etcd answers every process within %v", slowest.Round(time.Microsecond))})
	}
	return list
}

// quota tells how full etcd is. That it is nearly full is one of the cluster's problems.
func quota(e *marchv1.EtcdStatus) Finding {
	if e.GetNoSpace() {
		p := problem.EtcdFull(time.Time{})
		return Finding{
			"etcd quota", Failed, fmt.Sprintf("%s; it has %d of %d MiB, and its alarm NOSPACE is raised", p.GetWhat(),
				e.GetSize()>>20, e.GetQuota()>>20), p.GetRemedy(), p.GetCommand(),
		}
	}
	if e.GetQuota() == 0 {
		return Finding{
			Check: "etcd quota", Level: Unknown, What: fmt.Sprintf(
				"etcd has %d MiB, and does not say at how many it takes no more writes", e.GetSize()>>20),
			Remedy: "See its flag --quota-backend-bytes; 2 GiB is the default.",
		}
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
		return Finding{
			"etcd compaction", Warning, fmt.Sprintf("etcd keeps the history of %d revisions, "+
				"more than the %d of two busy hours", kept, mostHistory),
			"A console that runs for two hours compacts it. See the console's log, " +
				"or have etcd do it (--auto-compaction-retention).",
			fmt.Sprintf("etcdctl compact %d", e.GetRevision()-mostHistory/20),
		}
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
			unknown = []Finding{{
				Check: "etcd clock", Level: Unknown,
				What: fmt.Sprintf("etcd's clock is not known to %s: %s", a.Process, why),
				Remedy: "See that etcd answers HTTP at its client URLs (its flag " +
					"--listen-client-http-urls moves that " +
					"elsewhere), or look at its hosts' clocks yourself.", Command: "date --utc",
			}}
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
		list = append(list, Finding{
			// Nothing that March promises depends on it, so it is never a failure.
			"etcd clock", Warning, fmt.Sprintf("etcd's clock is %v %s that of %s", g.most.Round(time.Second),
				side, some(g.processes)),
			"Synchronize the hosts of etcd (chrony, ntpd). IDs do not depend on this clock, but etcd's certificates, " +
				"tokens and log do.", "chronyc tracking",
		})
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
		if level == OK {
			continue
		}
		side := "ahead of"
		if c.off < median {
			side = "behind"
		}
		list = append(list, Finding{
			"clocks", level, fmt.Sprintf("the clock of %s is %v %s the others", c.process,
				off.Round(time.Millisecond), side),
			"Synchronize it (chrony, ntpd). IDs of counters stay unique; time-ordered IDs sort wrong or wait, " +
				"and strict tags may pause.", "chronyc tracking",
		})
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
				list = append(list, Finding{
					Check: "certificates", Level: Failed, What: of + " cannot be read: " + c.GetError(),
					Remedy: "Put the certificates there, as PEM. A process that starts again would not come up.",
				})
				continue
			}
			left := c.GetEnds().AsTime().Sub(a.Got.GetClock().AsTime())
			if n++; n == 1 || left < first {
				first = left
			}
			level, what := OK, fmt.Sprintf("%s ends in %d days", of, int64(left/(24*time.Hour)))
			switch {
			case left <= 0:
				level, what = Failed, fmt.Sprintf("%s ended at %s", of, c.GetEnds().AsTime().Format(time.RFC3339))
			case left < certNow:
				level = Failed
			case left < certSoon:
				level = Warning
			}
			if level != OK {
				list = append(list, Finding{
					Check: "certificates", Level: level, What: what + ": " + c.GetSubject(),
					Remedy: "Issue another one, and put it into the file.",
				})
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
			list = append(list, Finding{
				Check: "journal", Level: Failed, What: fmt.Sprintf("the disk of the journal of %s takes no write: %s",
					a.Process, j.GetError()),
				Remedy: "An instance leases nothing while its journal cannot be written. Make room on " + j.GetPath() +
					", or see its permissions.",
			})
		case level != OK:
			list = append(list, Finding{
				Check: "journal", Level: level, What: fmt.Sprintf("a sync of the journal's disk of %s took %v; "+
					"it should take less than %v", a.Process, took.Round(time.Microsecond), slowSync),
				Remedy: "Each lease waits for a sync. Put " + j.GetPath() + " on a faster disk, or on one of its own.",
			})
		}
		if j.Free != nil && j.GetFree() < leastFree {
			list = append(list, Finding{
				Check: "journal", Level: Warning, What: fmt.Sprintf("the disk of the journal of %s has %d MiB left",
					a.Process, j.GetFree()>>20),
				Remedy: fmt.Sprintf("Make room on %s: %d MiB are enough.", j.GetPath(), leastFree>>20),
			})
		}
	}
	if list == nil && n > 0 {
		list = []Finding{{Check: "journal", Level: OK, What: fmt.Sprintf("the disks of %d journals have room, "+
			"and sync within %v", n, slowest.Round(time.Microsecond))}}
	}
	return list
}

package sim_test

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// answered is a call that was given IDs.
type answered struct {
	at   time.Time
	by   *process
	tag  allocator.Tag
	runs []allocator.Run
	seg  allocator.Segment // of a client's lease
	ttl  time.Duration     // how long the client may use it
	bad  error             // why the lease is wrong

	began, done time.Time // of the call; of an ordered tag
}

// lease stores a client's lease.
func (a *answered) lease(r *marchv1.LeaseResponse) {
	if a.seg, a.bad = api.SegmentFromProto(r.GetSegment()); a.bad == nil {
		a.ttl = r.GetTtl().AsDuration()
		for run := range a.seg.Runs() {
			a.runs = append(a.runs, run)
		}
	}
}

// note stores the IDs of a call, and makes the checks that are possible at once.
func (w *world) note(a answered) {
	if a.bad != nil {
		w.Errorf("%s, tag %s: %v", a.by.id, a.tag, a.bad)
		return
	}
	w.log("%-12s %s: %v", a.by.id, a.tag, a.runs)
	w.mu.Lock()
	changes := w.mu.ever
	n := len(w.mu.calls)
	w.mu.calls = append(w.mu.calls, a)
	type double struct {
		id    int64
		other answered
	}
	var doubles []double
	for _, run := range a.runs {
		for id := run.First; id < run.First+run.Count; id++ {
			if k, twice := w.mu.issued[a.tag][id]; twice {
				other := w.mu.calls[k]
				if !a.by.mayShare(a.tag, id, other.by) && !other.by.mayShare(a.tag, id, a.by) {
					doubles = append(doubles, double{id, other})
				}
			}
			w.mu.issued[a.tag][id] = n
		}
		w.mu.counts["IDs"] += int(run.Count)
	}
	w.mu.Unlock()
	for _, d := range doubles {
		w.Errorf("DUPLICATE: tag %s: ID %d was issued by %s, and %v earlier by %s", a.tag, d.id, a.by.id,
			a.at.Sub(d.other.at), d.other.by.id)
	}
	w.checkLease(a)
	for _, run := range a.runs {
		if !everIn(changes, a.by.in, run) {
			w.Errorf("%s, tag %s: IDs %v lie in no range that the room ever had", a.by.id, a.tag, run)
		}
	}
}

// everIn reports whether a run lies in a range that a room ever had.
func everIn(changes []change, room allocator.Room, run allocator.Run) bool {
	for _, c := range changes {
		if inRange(c.layout, room, run) {
			return true
		}
	}
	// A run may go on from the last ID of one layout to the first of another.
	half := run.Count / 2
	return half > 0 && everIn(changes, room, allocator.Run{First: run.First, Count: half}) &&
		everIn(changes, room, allocator.Run{First: run.First + half, Count: run.Count - half})
}

// inRange reports whether all of a run lies in a room's range.
func inRange(l allocator.Layout, room allocator.Room, run allocator.Run) bool {
	r := l.Ranges[room]
	if r.Width() == l.Boundary {
		return true
	}
	lowest := l.Residue(run.First)
	return r.Contains(lowest) && run.Count <= r.Upper-lowest
}

// checkAll makes the checks that are possible at the end.
func (w *world) checkAll() {
	ctx := context.Background()
	list, _, err := w.admin.Migrations(ctx, "", 10_000)
	if err != nil {
		w.Errorf("migrations: %v", err)
	}
	for _, m := range list {
		w.count("migrations "+string(m.State), 1)
		if !m.State.Ended() {
			w.Errorf("migration %s is %s", m.ID, m.State)
		}
	}
	w.noteWaived()
	w.checkOrder()
	w.checkSkew()
	w.checkKept()
	eras, err := ledgertest.Eras(ctx, w.mem.Open(), "default")
	if err != nil {
		w.Errorf("eras: %v", err)
	}
	issued := ledgertest.Issued{}
	for _, a := range w.mu.calls {
		if slices.ContainsFunc(a.runs, func(run allocator.Run) bool { return a.by.leftRun(a.tag, run) }) {
			w.count("calls for IDs of instances that were left out", 1)
			continue
		}
		for _, run := range a.runs {
			w.checkRun(eras, a, run)
			w.checkRetracted(a, run)
		}
		// It may go on from a lease that etcd remembers to one that it forgot.
		if a.seg.Count > 0 && !w.forgotten(a, a.seg.First) && !w.forgotten(a, a.seg.Last()) {
			issued.Add(a.tag, a.by.in, a.seg)
		}
	}
	ledgertest.CheckCluster(w, w.mem.Open(), "default", issued)
}

// checkRun finds the era of IDs, and checks that the room had their residues then, and that
// they were still in time.
func (w *world) checkRun(eras ledgertest.AllEras, a answered, run allocator.Run) {
	era, ok := eraOf(eras, a, run.First)
	if !ok && w.forgotten(a, run.First) {
		w.count("IDs of a time that etcd forgot, in no era", int(run.Count))
		return
	}
	if !ok {
		w.Errorf("%s, tag %s: ID %d lies in no era of room %s", a.by.id, a.tag, run.First, a.by.in)
		return
	}
	if end := run.First + run.Count; end > era.End { // the rest belongs to another era
		w.checkRun(eras, a, allocator.Run{First: era.End, Count: end - era.End})
		run.Count = era.End - run.First
	}
	under := w.under(era.Version)
	layout := w.mu.changes[under].layout
	reported := w.reported(a)
	// A restore may have forgotten the reported layout; and another layout may have its version
	// since.
	since := w.under(reported)
	known := since < len(w.mu.changes) && w.mu.changes[since].layout.Version == reported &&
		!w.mu.changes[since].at.After(a.at)
	switch {
	case !inRange(layout, a.by.in, run):
		w.Errorf("%s, tag %s: IDs %v are not of room %s in %s", a.by.id, a.tag, run, a.by.in, text(layout))
	case era.Version < reported && known && !w.keeps(since, under, a.by.in):
		w.Errorf("%s, tag %s: IDs %v of layout version %d were issued after the report of version %d, "+
			"which does not keep them",
			a.by.id, a.tag, run, era.Version, reported)
	case a.seg.Count > 0 && a.seg.Version != era.Version:
		w.Errorf("%s, tag %s: %v lies in an era of layout version %d", a.by.id, a.tag, a.seg, era.Version)
	}
	if era.Version < reported && known {
		w.count("IDs of segments that stayed over a layout", int(run.Count))
	}
	if a.tag != strictTag || !w.strict {
		return
	}
	until, last := a.at.Add(a.ttl), under
	for i := under; i < len(w.mu.changes) && w.mu.changes[i].at.Before(until); i++ {
		if w.keeps(i, under, a.by.in) {
			last = i
		}
	}
	if last+1 >= len(w.mu.changes) {
		return
	}
	replaced := w.mu.changes[last+1].at
	for _, f := range w.mu.forgotten { // an instance may have kept the IDs until etcd forgot the layout
		if f.at.Before(until) && keepsAll(f.layout, layout, a.by.in) {
			replaced = latest(replaced, f.until)
		}
	}
	if late := until.Sub(replaced) - w.hold; late > 0 {
		w.Errorf("%s: IDs %v of the strict tag were issued %v after hold (%v) after layout version %d was replaced, "+
			"the last that kept them",
			a.by.id, run, late, w.hold, w.mu.changes[last].layout.Version)
	}
	w.count("IDs of strict tags checked for lateness", int(run.Count))
}

// keeps reports whether a room has by one layout all that it had by another, each given as an
// index of changes: leases under that other one may stay.
func (w *world) keeps(by, leased int, room allocator.Room) bool {
	return keepsAll(w.mu.changes[by].layout, w.mu.changes[leased].layout, room)
}

// keepsAll reports whether a room has by a layout all that it had by an earlier one.
func keepsAll(now, then allocator.Layout, room allocator.Room) bool {
	had, has := then.Ranges[room], now.Ranges[room]
	return now.Boundary == then.Boundary && has.Contains(had.Lower) && has.Contains(had.Upper-1)
}

// noteWaived notes the instances that migrations went on without, before etcd forgets it. The
// caller holds the lock, or is the last to run.
func (w *world) noteWaived() {
	for _, key := range w.keys("migrations/") {
		m := stored[struct {
			Without []struct{ Instance record.InstanceID }
			Log     []struct{ Text string }
		}](w, key)
		for _, i := range m.Without {
			w.mu.waived[i.Instance] = true
		}
		for _, e := range m.Log {
			if id, silent := strings.CutPrefix(e.Text, "goes on without "); silent {
				id, _, silent = strings.Cut(id, ", silent for at least ")
				w.mu.waived[record.InstanceID(id)] = w.mu.waived[record.InstanceID(id)] || silent
			}
		}
	}
}

// leasedUnder returns the index in the timeline of the layout under which an ID was leased, the
// last of several candidates; false if there is none.
func (w *world) leasedUnder(a answered, id int64) (index int, ok bool) {
	for _, have := range a.by.link.leasesWith(a.tag, id) {
		for i, c := range w.mu.timeline {
			if have.lost == "" && c.layout.Version == have.version && !c.at.After(have.done) {
				index, ok = max(index, i), true
			}
		}
	}
	return index, ok
}

// checkRetracted checks IDs of residues that a migration had taken from the room and given to
// another. In between, the migration waits for the reports of all instances that may issue such
// IDs. It does not wait if one move did both, and stale reads may hide registrations. The check
// uses the layouts as they came into force, also those that etcd forgot since.
func (w *world) checkRetracted(a answered, run allocator.Run) {
	under, ok := w.leasedUnder(a, run.First)
	if !ok || !w.strict {
		return
	}
	var given *change                  // to another room, after the move that took them
	retracted, promised := false, true // by a move of its own; not if one move did both
	for _, c := range w.mu.timeline[under+1:] {
		if !c.at.Before(a.at) {
			break
		}
		switch owner, _ := c.layout.RoomOf(run.First); {
		case c.wentBack: // no migration waited before it
			given, retracted, promised = nil, false, true
		case owner == a.by.in: // still, or again
			given, retracted, promised = nil, false, true
		case owner == "":
			retracted = true
		case retracted && promised && given == nil:
			given = &c
		case !retracted:
			promised = false
		}
	}
	switch {
	case given == nil:
	case given.registered[a.by.address] && !w.mu.waived[ledger.Registration{Room: a.by.in, Name: a.by.name}.ID()]:
		owner, _ := given.layout.RoomOf(run.First)
		w.Errorf("%s, tag %s: IDs %v were issued %v after layout version %d gave them to room %s, "+
			"and the migration had not gone on without this instance",
			a.by.id, a.tag, run, a.at.Sub(given.at), given.layout.Version, owner)
	default:
		w.count("IDs issued late by instances that were not waited for", int(run.Count))
	}
}

func eraOf(eras ledgertest.AllEras, a answered, id int64) (record.Era, bool) {
	for _, e := range eras[a.tag][a.by.in] {
		if e.First <= id && id < e.End {
			return e, true
		}
	}
	return record.Era{}, false
}

package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
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
	ttl  time.Duration     // for how long the client may use it
	bad  error             // why it is none
}

// lease takes up a client's lease.
func (a *answered) lease(r *marchv1.LeaseResponse) {
	if a.seg, a.bad = api.SegmentFromProto(r.GetSegment()); a.bad == nil {
		a.ttl = r.GetTtl().AsDuration()
		for run := range a.seg.Runs() {
			a.runs = append(a.runs, run)
		}
	}
}

// note takes up what a call was given, and checks what can be said at once.
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
	w.mu.latest[string(a.tag)+" "+string(a.by.name)] = a.at
	type double struct {
		id    int64
		other answered
	}
	var doubles []double
	for _, run := range a.runs {
		for k := range run.Count {
			id := run.First + k
			if other, twice := w.mu.issued[a.tag][id]; twice && !a.by.leftWith(a.tag, id) && !w.mu.calls[other].by.leftWith(a.tag, id) {
				doubles = append(doubles, double{id, w.mu.calls[other]})
			}
			w.mu.issued[a.tag][id] = n
		}
		w.mu.counts["IDs"] += int(run.Count)
	}
	w.mu.Unlock()
	for _, d := range doubles {
		w.Errorf("DUPLICATE: tag %s: ID %d was issued by %s, and %v earlier by %s", a.tag, d.id, a.by.id, a.at.Sub(d.other.at), d.other.by.id)
	}
	w.checkLease(a)
	for _, run := range a.runs {
		if !everIn(changes, a.by.in, run) {
			w.Errorf("%s, tag %s: IDs %v lie in no range that the room ever had", a.by.id, a.tag, run)
		}
	}
}

// everIn reports whether a run lies in a range that a room had.
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

// checkAll checks what can be said at the end.
func (w *world) checkAll() {
	ctx := context.Background()
	dump, err := w.admin.Dump(ctx)
	if err != nil {
		w.Errorf("dump: %v", err)
		return
	}
	list, err := w.admin.Migrations(ctx, "", 10_000)
	if err != nil {
		w.Errorf("migrations: %v", err)
	}
	waived := make(map[ledger.InstanceID]bool)
	for _, m := range list {
		for _, i := range w.slots {
			id := ledger.Registration{Room: i.room, Name: allocator.Instance(i.name)}.ID()
			waived[id] = waived[id] || slices.Contains(m.Without, id) || slices.ContainsFunc(m.Log, func(e ledger.LogEntry) bool {
				since, silent := strings.CutPrefix(e.Text, "goes on without "+string(id)+", silent since ")
				return silent && !strings.HasPrefix(since, "0001") // never
			})
		}
		w.count("migrations "+string(m.State), 1)
		if !m.State.Ended() {
			w.Errorf("migration %s is %s", m.ID, m.State)
		}
	}
	issued := ledgertest.Issued{}
	for _, a := range w.mu.calls {
		if w.mu.past.deleted[fmt.Sprintf("marks/%s/%s", a.by.in, a.tag)] {
			continue
		}
		if slices.ContainsFunc(a.runs, func(run allocator.Run) bool { return a.by.leftRun(a.tag, run) }) {
			w.count("calls for IDs of who was left out", 1)
			continue
		}
		for _, run := range a.runs {
			w.checkRun(dump, a, run)
			w.checkRetracted(dump, a, run, waived)
		}
		if a.seg.Count > 0 && !w.forgotten(a) {
			issued.Add(a.tag, a.by.in, a.seg)
		}
	}
	ledgertest.CheckCluster(w, w.mem.Open(), "default", issued)
}

// checkRun finds the era of IDs, and checks that the room had their residues
// then, and whether they were still in time.
func (w *world) checkRun(d *ledger.Dump, a answered, run allocator.Run) {
	era, ok := eraOf(d, a, run.First)
	if !ok && w.forgotten(a) {
		w.count("IDs of a time that etcd forgot, in no era", int(run.Count))
		return
	}
	if !ok {
		w.Errorf("%s, tag %s: ID %d lies in no era of room %s", a.by.id, a.tag, run.First, a.by.in)
		return
	}
	if end := run.First + run.Count; end > era.End { // the rest is of another
		w.checkRun(d, a, allocator.Run{First: era.End, Count: end - era.End})
		run.Count = era.End - run.First
	}
	if lost(d, era) {
		w.count("IDs of a stretch that was lost", int(run.Count))
		return
	}
	under := w.under(era.Version)
	layout := w.mu.changes[under].layout
	switch {
	case !inRange(layout, a.by.in, run):
		w.Errorf("%s, tag %s: IDs %v are not of room %s in %s", a.by.id, a.tag, run, a.by.in, text(layout))
	case era.Version < w.reported(a):
		w.Errorf("%s, tag %s: IDs %v of layout version %d were issued after the report of version %d", a.by.id, a.tag, run, era.Version, w.reported(a))
	case a.seg.Count > 0 && a.seg.Version != era.Version:
		w.Errorf("%s, tag %s: %v lies in an era of layout version %d", a.by.id, a.tag, a.seg, era.Version)
	}
	if a.tag != strictTag || !w.strict || under+1 >= len(w.mu.changes) {
		return
	}
	until, next := a.at.Add(a.ttl), w.mu.changes[under+1]
	if late := until.Sub(next.at) - w.hold; late > 0 {
		w.Errorf("%s: IDs %v of the strict tag were issued %v after hold (%v) after layout version %d was replaced", a.by.id, run, late, w.hold, era.Version)
	}
	w.count("IDs of strict tags checked for lateness", int(run.Count))
}

// lost reports whether an era is what recover made of what etcd had forgotten.
func lost(d *ledger.Dump, era ledger.Era) bool {
	return slices.ContainsFunc(d.History, func(r ledger.LayoutRecord) bool {
		return r.Lost != 0 && r.Lost <= era.Version && era.Version < r.Layout.Version
	})
}

// checkRetracted checks IDs that were issued of residues that a migration had
// taken from the room and given to another: it waits in between until who may
// issue such has reported. Where one move did both it does not; and stale reads
// may hide who is registered.
func (w *world) checkRetracted(d *ledger.Dump, a answered, run allocator.Run, waived map[ledger.InstanceID]bool) {
	era, ok := eraOf(d, a, run.First)
	if !ok || lost(d, era) || !w.strict {
		return
	}
	retracted := false
	for _, c := range w.mu.changes[w.under(era.Version)+1:] {
		owner, _ := c.layout.RoomOf(run.First)
		switch {
		case owner == "":
			retracted = true
			continue
		case owner == a.by.in || !retracted || !c.at.Before(a.at):
		case c.registered[a.by.address] && !waived[ledger.Registration{Room: a.by.in, Name: a.by.name}.ID()]:
			w.Errorf("%s, tag %s: IDs %v were issued %v after layout version %d gave them to room %s, and the migration had not gone on without this instance",
				a.by.id, a.tag, run, a.at.Sub(c.at), c.layout.Version, owner)
		default:
			w.count("IDs issued late by who was not waited for", int(run.Count))
		}
		return
	}
}

func eraOf(d *ledger.Dump, a answered, id int64) (ledger.Era, bool) {
	for _, e := range append(d.Eras[a.tag][a.by.in], d.Marks[a.tag][a.by.in].Era) {
		if e.Version > 0 && e.First <= id && id < e.End {
			return e, true
		}
	}
	return ledger.Era{}, false
}

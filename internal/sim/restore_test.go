package sim_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// past is an operator's knowledge of a store that forgets.
type past struct {
	backup     int64     // the revision of the last backup, 0 for none
	saved      time.Time // the backup has all writes until then
	leased     bool      // there was a mark by then
	restores   int
	wentBackTo []stretch // that the store forgot, each time that it went back
	lostTimes  []stretch
	heard      map[string]map[string]bool      // who answered a recover: addresses, by the epoch that it began
	forgot     time.Time                       // writes after that are forgotten; zero if none are
	lost       time.Time                       // when a process whose memory is lost last ended
	left       map[record.InstanceID]time.Time // when a pod that was taken away left in good order
	highest    map[allocator.Tag]int64
	rolled     map[string]map[allocator.Tag]bool // the tags of which a rollback lost leases, by epoch
}

// stretch is a time of which etcd forgot the writes.
type stretch struct{ from, until time.Time }

// forgotten reports whether a call was given an ID that was leased in a time that etcd forgot.
func (w *world) forgotten(a answered, id int64) bool {
	return len(w.mu.past.lostTimes) > 0 && slices.ContainsFunc(a.by.link.leasesWith(a.tag, id), func(l lease) bool {
		return slices.ContainsFunc(w.mu.past.lostTimes, func(s stretch) bool {
			return l.done.After(s.from) && l.sent.Before(s.until)
		})
	})
}

// remember stores the highest marks before they are forgotten, and the instances that
// migrations went on without. The caller holds the lock.
func (w *world) remember() {
	w.noteWaived()
	for _, tag := range w.tags {
		w.mu.past.highest[tag] = max(w.mu.past.highest[tag], w.highest(tag))
	}
}

// highest returns the largest mark of a tag in the store.
func (w *world) highest(tag allocator.Tag) (next int64) {
	for _, room := range w.rooms {
		mark := stored[struct {
			Next int64 `json:",string"`
		}](w, fmt.Sprintf("marks/%s/%s", room, tag))
		next = max(next, mark.Next)
	}
	return next
}

// forgets notes that the store forgot the writes after a time.
func (w *world) forgets(since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.past.wentBackTo = append(w.mu.past.wentBackTo, stretch{since, time.Now()})
	if p := &w.mu.past; p.forgot.IsZero() || since.Before(p.forgot) {
		p.forgot = since
	}
}

// grown is a raft index, of a beat, that a new raft log needs some seconds to reach.
const grown = 150

// backUp takes a backup, once a beat shows how far raft's log has grown: an etcd that was just
// born, or restored, does not show that it was restored.
func (w *world) backUp(dice) {
	beat := stored[struct {
		RaftIndex uint64 `json:"raft_index,string"`
	}](w, "beat")
	if beat.RaftIndex < grown || w.halted() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.mu.past
	p.backup, p.saved, p.leased = w.mem.Revision(), time.Now(), len(w.keys("marks/")) > 0
	if !p.forgot.IsZero() {
		p.saved = p.forgot // a write that is lost is lost to the backup, too
	}
	w.count1("backups")
}

// restore restores the last backup: with its revision raised or not, and as the same etcd
// cluster or as another.
func (w *world) restore(d dice) {
	bump, id := pick(d, []int64{0, 0, 1_000_000_000}),
		pick(d, []uint64{ledgertest.ClusterID, ledgertest.ClusterID, ledgertest.ClusterID + 2})
	w.mu.Lock()
	backup, saved := w.mu.past.backup, w.mu.past.saved
	if backup > 0 {
		w.remember()
		w.count1("restores")
		w.mu.past.restores++
	}
	w.mu.Unlock()
	if backup == 0 {
		w.backUp(d)
		return
	}
	w.log("--- etcd goes back to revision %d, %v ago, its revision raised by %d", backup, time.Since(saved), bump)
	w.forgets(saved)
	w.mem.Restore(backup, bump, id)
}

// halted reports whether leasing is halted.
func (w *world) halted() bool { return stored[struct{ Halted *struct{} }](w, "epoch").Halted != nil }

// halt halts leasing on purpose.
func (w *world) halt(dice) {
	l := w.fresh()
	if _, err := l.Halt(context.Background(), "simulation", "a halt on purpose"); err != nil && !w.expected(err) {
		w.Errorf("halt: %v", err)
	}
}

// fresh returns a ledger without memory and without faults.
func (w *world) fresh() *ledger.Ledger {
	l, err := ledger.New(w.mem.Open(), ledger.DefaultConfig())
	if err != nil {
		panic(err) // the default is valid
	}
	return l
}

// recoveries recovers whenever leasing is halted or etcd was restored, until the end.
func (w *world) recoveries(lane int) {
	d := w.dice("recoveries")
	for n := 1; w.waits(d.between(500*time.Millisecond, 6*time.Second), lane); {
		if !w.sound() {
			w.log("--- recover#%d: forgetful %v, halted %v, moved %v", n, w.forgetful(), w.halted(), w.moved())
			err := w.recover(d, fmt.Sprint("recover#", n))
			w.log("--- recover#%d: %v, %v", n, kind(err), err)
			w.count("recover: "+kind(err), 1)
			if n++; err != nil && !w.expected(err) {
				w.Errorf("recover: %v", err)
			}
		}
	}
}

// waits sleeps for about d, or until a recover is wanted at once. It returns false at the end.
func (w *world) waits(d time.Duration, lane int) bool {
	timer := time.NewTimer(align(d, lane))
	defer timer.Stop()
	select {
	case <-w.hurry:
		return w.sleep(w.end, time.Millisecond, lane)
	case <-timer.C:
		return true
	case <-w.end:
		return false
	}
}

// sound reports whether etcd has forgotten nothing that no operator has recovered, and leasing is
// not halted.
func (w *world) sound() bool { return !w.forgetful() && !w.halted() && !w.moved() }

// recoverSoon makes an operator recover at once, if none does already.
func (w *world) recoverSoon() {
	select {
	case w.hurry <- struct{}{}:
	default:
	}
}

// forgetful reports whether the store has forgotten writes and no operator has recovered since.
func (w *world) forgetful() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.mu.past.forgot.IsZero()
}

// recover follows the runbook. The operator lists the instances that answer, and gives the
// journals of those that do not run. The operator goes on without an instance only if its
// leases will never be known, and then with the margin that the highest ID in use requires.
// Sometimes the operator names no instance to go on without, and relies on a refusal; and
// sometimes leaves out a running instance, with a small margin.
func (w *world) recover(d dice, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := &recovering{w: w, d: d, link: w.link(name, w.lane()), cancel: cancel, answered: make(map[string]bool)}
	r.link.recovers, r.link.role = r, keys.OperatorRole()
	if p := w.consoles[0].running(); p != nil { // the operator's machine
		r.link.ahead.Store(p.link.ahead.Load())
	}
	l := w.ledger(r.link)
	cfg := recovery.Config{
		Actor: "simulation", Wait: pick(d, []time.Duration{0, 0, 6 * time.Second}),
		Memories: w.journalsOfTheDead(), Ask: r.ask, Console: w.mirrorsAt(r.link),
	}
	report, err := recovery.Run(ctx, l, cfg) // is refused if an operator has to decide more
	if err != nil && allocator.KindOf(err) != allocator.Refused {
		return err
	}
	known := len(cfg.Memories)
	if err := r.decide(&cfg, report); err != nil {
		return err
	}
	if len(cfg.Memories) > known { // more journals may show more lost processes, and cover others
		cfg.Without = nil
		again := cfg
		again.Apply, again.Wait = false, 0
		if report, err = recovery.Run(ctx, l, again); err != nil && allocator.KindOf(err) != allocator.Refused {
			return err
		}
		for _, m := range report.Missing {
			cfg.Without = append(cfg.Without, m.ID)
		}
	}
	cfg.Layout = pick(d, []recovery.LayoutChoice{recovery.LayoutStored, recovery.LayoutKnown})
	swapped, swaps := r.swapped(report.Stored.Layout)
	if swaps {
		cfg.Layout, cfg.Given = recovery.LayoutGiven, swapped
	}
	r.misspell(ctx, cfg)
	named := r.nameStranger(&cfg)
	r.trust(&cfg, func(dry recovery.Config) error {
		_, err := recovery.Run(ctx, l, dry)
		return err
	})
	r.nameStopped(&cfg)
	w.log("%-12s goes on without %v, stopped %v, layout %s, margin %v", name, cfg.Without, cfg.Stopped, cfg.Layout,
		cfg.Margin != nil)
	w.mu.Lock()
	w.remember()
	restores := w.mu.past.restores
	w.mu.Unlock()
	if report, err = recovery.Run(ctx, l, cfg); err != nil {
		r.failed = err
		return err
	}
	if r.link.ahead.Load() != 0 {
		w.count("recovers by a clock hours off", 1)
	}
	w.mu.Lock()
	if w.mu.past.restores == restores { // otherwise another restore may have come just after
		w.mu.past.lostTimes = append(w.mu.past.lostTimes, stretch{w.mu.past.forgot, time.Now()})
		w.mu.past.forgot = time.Time{}
	}
	w.mu.Unlock()
	for _, m := range report.Missing {
		if !m.Without {
			w.Errorf("recover went on without %s, which no operator had named: %s", m.ID, m.Why)
		}
	}
	if named != "" && !slices.ContainsFunc(report.Missing, func(m recovery.Missing) bool { return m.ID == named }) {
		w.Errorf("recover was to go on without %s, and does not count it as missing", named)
	}
	if len(report.Missing) >= crowd {
		w.count("recovers without hundreds of instances", 1)
	}
	r.heard()
	if len(r.missing) > 0 {
		w.count("recovers without a running instance", 1)
	}
	if swaps {
		w.count("instances left out whose range another room got", 1)
	}
	return nil
}

// marginFor returns the margin that a recover needs because the leases of some process are not
// remembered anywhere; nil for the usual one. That is the case of a pod that left in good order and
// was taken away with its disk, too, if recover says so: if it does not, it says that etcd has all
// that the pod leased.
func (w *world) marginFor(report *recovery.Report) *int64 {
	w.mu.Lock()
	p := w.mu.past
	gone := slices.ContainsFunc(report.Missing, func(m recovery.Missing) bool { return p.left[m.ID].After(p.forgot) })
	w.mu.Unlock()
	if gone {
		w.count("pods missing after a restore, by recover's word", 1)
	}
	if p.forgot.IsZero() || p.lost.Before(p.forgot) && !gone {
		return nil
	}
	return w.margin()
}

// margin returns a margin, in steps, that reaches over all leases ever made.
func (w *world) margin() *int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remember()
	steps := int64(1)
	for _, tag := range w.tags {
		steps = max(steps, w.lacks(tag)/w.span(tag)+1)
	}
	return &steps
}

// span returns how many IDs of a tag one step of the margin covers: see DESIGN 3.2.
func (w *world) span(tag allocator.Tag) int64 {
	step := stored[struct {
		LargestStep int64 `json:"largest_step,string"`
	}](w, "tags/"+string(tag)).LargestStep
	layout := stored[struct {
		NarrowestRange  int64 `json:"narrowest_range,string"`
		LargestBoundary int64 `json:"largest_boundary,string"`
	}](w, "layout")
	if layout.NarrowestRange == 0 { // etcd's data is away
		return 1
	}
	return ((step+layout.NarrowestRange-1)/layout.NarrowestRange + 1) * layout.LargestBoundary
}

// floor returns the least ID of a tag that a room without a lease in the present epoch may
// lease next.
func (w *world) floor(tag allocator.Tag) (floor int64) {
	for _, room := range w.rooms {
		floor = max(floor, w.reach(tag, room))
	}
	return floor
}

// reach returns the end of the IDs that a room's mark of a tag keeps from rooms without a lease
// in the present epoch.
func (w *world) reach(tag allocator.Tag, room allocator.Room) int64 {
	total := w.marginTotal()
	settings := stored[struct {
		Start     int64 `json:",string"`
		BaseTotal int64 `json:"base_total,string"`
	}](w, "tags/"+string(tag))
	mark := w.mark(tag, room)
	if mark.Next == nil { // there is none
		mark.Next, mark.Total = &settings.Start, settings.BaseTotal
	}
	return above(*mark.Next, max(total-mark.Total, 0), w.span(tag))
}

// above returns the first ID above a margin, at most the largest ID.
func above(next, steps, span int64) int64 {
	if (allocator.MaxID-next)/span < steps {
		return allocator.MaxID
	}
	return next + steps*span
}

// storedMark is a mark in the store; next is nil if there is none.
type storedMark struct {
	Next  *int64 `json:",string"`
	Total int64  `json:",string"`
}

func (w *world) mark(tag allocator.Tag, room allocator.Room) storedMark {
	return stored[storedMark](w, fmt.Sprintf("marks/%s/%s", room, tag))
}

// marginTotal returns the margin total of the epoch in force.
func (w *world) marginTotal() int64 {
	return stored[struct {
		MarginTotal int64 `json:"margin_total,string"`
	}](w, "epoch").MarginTotal
}

// alive returns the instances that run, and may have leased.
func (w *world) alive() (all []*process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.mu.processes {
		if p.runs() {
			all = append(all, p)
		}
	}
	return all
}

// runs reports whether p serves.
func (p *process) runs() bool {
	select {
	case <-p.link.dead:
		return false
	case <-p.gone:
		return false
	default:
	}
	select {
	case <-p.serving:
		return true
	default:
		return false
	}
}

// bury notes the fate of an instance's memory when the instance has ended: a journal keeps it,
// unless the journal is lost as well.
func (w *world) bury(p *process) {
	if p.journal != "" && !p.forgets.Load() {
		return
	}
	left := p.link.leftAt()
	if p.journal != "" {
		w.count("journals lost", 1)
		if err := os.RemoveAll(p.journal); err != nil {
			w.Errorf("journal: %v", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if left.IsZero() {
		w.mu.past.lost = time.Now()
		return
	}
	w.mu.past.left[ledger.Registration{Room: p.in, Name: p.name}.ID()] = left
}

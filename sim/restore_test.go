package sim_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// past is what an operator knows of a store that forgets.
type past struct {
	backup    int64     // the revision of the last backup, 0 for none
	saved     time.Time // until when it has all that was written
	leased    bool      // there was a mark by then
	restores  int
	lostTimes []stretch
	heard     map[string]map[string]bool // who answered a recover: addresses, by the epoch that it began
	forgot    time.Time                  // what was written after that is forgotten; zero where nothing is
	lost      time.Time                  // when a process last ended whose memory nobody has
	highest   map[allocator.Tag]int64
	rolled    map[string]map[allocator.Tag]bool // the tags of which a rollback lost leases, by epoch
	deleted   map[string]bool                   // keys of marks that were deleted by hand: their eras are lost with them
	mending   bool                              // a recover is under way: nobody deletes what it has read
}

// stretch is a time of which etcd forgot what was written.
type stretch struct{ from, until time.Time }

// forgotten reports whether a call was given IDs that were leased in a time that
// etcd forgot.
func (w *world) forgotten(a answered) bool {
	return len(w.mu.past.lostTimes) > 0 && slices.ContainsFunc(a.by.link.leasesWith(a.tag, a.runs[0].First), func(l lease) bool {
		return slices.ContainsFunc(w.mu.past.lostTimes, func(s stretch) bool { return l.sent.After(s.from) && l.sent.Before(s.until) })
	})
}

// remember notes the highest marks before they are forgotten. The caller holds
// the lock.
func (w *world) remember() {
	for _, tag := range w.tags {
		w.mu.past.highest[tag] = max(w.mu.past.highest[tag], w.highest(tag))
	}
}

// highest returns the largest mark of a tag that is in the store.
func (w *world) highest(tag allocator.Tag) (next int64) {
	for _, room := range w.rooms {
		mark := stored[struct {
			Next int64 `json:",string"`
		}](w, fmt.Sprintf("marks/%s/%s", room, tag))
		next = max(next, mark.Next)
	}
	return next
}

// forgets notes that the store forgot what was written after a time.
func (w *world) forgets(since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := &w.mu.past; p.forgot.IsZero() || since.Before(p.forgot) {
		p.forgot = since
	}
}

// grown is a raft index, of a beat, that takes a new raft log some seconds to
// reach.
const grown = 150

// backUp takes a backup, once a beat shows how far raft's log has grown: an etcd
// that was just born, or restored, does not show that it was restored.
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
		p.saved = p.forgot // what is lost is lost to the backup, too
	}
	w.count1("backups")
}

// restore restores the last backup: with its revision raised or not, and as the
// same etcd cluster or as another.
func (w *world) restore(d dice) {
	bump, id := pick(d, []int64{0, 0, 1_000_000_000}), pick(d, []uint64{ledgertest.ClusterID, ledgertest.ClusterID, ledgertest.ClusterID + 2})
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

// halted reports whether leasing is.
func (w *world) halted() bool { return stored[struct{ Halted *struct{} }](w, "epoch").Halted != nil }

// fence halts leasing on purpose.
func (w *world) fence(dice) {
	l := w.fresh()
	if _, err := l.Halt(context.Background(), "simulation", "a fence"); err != nil && !expected(err) {
		w.Errorf("fence: %v", err)
	}
}

// deleteMark has an operator's hand delete a mark, while leasing is halted: rooms
// that lease would not see it before the next floor.
func (w *world) deleteMark(d dice) {
	marks := w.keys("marks/")
	w.mu.Lock()
	if w.mu.past.mending || !w.halted() || len(marks) == 0 {
		w.mu.Unlock()
		return
	}
	key := pick(d, marks)
	w.remember()
	w.mu.past.deleted[key] = true
	w.count1("marks deleted by hand")
	w.mu.Unlock()
	w.forgets(w.began)
	w.log("--- %s is deleted by hand", key)
	w.mem.Corrupt(ledger.Op{Delete: "/march/default/" + key})
}

// fresh returns a ledger that knows nothing, and no faults.
func (w *world) fresh() *ledger.Ledger {
	l, err := ledger.New(w.mem.Open(), ledger.DefaultConfig())
	if err != nil {
		panic(err) // the default is valid
	}
	return l
}

// recoveries recovers whenever leasing is halted, or etcd was restored, until the
// end.
func (w *world) recoveries(lane int) {
	d := w.dice("recoveries")
	for n := 1; w.waits(d.between(500*time.Millisecond, 6*time.Second), lane); {
		if w.forgetful() || w.halted() || w.moved() {
			w.log("--- recover#%d: forgetful %v, halted %v, moved %v", n, w.forgetful(), w.halted(), w.moved())
			err := w.recover(d, fmt.Sprint("recover#", n))
			w.log("--- recover#%d: %v", n, kind(err))
			w.count("recover: "+kind(err), 1)
			if n++; err != nil && !expected(err) {
				w.Errorf("recover: %v", err)
			}
		}
	}
}

// waits sleeps for about d, or until somebody is in a hurry. It returns false at
// the end.
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

// forgetful reports whether the store has forgotten what nobody has recovered.
func (w *world) forgetful() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.mu.past.forgot.IsZero()
}

// recover does what the runbook says: it looks who answers, gives the journals of
// those that do not run, and goes on without an instance only where nobody will
// ever know what that leased; then with a margin that the highest ID in use
// asks for. Sometimes it names nobody to go on without, and relies on being
// refused; and sometimes it leaves somebody out who runs, with a small margin.
func (w *world) recover(d dice, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	w.mending(true)
	defer w.mending(false)
	r := &recovering{w: w, d: d, link: w.link(name, w.lane()), cancel: cancel, answered: make(map[string]bool)}
	l := w.ledger(r.link)
	var err error
	if r.uuid, err = l.StoredUUID(ctx); err != nil {
		return err
	}
	cfg := ledger.RecoverConfig{
		Actor: "simulation", Wait: pick(d, []time.Duration{0, 0, 6 * time.Second}), Memories: w.journalsOfTheDead(), Ask: r.ask,
	}
	report, err := l.Recover(ctx, cfg)
	if err != nil {
		return err
	}
	if err := r.decide(&cfg, report); err != nil {
		return err
	}
	w.log("%-12s goes on without %v, margin %d", name, cfg.Without, cfg.Margin)
	w.mu.Lock()
	w.remember()
	restores := w.mu.past.restores
	w.mu.Unlock()
	if report, err = l.Recover(ctx, cfg); err != nil {
		return err
	}
	w.mu.Lock()
	if w.mu.past.restores == restores { // else another restore may have come just after
		w.mu.past.lostTimes = append(w.mu.past.lostTimes, stretch{w.mu.past.forgot, time.Now()})
		w.mu.past.forgot = time.Time{}
	}
	w.mu.Unlock()
	for _, m := range report.Missing {
		if !m.Left {
			w.Errorf("recover went on without %s, which nobody had named: %s", m.ID, m.Why)
		}
	}
	r.heard()
	r.leaveOut()
	if len(r.missing) > 0 {
		w.count("recovers without who runs", 1)
	}
	return nil
}

func (w *world) mending(now bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.past.mending = now
}

// marginFor returns the margin that a recover needs because nobody knows any
// longer what some process leased: 0 for the usual one.
func (w *world) marginFor() int64 {
	w.mu.Lock()
	p := w.mu.past
	w.mu.Unlock()
	if p.forgot.IsZero() || p.lost.Before(p.forgot) {
		return 0
	}
	return w.margin()
}

// margin returns one that reaches over all that was ever leased.
func (w *world) margin() int64 {
	margin := int64(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remember()
	for _, tag := range w.tags {
		start := stored[struct {
			Start int64 `json:",string"`
		}](w, "tags/"+string(tag)).Start
		margin = max(margin, w.mu.past.highest[tag]-max(w.highest(tag), start)+1)
	}
	return margin
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

// reports collects the parts of an instance's answer.
type reports struct {
	grpc.ServerStream

	ctx   context.Context //nolint:containedctx // a stream has one
	parts []*marchv1.ReportMarksResponse
}

// Context implements grpc.ServerStream.
func (r *reports) Context() context.Context { return r.ctx }

// Send implements grpc.ServerStreamingServer.
func (r *reports) Send(part *marchv1.ReportMarksResponse) error {
	r.parts = append(r.parts, part)
	return nil
}

func (r *reports) memory() ledger.Memory {
	first := r.parts[0]
	m := ledger.Memory{
		UUID: first.GetClusterUuid(), Room: allocator.Room(first.GetRoom()), Name: allocator.Instance(first.GetInstance()),
		Incarnations: first.GetIncarnations(), Epochs: first.GetEpochs(), Version: first.GetLayoutVersion(), Revision: first.GetRevision(),
		Marks: make(map[allocator.Tag]int64),
	}
	for _, room := range first.GetRooms() {
		m.Rooms = append(m.Rooms, allocator.Room(room))
	}
	for _, s := range first.GetSeen() {
		m.Seen = append(m.Seen, ledger.SeenInstance{
			Room: allocator.Room(s.GetRoom()), Name: allocator.Instance(s.GetName()), Incarnation: s.GetIncarnation(), Address: s.GetAddress(),
		})
	}
	for _, part := range r.parts {
		for _, mark := range part.GetMarks() {
			m.Marks[allocator.Tag(mark.GetTag())] = mark.GetNext()
		}
	}
	return m
}

// journalsOfTheDead reads the journals of those that do not run.
func (w *world) journalsOfTheDead() (all []ledger.Memory) {
	alive := make(map[string]bool)
	for _, p := range w.alive() {
		alive[p.journal] = true
	}
	dirs, _ := os.ReadDir(w.journals) // none where it has none
	for _, dir := range dirs {
		if path := filepath.Join(w.journals, dir.Name()); !alive[path] {
			all = append(all, w.journalsIn(path)...)
		}
	}
	return all
}

// journalsIn reads the journals in a directory.
func (w *world) journalsIn(path string) (all []ledger.Memory) {
	_ = filepath.WalkDir(path, func(file string, _ fs.DirEntry, _ error) error { // it may be none
		if filepath.Ext(file) == ".journal" {
			m, err := ledger.ReadJournal(file)
			if err != nil {
				w.Errorf("journal: %v", err)
			}
			all = append(all, m)
		}
		return nil
	})
	return all
}

// bury notes what becomes of an instance's memory when it has ended: a journal
// keeps it, unless that is lost as well.
func (w *world) bury(p *process) {
	if p.journal != "" && !p.forgets.Load() {
		return
	}
	if p.journal != "" {
		w.count("journals lost", 1)
		if err := os.RemoveAll(p.journal); err != nil {
			w.Errorf("journal: %v", err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.past.lost = time.Now()
}

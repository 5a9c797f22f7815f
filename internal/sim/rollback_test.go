package sim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// rollbacks sometimes rolls raft's own data back, until all heals, in half of the clusters that
// require journals. In other clusters an instance that does not see the rollback would lease
// on.
func (w *world) rollbacks(lane int) {
	d := w.dice("rollbacks")
	if d.chance(2) && *with != journalsRequired {
		return
	}
	for w.sleep(w.heal, d.between(time.Second, 8*time.Second), lane) {
		if d.chance(2) || !w.rollsBack() {
			w.backUp(d)
		} else {
			w.rollBack(d, lane)
		}
	}
}

// rollsBack reports whether etcd can be rolled back to the last backup so that rooms see it.
// They do not see it if no ID had been leased by then: that looks like a new cluster, with no
// marks to confirm.
func (w *world) rollsBack() bool {
	w.mu.Lock()
	p := w.mu.past
	w.mu.Unlock()
	return p.backup > 0 && p.leased && !w.forgetful() && !w.halted() && !w.moved() && !w.healed.Load()
}

// rollBack makes power fail for all processes and for etcd, and rolls raft's own data back
// meanwhile. Only journals show that, and perhaps there are none any longer. A journal that
// does not show it, because other processes leased the lost IDs, is removed too: nothing helps
// against that.
func (w *world) rollBack(d dice, lane int) {
	w.log("--- power fails, for etcd too")
	slots := slices.Concat(w.slots, w.consoles)
	for _, s := range slots {
		s.stayDown(time.Minute)
	}
	w.mu.Lock()
	all := slices.Clone(w.mu.processes)
	w.mu.Unlock()
	for _, s := range w.consoles {
		if p := s.running(); p != nil {
			all = append(all, p)
		}
	}
	for _, p := range all { // doubles as well
		p.forgets.Store(p.forgets.Load() || d.chance(4))
		p.crash()
	}
	for _, p := range all {
		<-p.gone
	}
	w.sleep(nil, 10*time.Millisecond, lane) // until they are buried
	if w.rollsBack() && len(w.alive()) == 0 {
		w.takeBack(d)
	}
	for _, s := range slots {
		s.stayDown(d.between(0, 5*time.Second))
	}
}

// takeBack rolls back to the last backup. A process with a journal that shows it gets no calls
// for a while: so others find out first, before it leases and sees for itself.
func (w *world) takeBack(d dice) {
	w.mu.Lock()
	backup, saved := w.mu.past.backup, w.mu.past.saved
	w.remember()
	w.mu.Unlock()
	before := w.nexts()
	w.log("--- raft's own data goes back to revision %d, %v ago", backup, time.Since(saved))
	w.forgets(saved)
	w.mem.RollBack(backup, pick(d, []int64{0, 10_000})) // too many for revisions to show it
	after, epoch := w.nexts(), stored[struct{ Epoch string }](w, "epoch").Epoch
	w.count("rollbacks of raft's data", 1)
	w.rolledBack(before, after)
	for _, s := range w.slots {
		dir := filepath.Join(w.journals, s.name)
		if w.journals == "" {
			continue
		}
		for _, m := range w.journalsIn(dir) {
			if w.shows(m, epoch, before, after) {
				w.count("journals that show a rollback", 1)
				quiet := w.log1("--- the journal of %s shows it; nobody calls it for %v", s.name,
					d.between(0, 15*time.Second))
				w.mu.Lock()
				w.mu.quiet[s.name] = time.Now().Add(quiet)
				w.mu.Unlock()
				continue
			}
			w.count("journals lost", 1)
			if err := os.RemoveAll(dir); err != nil {
				w.Errorf("journal: %v", err)
			}
			w.mu.Lock()
			w.mu.past.lost = time.Now()
			w.mu.Unlock()
		}
	}
}

// rolledBack notes the tags of which a rollback lost leases, and the epoch: no instance leases
// these tags under that epoch again.
func (w *world) rolledBack(before, after map[string]int64) {
	epoch, _ := w.mem.Value("/march/default/epoch")
	w.mu.Lock()
	defer w.mu.Unlock()
	tags := w.mu.past.rolled[string(epoch)]
	if tags == nil {
		tags = make(map[allocator.Tag]bool)
		w.mu.past.rolled[string(epoch)] = tags
	}
	for key, next := range before {
		if next > after[key] {
			_, tag, _ := strings.Cut(strings.TrimPrefix(key, "marks/"), "/")
			tags[allocator.Tag(tag)] = true
		}
	}
}

// checkRolledBack checks that a lease does not come from an etcd that was rolled back and not
// recovered since.
func (w *world) checkRolledBack(l *link, a *asked) {
	w.mu.Lock()
	bad := a.leases && a.lease.lost == "" && w.mu.past.rolled[a.epoch][a.lease.tag]
	w.mu.Unlock()
	if bad {
		w.Errorf("%s, tag %s: it leased from an etcd that was rolled back, before anybody recovered",
			l.name, a.lease.tag)
	}
}

// quiet returns how long no caller calls an instance from now on.
func (w *world) quiet(p *process) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(w.mu.quiet[string(p.name)])
}

// nexts returns all marks, by key.
func (w *world) nexts() map[string]int64 {
	nexts := make(map[string]int64)
	for _, key := range w.keys("marks/") {
		nexts[key] = stored[struct {
			Next int64 `json:",string"`
		}](w, key).Next
	}
	return nexts
}

// shows reports whether a journal shows a rollback to its process, whatever the process asks
// etcd for first: by the epoch; or by its room's mark of each tag that any room leased since
// the backup.
func (w *world) shows(m record.Memory, epoch string, before, after map[string]int64) (shows bool) {
	n := len(m.Epochs)
	if n == 0 || m.Epochs[n-1] != epoch {
		return slices.Contains(m.Epochs, epoch)
	}
	for _, tag := range w.tags {
		leased := slices.ContainsFunc(w.rooms, func(room allocator.Room) bool {
			key := fmt.Sprintf("marks/%s/%s", room, tag)
			return before[key] > after[key]
		})
		key := fmt.Sprintf("marks/%s/%s", m.Room, tag)
		if leased && (remembered(m, tag) < before[key] || remembered(m, tag) <= after[key]) {
			return false
		}
		shows = shows || leased
	}
	return shows
}

// remembered returns the next of a tag in a memory, 0 for none.
func remembered(m record.Memory, tag allocator.Tag) int64 {
	for _, mark := range m.Marks {
		if mark.Tag == tag {
			return mark.Next
		}
	}
	return 0
}

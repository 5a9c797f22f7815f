package sim_test

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// leftOut is a running instance that the next recover does not reach and goes on without.
type leftOut struct {
	*process

	swaps bool // the recover exchanges the range of its room with that of another
}

// recoverWithout makes an operator leave out a running instance. The instance is cut off, etcd
// goes back to before its last leases or leasing is halted on purpose, and the recover has a
// small margin. Then the instance meets the new epoch. before comes first.
func recoverWithout(swaps bool, before func(w *world, p *process)) func(w *world, d dice) {
	return func(w *world, d dice) {
		lane := w.lane()
		if !w.sound() {
			return
		}
		w.backUp(d)
		p := w.victim(d, w.slots)
		if !w.sleep(w.heal, d.between(500*time.Millisecond, 5*time.Second), lane) || p == nil || !p.runs() ||
			!w.sound() {
			return
		}
		before(w, p)
		w.log("--- %s is cut off until a recover has gone on without it", p.id)
		p.link.stall(time.Hour)
		w.leaveOutNext(&leftOut{p, swaps})
		if w.mayRestore() && !d.chance(4) {
			w.restore(d)
		} else {
			w.halt(d)
		}
		w.recoverSoon()
		w.until(w.sound, lane)
		w.leaveOutNext(nil)
		p.link.stall(d.between(0, 3*time.Second))
	}
}

// mayRestore reports whether there is a backup.
func (w *world) mayRestore() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.past.backup > 0
}

// leaveOutNext sets the instance that the next recover goes on without, nil for none.
func (w *world) leaveOutNext(p *leftOut) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.without = p
}

// toLeaveOut returns the instance that the next recover goes on without, nil for none.
func (w *world) toLeaveOut() *leftOut {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.without
}

// swapped returns a layout in which the room of the left-out instance has the range of another
// room, and that room has its range; false if no ranges are to be swapped.
func (r *recovering) swapped(from allocator.Layout) (allocator.Layout, bool) {
	p := r.w.toLeaveOut()
	if p == nil || !p.swaps || !slices.Contains(r.missing, p.process) {
		return from, false
	}
	others := slices.DeleteFunc(from.Rooms(), func(room allocator.Room) bool { return room == p.in })
	mine, has := from.Ranges[p.in]
	if !has || len(others) == 0 {
		return from, false
	}
	other := pick(r.d, others)
	to := allocator.Layout{Boundary: from.Boundary, Ranges: make(map[allocator.Room]allocator.Range)}
	for room, has := range from.Ranges {
		to.Ranges[room] = has
	}
	to.Ranges[p.in], to.Ranges[other] = from.Ranges[other], mine
	return to, true
}

// deny makes etcd's roles bind the instances of p's room: they may write no mark of another room.
func (w *world) deny(p *process) {
	w.log("--- etcd binds room %s to its role", p.in)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.denied[p.in] = true
}

// denied is a mark that etcd's roles did not let a process raise.
type denied struct {
	tag   allocator.Tag
	next  int64
	epoch string
}

// deniedTo notes the marks that a transaction was not allowed to raise. Only such a one is ever
// refused: the roles suffice for all else.
func (l *link) deniedTo(txn store.Txn, key string) {
	l.w.count("marks that roles refused", 1)
	for _, op := range txn.Then {
		if op.Put == nil || !strings.HasPrefix(op.Put.Key, markKeys) {
			l.w.Errorf("%s: the role %s lacks a right: to write %s", l.name, l.role.Name, key)
			return
		}
		_, tag, _ := strings.Cut(strings.TrimPrefix(op.Put.Key, markKeys), "/")
		var mark markRecord
		if err := json.Unmarshal(op.Put.Value, &mark); err != nil {
			l.w.Errorf("%s writes a mark: %v", l.name, err)
		}
		l.mu.Lock()
		l.mu.denied = append(l.mu.denied, denied{allocator.Tag(tag), mark.Next, epochName(epochOf(txn))})
		l.mu.Unlock()
	}
}

// checkDenied checks a lease of a process that was not allowed to raise marks over its earlier
// leases. It leases nothing in such an epoch until the marks have come to reach over those.
func (l *link) checkDenied(a *asked) {
	l.mu.Lock()
	all := l.mu.denied
	l.mu.Unlock()
	for _, d := range all {
		if !a.leases || a.lease.lost != "" || a.lease.epoch != d.epoch {
			continue
		}
		for _, room := range l.w.everRooms() {
			if reach := l.w.reach(d.tag, room); reach < d.next {
				l.w.Errorf("%s, tag %s: it leased, though a recover left it out with IDs of tag %s up to %d, "+
					"and room %s may lease from %d on",
					l.name, a.lease.tag, d.tag, d.next, room, reach)
			}
		}
	}
}

// everRooms returns all rooms that ever had a range, by the layout in etcd.
func (w *world) everRooms() []allocator.Room {
	return stored[struct{ Ever []allocator.Room }](w, "layout").Ever
}

// refuses returns a key that etcd's role does not let a process write in a transaction, empty if
// it may do all of it.
func (l *link) refuses(txn store.Txn) string {
	l.w.mu.Lock()
	bound := l.role.Name != "" && (l.w.roles || l.w.mu.denied[l.in])
	l.w.mu.Unlock()
	if !bound {
		return ""
	}
	return ledgertest.Denied(l.role, txn)
}

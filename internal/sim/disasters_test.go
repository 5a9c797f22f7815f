package sim_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// powerFailure makes all processes crash at once, and sometimes loses some of their disks. They
// start again one by one.
func (w *world) powerFailure(d dice) bool {
	w.log("--- power fails")
	disks := d.chance(3)
	for _, s := range slices.Concat(w.slots, w.consoles) {
		if p := s.running(); p != nil {
			s.stayDown(d.between(0, 5*time.Second))
			p.forgets.Store(disks && d.chance(2))
			p.crash()
		}
	}
	return true
}

// backUpAndRestore takes a backup, or restores the last one. before runs just before that, and
// returns false if all has healed since. Mostly an operator recovers at once.
func backUpAndRestore(before func(w *world, d dice) bool) func(w *world, d dice) {
	return func(w *world, d dice) {
		switch d.IntN(6) {
		case 0, 1:
			w.backUp(d)
		case 2, 3:
			if !before(w, d) {
				return
			}
			w.restore(d)
			if !d.chance(4) {
				w.recoverSoon()
			}
		}
	}
}

// cutOff cuts off one process. Perhaps the operator who recovers cannot reach it either.
func (w *world) cutOff(d dice) bool {
	if p := w.victim(d, w.slots); p != nil && d.chance(2) {
		p.link.stall(w.log1("--- %s is cut off for %v", p.id, d.between(time.Second, 20*time.Second)))
	}
	return true
}

// answersUnderWay delays answers of the etcd that is restored until after the restore.
func (w *world) answersUnderWay(d dice) bool {
	for _, s := range w.slots {
		if p := s.running(); p != nil && !d.chance(3) {
			p.link.mute(w.log1("--- %s gets no answer for %v", p.id, d.between(time.Second, 1900*time.Millisecond)))
		}
	}
	return w.sleep(w.heal, d.between(time.Millisecond, 500*time.Millisecond), w.lane())
}

// misleadClock sets the clock of a console's or an instance's machine hours forwards or back, or a
// day, until it starts anew.
func (w *world) misleadClock(d dice) {
	if p := w.victim(d, pick(d, [][]*slot{w.consoles, w.slots})); p != nil {
		ahead := pick(d, []time.Duration{24 * time.Hour, 2 * time.Hour, -8 * time.Hour, -24 * time.Hour})
		p.link.ahead.Store(int64(w.log1("--- the clock of %s is ahead by %v", p.id, ahead)))
	}
}

// latest returns the latest of some times.
func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// mute makes the link carry requests but no answers for a while.
func (l *link) mute(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.muted = time.Now().Add(d)
}

// heldAnd returns how long the link passes on no watch from now on, and the latency after that;
// 0 if it does.
func (l *link) heldAnd(d dice) time.Duration {
	if wait := l.held(true); wait > 0 {
		return wait + l.latency(d)
	}
	return 0
}

// back calls f after the way back.
func (l *link) back(d dice, f func()) {
	l.after(d, func() {
		l.mu.Lock()
		wait := time.Until(l.mu.muted)
		l.mu.Unlock()
		if wait > 0 && !l.w.healed.Load() {
			time.AfterFunc(align(wait+l.latency(d), l.lane), f)
			return
		}
		f()
	})
}

// lose makes the link lead to another etcd cluster for a while: one with a copy of the
// cluster's keys, restored from a backup for a rehearsal.
func (l *link) lose(d time.Duration) {
	other := l.w.rehearse()
	time.AfterFunc(d, other.Break) // and the watches return
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.lost = time.Now().Add(d)
}

// etcd returns the etcd that the link leads to.
func (l *link) etcd() *ledgertest.Fake {
	l.mu.Lock()
	lost := time.Now().Before(l.mu.lost)
	l.mu.Unlock()
	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if lost && !w.healed.Load() {
		w.count1("requests to another etcd")
		return w.mu.rehearsal
	}
	return w.mem
}

// rehearse makes that other cluster. Its raft log is new, or as long as that of a cluster that
// has run for long.
func (w *world) rehearse() *ledgertest.Fake {
	d := w.dice(fmt.Sprint("rehearsal ", time.Since(w.began)))
	other := w.mem.Copy(ledgertest.ClusterID+3, pick(d, []uint64{0, 1 << 40}))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.rehearsal = other
	return other
}

// faults returns the names of all faults, of transactions and others.
func faults() (names []string) {
	for _, fate := range ledgertest.Fates() {
		if fate != ledgertest.Done {
			names = append(names, fate.String())
		}
	}
	for _, t := range slices.Concat(troubles(), disasters(), timeTroubles()) {
		names = append(names, t.name)
	}
	return append(names, journalsRequired, timeTags, string(fleeting), string(yearly), string(orderedTag),
		string(clusterTag), string(skewTag))
}

// knownFault refuses an unknown name of a fault.
func knownFault(name string) error {
	if name == "" || slices.Contains(faults(), name) {
		return nil
	}
	return fmt.Errorf("-with %q: there is no such fault; there are: %s", name, strings.Join(faults(), "; "))
}

package sim_test

import (
	"bytes"
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// removePod makes an instance crash and come back with its journal, once or more often. Then it
// leaves in good order, and is taken away with its disk. Nobody can be asked for its leases, or
// for those of the processes that crashed: a recover must find them in etcd, or say that they are
// missing. See marginFor.
func (w *world) removePod(d dice) {
	lane, s := w.lane(), pick(d, w.slots)
	p := s.running()
	if p == nil || p.journal == "" || !p.runs() {
		return
	}
	for range 1 + d.IntN(3) {
		w.log("--- %s crashes, and comes back with its disk", p.id)
		was := p
		was.crash()
		if !w.until(func() bool { p = s.running(); return p != nil && p != was && p.runs() }, lane) ||
			!w.sleep(w.heal, d.between(0, 3*time.Second), lane) {
			return
		}
	}
	w.log("--- %s is taken away", p.id)
	s.stayDown(d.between(time.Second, time.Minute))
	p.forgets.Store(true)
	p.stop()
	<-p.gone
	if !p.link.leftAt().IsZero() {
		w.count("pods that crashed, left in good order and were taken away", 1)
	}
	if !w.sleep(w.heal, d.between(0, 15*time.Second), lane) || !w.sound() {
		return
	}
	if d.chance(2) {
		w.backUp(d)
		w.sleep(w.heal, d.between(0, 3*time.Second), lane)
	}
	if w.mayRestore() && w.sound() {
		w.restore(d)
		w.recoverSoon()
	}
}

// leaves notes that a transaction which was done says that its process left in good order.
func (l *link) leaves(txn store.Txn) {
	if !slices.ContainsFunc(txn.Then, func(op store.Op) bool {
		if op.Put == nil || keys.KindOf(op.Put.Key) != record.Registrations ||
			!bytes.Contains(op.Put.Value, []byte(`"leaving":true`)) {
			return false
		}
		now, _ := l.w.mem.Value(op.Put.Key)
		return bytes.Equal(now, op.Put.Value)
	}) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.left = time.Now()
}

// leftAt returns when etcd had it that the process left in good order, zero if it did not.
func (l *link) leftAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.left
}

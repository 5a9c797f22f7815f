package sim_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

const rollbackOfARecover = "rollback to before a recover"

// disasters are troubles that one seed in five has, whatever other troubles it has.
func disasters() []trouble {
	return []trouble{
		{"rehearsal of a recover", (*world).rehearseRecover},
		{"etcd empty for a while", (*world).empty},
		{rollbackOfARecover, (*world).rollBackRecover},
		{wrongClock, (*world).misleadClock},
		{"values of a newer version", (*world).newer},
		{"hundreds of instances gone", (*world).crowdGone},
		{"recover without an instance whose range is swapped", recoverWithout(true, func(*world, *process) {})},
		{"pod that crashed is taken away", (*world).removePod},
		{"two recovers in a row", (*world).recoverTwice},
		{"recover without an instance that may raise no other room's mark", recoverWithout(false, (*world).deny)},
	}
}

// rehearseRecover recovers a copy of etcd, while the addresses in it are those of running
// instances: the rehearsal must bar none of them.
func (w *world) rehearseRecover(d dice) {
	w.log("--- somebody rehearses a recover on a copy")
	id := pick(d, []uint64{w.answers(), ledgertest.ClusterID + 4})
	l, err := ledger.New(w.mem.Copy(id, 0).Open(), ledger.DefaultConfig())
	if err != nil {
		panic(err) // the default is valid
	}
	lane := w.lane()
	link := w.link(fmt.Sprint("rehearsal#", lane), lane)
	all := d.chance(2)
	w.actors.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		r := &recovering{w: w, link: link, cancel: cancel, answered: make(map[string]bool)}
		err := r.rehearse(ctx, l, all)
		w.log("--- %s: %v", link.name, kind(err))
		if err != nil && !w.expected(err) {
			w.Errorf("%s: %v", link.name, err)
		}
	})
}

// rehearse recovers in the ledger of a copy. It goes on without every instance, or without
// those that a dry run misses.
func (r *recovering) rehearse(ctx context.Context, l *ledger.Ledger, all bool) error {
	cfg := recovery.Config{Actor: "simulation", Layout: recovery.LayoutStored}
	cfg.Ask = func(ctx context.Context, s record.SeenInstance, q record.Question,
		use record.UseMarks) (record.Memory, error) {
		m, err := r.ask(ctx, s, q, use)
		r.w.count("instances asked by a rehearsal", 1)
		if err == nil && m.Barred {
			r.w.Errorf("%s is barred by a rehearsal of recover on a copy", m.ID())
		}
		return m, err
	}
	report, err := recovery.Run(ctx, l, cfg) // is refused if an operator has to decide more
	if err != nil && allocator.KindOf(err) != allocator.Refused {
		return err
	}
	cfg.Apply, cfg.Margin = true, new(int64)
	for _, m := range report.Missing {
		cfg.Without = append(cfg.Without, m.ID)
	}
	if all {
		cfg.Without = append(cfg.Without, report.Answered...)
	}
	if _, err = recovery.Run(ctx, l, cfg); err == nil {
		r.w.count("rehearsals that went through", 1)
	}
	return err
}

// empty removes etcd's data for a while. Then the data comes back as it was, or from a backup.
func (w *world) empty(d dice) {
	away := w.log1("--- %s is empty for %v", "etcd", d.between(100*time.Millisecond, 15*time.Second))
	putBack := w.mem.Empty(pick(d, []uint64{ledgertest.ClusterID, ledgertest.ClusterID + 5}))
	w.sleep(w.heal, away, w.lane())
	w.log("--- etcd's data is back")
	putBack()
	if d.chance(2) && !w.healed.Load() {
		if w.mayRestore() {
			w.count("restores of an etcd that was empty", 1)
		}
		w.restore(d)
	}
}

// rollBackRecover makes an operator recover. Then all processes start anew without journals,
// and raft's own data goes back to before the recover. No process has ever seen the epoch of
// that time, and none may lease under it.
func (w *world) rollBackRecover(d dice) {
	lane := w.lane()
	if w.required || !w.sound() {
		return
	}
	w.backUp(d)
	w.mu.Lock()
	backup, saved := w.mu.past.backup, w.mu.past.saved
	w.mu.Unlock()
	if backup == 0 {
		return
	}
	w.halt(d)
	w.recoverSoon()
	if !w.until(w.sound, lane) {
		return
	}
	w.log("--- all start anew, with no journals")
	slots := slices.Concat(w.slots, w.consoles)
	w.mu.Lock()
	all := slices.Clone(w.mu.processes)
	w.mu.Unlock()
	for _, p := range all {
		p.forgets.Store(true)
		p.crash()
	}
	for _, p := range all {
		<-p.gone
	}
	serving := func() bool {
		return !slices.ContainsFunc(w.slots, func(s *slot) bool { p := s.running(); return p == nil || !p.runs() })
	}
	if !w.until(serving, lane) || !w.sleep(w.heal, d.between(time.Millisecond, 5*time.Second), lane) ||
		!serving() || !w.sound() {
		return
	}
	for _, s := range slots { // a process that starts now knows nothing
		s.stayDown(5 * time.Minute)
	}
	before := w.nexts()
	w.mu.Lock()
	w.remember()
	w.mu.Unlock()
	w.log("--- raft's own data goes back to revision %d, %v ago, before a recover", backup, time.Since(saved))
	w.forgets(saved)
	w.mem.RollBack(backup, pick(d, []int64{0, 10_000}))
	w.count("rollbacks to before a recover", 1)
	w.rolledBack(before, w.nexts())
	w.until(w.halted, lane)
	for _, s := range slots {
		s.stayDown(d.between(0, 5*time.Second))
	}
}

// until waits until a condition holds. It returns false if all heals first.
func (w *world) until(so func() bool, lane int) bool {
	for !so() {
		if !w.sleep(w.heal, 100*time.Millisecond, lane) {
			return false
		}
	}
	return true
}

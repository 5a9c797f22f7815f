package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// trouble is a fault of something other than a single transaction. A new kind is a new row.
type trouble struct {
	name  string
	bring func(w *world, d dice)
}

func (t trouble) String() string { return t.name }

func troubles() []trouble {
	return []trouble{
		{"crash", func(w *world, d dice) { w.crash(d, w.slots) }},
		{"crash of a console", func(w *world, d dice) { w.crash(d, w.consoles) }},
		{"clean stop", func(w *world, d dice) {
			if p := w.victim(d, w.slots); p != nil {
				w.log("--- %s is told to stop", p.id)
				p.stop()
			}
		}},
		{"stall", func(w *world, d dice) {
			if p := w.victim(d, slices.Concat(w.slots, w.consoles)); p != nil {
				p.link.stall(w.log1("--- %s is cut off for %v", p.id, d.between(100*time.Millisecond, 25*time.Second)))
			}
		}},
		{"deaf", func(w *world, d dice) {
			if p := w.victim(d, w.slots); p != nil {
				p.link.deafen(w.log1("--- %s hears no watch for %v", p.id, d.between(time.Second, 25*time.Second)))
			}
		}},
		{"clone", func(w *world, d dice) {
			if p := w.victim(d, w.slots); p != nil {
				w.clone(p, w.log1("--- %s has a double for %v", p.id, d.between(time.Second, 20*time.Second)))
			}
		}},
		{"compaction", func(w *world, d dice) {
			w.log("--- compaction")
			w.mem.Compact()
			w.mem.Break()
		}},
		{"backup and restore", backUpAndRestore((*world).cutOff)},
		{"restore after a power failure", backUpAndRestore((*world).powerFailure)},
		{"restore with answers under way", backUpAndRestore((*world).answersUnderWay)},
		{"power failure", func(w *world, d dice) {
			if d.chance(3) {
				w.powerFailure(d)
			}
		}},
		{"answers late", func(w *world, d dice) {
			if p := w.victim(d, w.slots); p != nil {
				p.link.mute(w.log1("--- %s gets no answer for %v", p.id,
					d.between(100*time.Millisecond, 3*time.Second)))
			}
		}},
		{"other etcd", func(w *world, d dice) {
			if p := w.victim(d, slices.Concat(w.slots, w.consoles)); p != nil {
				p.link.lose(w.log1("--- %s is led to another etcd for %v", p.id,
					d.between(100*time.Millisecond, 15*time.Second)))
				w.mem.Break()
			}
		}},
		{"fence", func(w *world, d dice) {
			if d.chance(5) {
				w.halt(d)
			}
		}},
		{"broken watches", func(w *world, d dice) {
			w.log("--- all watches break")
			w.mem.Break()
		}},
	}
}

// log1 logs a duration and returns it.
func (w *world) log1(format, id string, d time.Duration) time.Duration {
	w.log(format, id, d)
	return d
}

// chooseFaults turns on some of the faults: none in one seed of ten.
func (w *world) chooseFaults() {
	d := w.first
	w.rate, w.strict = pick(d, []int{5, 20, 100}), true
	w.roles = w.dice("roles").chance(3)
	w.required = w.dice(journalsRequired).chance(5) || *with == journalsRequired
	w.timed, w.wild = w.dice(timeTags).chance(4) || withTimes(), w.dice("wild clocks").chance(2)
	if d.chance(10) && *with == "" {
		w.journals = ""
		return
	}
	for _, fate := range ledgertest.Fates() {
		if fate != ledgertest.Done && (d.chance(3) || fate.String() == *with) {
			w.fates = append(w.fates, fate)
		}
	}
	w.slow = pick(d, []int{0, 0, 5, 50})
	if d.chance(2) && *with != journalsRequired {
		w.journals = ""
	}
	for _, t := range troubles() {
		if d.chance(3) || t.name == *with {
			w.troubles = append(w.troubles, t)
		}
	}
	for _, t := range disasters() {
		if w.dice("has "+t.name).chance(5) || t.name == *with {
			w.troubles = append(w.troubles, t)
			w.disasters++
		}
	}
	if slices.ContainsFunc(w.troubles, func(t trouble) bool {
		return strings.Contains(t.name, "restore") || strings.HasPrefix(t.name, "recover without") ||
			t.name == rollbackOfARecover
	}) {
		w.length += 15 * time.Second
	}
	w.strict = !slices.Contains(w.fates, ledgertest.StaleRead)
}

// fate draws the fate of a transaction.
func (w *world) fate(d dice, txn store.Txn) ledgertest.Fate {
	if len(w.fates) == 0 || !d.chance(w.rate) || w.healed.Load() {
		return ledgertest.Fate{}
	}
	fate := ledgertest.Fate{Name: pick(d, w.fates), N: 1 + d.IntN(8)}
	if i := slices.IndexFunc(w.fates, func(n ledgertest.FateName) bool {
		return n.String() == *with
	}); i >= 0 && d.chance(2) {
		if fate.Name = w.fates[i]; fate.Name == ledgertest.StaleRead {
			fate.N = 1 + d.IntN(80) // and from further behind
		}
	}
	if fate.Name == ledgertest.StaleRead && ledgertest.Writes(txn) {
		return ledgertest.Fate{}
	}
	return fate
}

const failedButApplied = "failed but applied"

// met counts a fate, and whether the transaction failed and yet happened.
func (w *world) met(fate ledgertest.Fate, txn store.Txn, applied bool) {
	w.count("transactions", 1)
	if fate.Name != ledgertest.Done {
		w.count("fate: "+fate.Name.String(), 1)
	}
	if applied && ledgertest.Writes(txn) {
		w.count(failedButApplied, 1)
	}
}

// trouble makes trouble until all heals. Disasters come in between, and make no other trouble
// rarer.
func (w *world) trouble(lane int) {
	d, most := w.dice("trouble"), 4*time.Second
	if n := len(w.troubles); n > w.disasters {
		most = most * time.Duration(n-w.disasters) / time.Duration(n)
	}
	for w.sleep(w.heal, d.between(100*time.Millisecond, most), lane) {
		if len(w.troubles) > 0 {
			t := pick(d, w.troubles)
			if i := slices.IndexFunc(w.troubles, func(t trouble) bool {
				return t.name == *with
			}); i >= 0 && d.chance(2) {
				t = w.troubles[i]
			}
			w.count("trouble: "+t.name, 1)
			t.bring(w, d)
		}
	}
}

// victim picks a process that runs, nil if that slot is empty.
func (w *world) victim(d dice, slots []*slot) *process { return pick(d, slots).running() }

func (w *world) crash(d dice, slots []*slot) {
	s := pick(d, slots)
	if p := s.running(); p != nil {
		s.stayDown(w.log1("--- %s crashes and stays down for %v", p.id, d.between(0, 30*time.Second)))
		p.forgets.Store(d.chance(3))
		p.crash()
	}
}

// clone runs a second process under p's name for a while.
func (w *world) clone(p *process, d time.Duration) {
	lane := w.lane()
	id := fmt.Sprint(p.id, "/double-", lane)
	w.actors.Go(func() {
		double := p.again(id)
		if w.sleep(double.gone, d, lane) {
			double.crash()
			<-double.gone
		}
		w.bury(double)
	})
}

// calm is how long after healing every process has read etcd.
const calm = 20 * time.Second

// settle waits, after all has healed, until everything works again.
func (w *world) settle() {
	lane := w.lane()
	w.repair() // of what a restore brought back
	w.sleep(nil, calm, lane)
	for within := time.Now().Add(5 * time.Minute); w.forgetful() || w.halted() ||
		w.moved(); w.sleep(nil, time.Second, lane) {
		if time.Now().After(within) {
			w.Errorf("leasing is halted still, or in another etcd cluster, after five minutes of recovering")
			return
		}
	}
	w.admin = admin.New(w.fresh(), admin.DefaultConfig())
	w.setClocks()
	w.lastLife()
	defer func() {
		if w.halted() {
			w.Errorf("leasing was halted after a recover, without a fault")
		}
	}()
	for _, tag := range w.tags {
		w.agree(tag)
	}
	for within := time.Now().Add(10 * time.Minute); !w.migrationsEnded(); w.sleep(nil, time.Second, lane) {
		if time.Now().After(within) {
			w.Errorf("a migration has not ended within ten minutes")
			return
		}
	}
	record, err := w.admin.Ledger.Refresh(context.Background())
	if err != nil {
		w.Errorf("layout: %v", err)
	}
	if slices.Contains(w.tags, clusterTag) {
		if err := w.moveHome(context.Background(), w.dice("last home"), record.Layout.Rooms(), true); err != nil {
			w.Errorf("home: %v", err)
		}
	}
	settled := time.Now()
	for _, s := range w.slots {
		for _, tag := range w.tags {
			if slices.Contains(w.timers, s) {
				continue
			}
			// A margin may move a tag that begins near the end of the space to its end: recover
			// names it.
			if w.ended(tag) {
				w.count("tags that margins ended", 1)
			} else if _, has := record.Layout.Ranges[s.room]; has {
				w.issuesAgain(s, tag, settled, lane)
			}
		}
	}
	w.settleTimes(lane)
	w.sleep(nil, time.Second, lane) // so that the end comes at a time of its own
}

// issuesAgain waits until a slot's process has issued an ID since everything healed.
func (w *world) issuesAgain(s *slot, tag allocator.Tag, since time.Time, lane int) bool {
	for within := time.Now().Add(time.Minute); time.Now().Before(within); w.sleep(nil, 500*time.Millisecond, lane) {
		w.mu.Lock()
		again := w.mu.latest[string(tag)+" "+s.name].After(since)
		w.mu.Unlock()
		if again {
			w.count("issued again", 1)
			return true
		}
	}
	w.Errorf("%s has issued no ID of tag %s within a minute after all had healed", s.name, tag)
	return false
}

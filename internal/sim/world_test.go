package sim_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/room"
)

// world is one run: all that its seed makes.
type world struct {
	seed    uint64
	script  []byte // replaces the seed, if there is one
	first   dice   // for the beginning alone
	verbose func(line string)
	began   time.Time

	mem   *ledgertest.Fake
	admin *admin.Admin // without faults
	rooms []allocator.Room
	tags  []allocator.Tag

	fates      []ledgertest.FateName // the fates that transactions may have
	rate       int                   // one fate in so many transactions
	slow       int                   // one message in so many is slow; 0 for none
	troubles   []trouble             // the troubles of processes
	disasters  int                   // how many of these are disasters
	length     time.Duration         // until all heals
	hold       time.Duration
	journals   string             // the directory of the instances' journals; empty for none
	required   bool               // the cluster requires them
	mirrorDir  string             // of the consoles' mirrors; empty until one has a file
	mirrorless bool               // consoles keep no mirrors
	strict     bool               // the hold of strict tags can be relied on
	life       record.TagSettings // of the fleeting tag's first life
	roles      bool               // etcd has a user with a role for each room, for consoles and for operators

	fit func(cfg *room.Config, l *link) // nil, or changes a room's instances, which nothing calls by itself then

	timed  bool         // the cluster has time-ordered IDs
	lends  bool         // its instances lend workers to callers
	wild   bool         // with clocks that are further off than clocks may be
	times  []timeTag    // the tags of these, empty for none
	timers []*slot      // the instances of these
	slept  atomic.Int64 // how long all machines slept, in ns: only wall clocks went on

	lanes    atomic.Int64
	slots    []*slot
	consoles []*slot
	actors   sync.WaitGroup
	healed   atomic.Bool   // no more faults
	heal     chan struct{} // closed when all heals
	end      chan struct{} // closed when all must stop
	hurry    chan struct{} // each value makes an operator recover at once

	mu struct {
		sync.Mutex
		lines      []string // of the transcript, of one instant
		instant    time.Time
		problems   []string
		past       past
		rehearsal  *ledgertest.Fake // another etcd cluster
		processes  []*process       // started instances
		counts     map[string]int
		changes    []change // of the layout, by version, as they are in the store
		forgotten  []forgottenLayout
		ever       []change                   // all layouts that ever were
		timeline   []change                   // as they came into force: again if etcd went back to one
		waived     map[record.InstanceID]bool // that a migration went on without
		calls      []answered
		issued     map[allocator.Tag]map[int64]int // the calls that issued each ID
		passed     map[taggedID]passed             // of ordered tags, by the first ID of an answer
		quiet      map[string]time.Time            // no caller calls an instance before, by name
		newer      map[string]bool                 // keys that a newer version wrote, with a field of its own
		unreadable map[string]bool                 // whole keys that it wrote in a format of its own
		beginning  []beginning                     // that were not seen to be done
		without    *leftOut                        // the instance that the next recover goes on without, nil for none
		denied     map[allocator.Room]bool         // rooms whose instances have users with roles in etcd
		tokens     map[string]*link                // of the processes that kept IDs
		latest     map[string]time.Time            // when an instance, by tag and name, last issued an ID

		ticks     map[allocator.Tag]map[int64]timedID // time-ordered IDs that were issued
		machines  map[int64]tenure                    // machine IDs, by number
		began     time.Time                           // of the epoch in force
		notBefore int64                               // of the epoch in force
		leftOut   []timedRecover
	}
}

// change is a layout, the time of its commit, and the addresses of the processes that were
// registered then.
type change struct {
	layout     allocator.Layout
	at         time.Time
	registered map[string]bool
	wentBack   bool // etcd went back to it without a move
}

// forgottenLayout is a layout that etcd forgot, with the end of its time in force: another
// replaced it, or etcd went back.
type forgottenLayout struct {
	change

	until time.Time
}

const keys = record.Keys("/march/default/")

// strictTag is strict from the first to the last; the others may become so.
const strictTag = allocator.Tag("strict")

func newWorld(seed uint64, script []byte, journals string, verbose func(string)) *world {
	// The time in a bubble begins in 2000, and versions of recovers count the seconds since
	// 2026: the world begins in 2027.
	time.Sleep(time.Until(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)))
	return newWorldNow(seed, script, journals, verbose)
}

func newWorldNow(seed uint64, script []byte, journals string, verbose func(string)) *world {
	w := &world{
		seed: seed, script: script, verbose: verbose, began: time.Now(), journals: journals,
		heal: make(chan struct{}), end: make(chan struct{}), hurry: make(chan struct{}, 1),
	}
	w.first = w.dice("world")
	w.mu.counts = make(map[string]int)
	w.mu.past.highest = make(map[allocator.Tag]int64)
	w.mu.past.heard, w.mu.past.rolled = make(map[string]map[string]bool), make(map[string]map[allocator.Tag]bool)
	w.mu.past.left = make(map[record.InstanceID]time.Time)
	w.mu.latest, w.mu.quiet = make(map[string]time.Time), make(map[string]time.Time)
	w.mu.denied, w.mu.waived = make(map[allocator.Room]bool), make(map[record.InstanceID]bool)
	w.mu.newer, w.mu.unreadable = make(map[string]bool), make(map[string]bool)
	w.mu.issued, w.mu.passed = make(map[allocator.Tag]map[int64]int), make(map[taggedID]passed)
	w.mu.machines, w.mu.tokens = make(map[int64]tenure), make(map[string]*link)
	w.mu.ticks = make(map[allocator.Tag]map[int64]timedID)
	w.mem = ledgertest.NewFake(w)
	w.rooms = []allocator.Room{"a", "b", "c"}[:2+w.first.IntN(2)]
	w.tags = []allocator.Tag{"order", "bounded", strictTag}
	for _, tag := range []allocator.Tag{fleeting, yearly, orderedTag, clusterTag, skewTag} {
		if w.dice("has "+string(tag)).chance(3) || *with == string(tag) || *with == wrongClock && tag == yearly {
			w.tags = append(w.tags, tag)
		}
	}
	for _, tag := range w.tags {
		w.mu.issued[tag] = make(map[int64]int)
	}
	w.length = w.first.between(10*time.Second, 35*time.Second)
	w.hold = pick(w.first, []time.Duration{time.Second, 4 * time.Second, 10 * time.Second})
	w.lends, w.mirrorless = true, w.dice("mirrors").chance(2)
	w.chooseFaults()
	return w
}

// Helper, Errorf and Fatalf make a world a ledgertest.TB.
func (w *world) Helper() {}

// Errorf notes a problem.
func (w *world) Errorf(format string, args ...any) {
	problem := fmt.Sprintf(format, args...)
	w.log("PROBLEM %s", problem)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.problems) < 20 {
		w.mu.problems = append(w.mu.problems, fmt.Sprintf("at %v: %s", time.Since(w.began), problem))
	}
}

// Fatalf is Errorf: a run always goes to its end.
func (w *world) Fatalf(format string, args ...any) { w.Errorf(format, args...) }

func (w *world) count(what string, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.counts[what] += n
}

// count1 is count for a caller that holds the lock.
func (w *world) count1(what string) { w.mu.counts[what]++ }

func (w *world) lane() int { return int(w.lanes.Add(1)) }

// sleep sleeps for about d, and returns false if until is closed first.
func (w *world) sleep(until <-chan struct{}, d time.Duration, lane int) bool {
	timer := time.NewTimer(align(d, lane))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-until:
		return false
	}
}

// run runs the world. It must be called in a bubble.
func (w *world) run() {
	w.begin()
	var busy sync.WaitGroup // goroutines that end when all heals
	lane := w.lane()        // before a goroutine runs, as lanes are given out in order
	busy.Go(func() { w.trouble(lane) })
	for _, slot := range w.consoles {
		lane := w.lane()
		busy.Go(func() { w.operate(slot, lane) })
	}
	if len(w.times) > 0 {
		lane := w.lane()
		busy.Go(func() { w.timeTrouble(lane) })
	}
	recovering := w.lane()
	w.actors.Go(func() { w.recoveries(recovering) })
	if w.required {
		rolling := w.lane()
		busy.Go(func() { w.rollbacks(rolling) })
		confirming := w.lane()
		w.actors.Go(func() { w.confirmations(confirming) })
	}
	w.sleep(nil, w.length, 0)
	w.log("--- all heals")
	w.healed.Store(true)
	close(w.heal)
	busy.Wait()
	w.mem.Arrive()
	w.settle()
	close(w.end)
	w.actors.Wait()
	w.mem.Arrive()
	w.checkAll()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.print()
}

// begin makes the cluster and starts everything.
func (w *world) begin() {
	ctx := context.Background()
	if !w.makeCluster(ctx, w.first.layout(w.rooms), admin.DefaultConfig()) {
		return
	}
	if w.required {
		w.require(ctx)
	}
	w.log("--- seed %d: hold %v; fates %v once in %d; %v", w.seed, w.hold, w.fates, w.rate, w.troubles)
	for _, tag := range w.tags {
		w.createTag(ctx, tag, w.settings(tag))
	}
	w.keepConsoles()
	for _, room := range w.rooms {
		w.keepRoom(room, 1+w.first.IntN(3))
	}
	w.beginTimes(ctx)
}

// makeCluster makes the cluster. It returns false if it cannot.
func (w *world) makeCluster(ctx context.Context, layout allocator.Layout, cfg admin.Config) bool {
	l, err := ledger.New(w.mem.Open(), ledger.DefaultConfig())
	if err != nil {
		panic(err) // the default is valid
	}
	w.admin = admin.New(l, cfg)
	first, err := w.admin.Init(ctx, layout, "simulation")
	if err != nil {
		w.Errorf("init: %v", err)
		return false
	}
	w.log("--- %s", text(first.Layout))
	w.actors.Go(w.observe)
	return true
}

func (w *world) createTag(ctx context.Context, tag allocator.Tag, settings record.TagSettings) {
	if _, err := w.admin.CreateTag(ctx, tag, settings, "simulation"); err != nil {
		w.Errorf("create tag %s: %v", tag, err)
	}
}

func (w *world) keepConsoles() {
	w.makeMirrorDir()
	for i := range 2 {
		w.consoles = append(w.consoles, w.keep("", fmt.Sprint("console-", i+1), w.startConsole))
	}
}

// keepRoom keeps instances of a room running.
func (w *world) keepRoom(room allocator.Room, n int) {
	for i := range n {
		name := fmt.Sprintf("%s%d", room, i+1)
		w.slots = append(w.slots, w.keep(room, name, func(id string) *process {
			return w.startRoom(room, allocator.Instance(name), id)
		}))
	}
}

func (w *world) settings(tag allocator.Tag) record.TagSettings {
	d := w.first
	s := record.DefaultTag()
	s.Start = pick(d, []int64{0, 1, 1, 1, 1000, allocator.MaxID - 1<<50})
	s.MinStep = pick(d, []int64{1, 3, 10, 50})
	s.MaxStep = s.MinStep * pick(d, []int64{1, 10, 100})
	s.Reserve = pick(d, []record.Duration{"1s", "5s", "1m0s"})
	s.StrictRetract = tag == strictTag
	switch tag {
	case yearly:
		return w.yearly(s)
	case fleeting:
		w.life = s
	case skewTag:
		s.MaxSkew = pick(w.dice("skew"), []int64{50, 500, 5000})
	case orderedTag:
		s.StrictOrder = record.OrderRoom
		s.TenureHold = pick(w.dice("tenure hold"), []record.Duration{"1s", "3s", "10s"})
		s.MaxSkew = pick(w.dice("ordered skew"), []int64{0, 50, 500})
	case clusterTag:
		d := w.dice("home")
		s.StrictOrder, s.TenureHold = record.OrderCluster, pick(d, []record.Duration{"1s", "3s", "10s"})
		layout, _ := w.admin.Ledger.Layout()
		s.Home = pick(d, layout.Layout.Rooms())
	}
	if tag == "bounded" {
		s.Limit = s.Start + pick(d, []int64{100, 2000, 100_000})
		s.MaxSkew = pick(d, []int64{0, 1, 50})
		s.MaxJump = pick(d, []int64{50, 10_000})
	}
	return s
}

// observe follows the layouts as they are committed, without delay.
func (w *world) observe() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	const layouts = "/march/default/layouts/"
	changes := w.mem.Open().Watch(ctx, []store.Interval{{Key: layouts, End: layouts + "\xff"}}, 1)
	for {
		select {
		case <-w.end:
			return
		case c := <-changes:
			if c.Err != nil { // broken on purpose, or compacted: watch again from now on, and read what was missed
				changes = w.mem.Open().Watch(ctx, []store.Interval{{Key: layouts, End: layouts + "\xff"}},
					w.mem.Revision()+1)
			}
			w.readLayouts()
		}
	}
}

// stored returns a value in the store, read past the ledger, so that neither a halt nor another
// etcd cluster matters.
func stored[T any](w *world, key string) (v T) {
	if value, ok := w.mem.Value("/march/default/" + key); ok {
		if err := json.Unmarshal(value, &v); err != nil {
			w.Errorf("%s: %v", key, err)
		}
	}
	return v
}

// keys returns the keys below a prefix.
func (w *world) keys(below string) (keys []string) {
	for _, key := range w.mem.Keys("/march/default/" + below) {
		keys = append(keys, strings.TrimPrefix(key, "/march/default/"))
	}
	return keys
}

// readLayouts stores layouts that are new, or in force again.
func (w *world) readLayouts() {
	if w.pinned() == 0 { // etcd's data is away
		return
	}
	var now []allocator.Layout
	for _, key := range w.keys("layouts/") {
		v := stored[struct {
			Version, Boundary int64 `json:",string"`
			Rooms             map[allocator.Room]struct {
				Lower, Upper int64 `json:",string"`
			}
			Reserved map[allocator.Room]allocator.Range
		}](w, key)
		l := allocator.Layout{Version: v.Version, Boundary: v.Boundary,
			Ranges: make(map[allocator.Room]allocator.Range), Reserved: v.Reserved}
		for room, r := range v.Rooms {
			l.Ranges[room] = allocator.Range(r)
		}
		now = append(now, l)
	}
	registered := make(map[string]bool)
	for _, key := range w.keys("rooms/") {
		registered[stored[struct{ Address string }](w, key).Address] = true
	}
	w.mu.Lock()
	var fresh []change
	for i, l := range now {
		if i < len(w.mu.changes) && w.mu.changes[i].layout.Version == l.Version && w.mu.changes[i].layout.Equal(l) {
			continue
		}
		w.forgetLayouts(i)
		w.mu.changes = append(w.mu.changes, change{layout: l, at: time.Now(), registered: registered})
		w.mu.timeline = append(w.mu.timeline, w.mu.changes[i])
		fresh = append(fresh, w.mu.changes[i])
	}
	w.forgetLayouts(len(now))
	w.mu.ever = append(w.mu.ever, fresh...)
	w.mu.counts["layouts"] += len(fresh)
	w.mu.Unlock()
	for _, c := range fresh {
		w.log("--- layout: %s", text(c.layout))
	}
}

// forgetLayouts notes that etcd forgot the layouts from an index of changes on. The caller
// holds the lock.
func (w *world) forgetLayouts(from int) {
	for i := from; i < len(w.mu.changes); i++ {
		until := time.Now()
		if i+1 < len(w.mu.changes) {
			until = w.mu.changes[i+1].at
		}
		w.mu.forgotten = append(w.mu.forgotten, forgottenLayout{w.mu.changes[i], until})
	}
	if 0 < from && from < len(w.mu.changes) {
		again := w.mu.changes[from-1]
		again.at, again.wentBack = time.Now(), true
		w.mu.timeline = append(w.mu.timeline, again)
	}
	w.mu.changes = w.mu.changes[:min(from, len(w.mu.changes))]
}

// under returns the index of a layout version in changes. The caller holds the lock, or is the
// last to run.
func (w *world) under(version int64) int {
	i, _ := slices.BinarySearchFunc(w.mu.changes, version, func(c change, v int64) int {
		return cmp.Compare(c.layout.Version, v)
	})
	return i
}

// summary lists the faults that a run met.
func (w *world) summary() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.mu.counts)
}

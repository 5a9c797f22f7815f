package ledger_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/internal/programs"
)

// No ID of a tag with a period comes twice over backups, restores and recovers that go on without
// instances, as long as each margin has as many steps as these leased since the backup: with the
// clocks of instances and of recover up to 24 hours wrong. And no lease lies in a period that had
// begun neither by the clock of its instance nor by a mark.
func TestPeriodsOverRecovers(t *testing.T) {
	seeds := uint64(5_000)
	if programs.All() { // .ci/run has all
		seeds = 40_000
	}
	recovers := 0
	for seed := range seeds {
		w := newPeriods(seed)
		for range 60 {
			if err := w.step(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		recovers += w.recovers
	}
	if recovers < int(seeds) {
		t.Errorf("only %d recovers in %d histories", recovers, seeds)
	}
}

// periodsStore is what etcd has of one tag, and which of all leases it covers.
type periodsStore struct {
	layout record.Layout
	epoch  record.Epoch
	marks  map[allocator.Room]record.Mark
	// the leases that its marks show, or that its margins are for, by their number
	covered map[int]bool
}

func (s periodsStore) clone() periodsStore {
	s.marks, s.covered = maps.Clone(s.marks), maps.Clone(s.covered)
	return s
}

// periodsInstance is an instance with its clock and its memory.
type periodsInstance struct {
	room         allocator.Room
	wrong        time.Duration
	leases       []int
	next, total  int64 // of its mark
	known        int64 // the largest margin total of any epoch
	floorStamp   record.Stamp
	floorOf      map[allocator.Room]record.Mark
	floorOwnNext int64
}

type periodsWorld struct {
	*rand.Rand
	now       time.Time
	tag       record.Tag
	store     periodsStore
	backups   []periodsStore
	living    []*periodsInstance
	dead      []*periodsInstance
	lost      map[int]bool // leases of instances that are lost
	leases    []int64      // the margin totals of all leases
	issued    map[int64]bool
	revision  int64
	extremes  record.Layout
	recovers  int
	upgraded  bool
	layoutsOf []allocator.Layout
}

func newPeriods(seed uint64) *periodsWorld {
	w := &periodsWorld{Rand: rand.New(rand.NewPCG(seed, 34)), lost: make(map[int]bool), issued: make(map[int64]bool)}
	w.now = time.Date(2026, 11, 24, w.IntN(24), w.IntN(60), 0, 0, time.UTC)
	w.tag = record.Tag{Name: "daily", TagSettings: record.DefaultTag()}
	w.tag.Period = period.Period{Unit: period.Day, Digits: 3 + w.IntN(3), Zone: "UTC"}
	w.tag.MinStep, w.tag.MaxStep = 1, 1+w.Int64N(4)
	w.tag.LargestStep = w.tag.MaxStep
	w.upgraded = w.IntN(5) > 0
	w.layoutsOf = []allocator.Layout{
		{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{
			"a": {Lower: 0, Upper: 5}, "b": {Lower: 5, Upper: 10}}},
		{Boundary: 10, Ranges: map[allocator.Room]allocator.Range{
			"a": {Lower: 5, Upper: 10}, "b": {Lower: 0, Upper: 5}}},
		{Boundary: 7, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 3}, "b": {Lower: 3, Upper: 7}}},
	}
	w.store = periodsStore{marks: map[allocator.Room]record.Mark{"a": {}, "b": {}}, covered: make(map[int]bool),
		epoch: record.Epoch{Epoch: "e0"}}
	w.move(1)
	for i := range 4 {
		w.living = append(w.living, w.instance([]allocator.Room{"a", "b"}[i%2]))
	}
	return w
}

// clock returns how wrong a clock is: right, a little, or up to 24 hours.
func (w *periodsWorld) clock() time.Duration {
	wrong := time.Duration(w.Int64N(int64(24*time.Hour) + 1))
	switch w.IntN(6) {
	case 0:
		return 0
	case 1:
		return 24 * time.Hour
	case 2:
		return -24 * time.Hour
	case 3:
		return wrong
	case 4:
		return -wrong
	}
	return wrong / 24
}

func (w *periodsWorld) instance(room allocator.Room) *periodsInstance {
	return &periodsInstance{room: room, wrong: w.clock(), known: w.store.epoch.MarginTotal}
}

// move puts a layout in force.
func (w *periodsWorld) move(version int64) {
	l := w.layoutsOf[w.IntN(len(w.layoutsOf))]
	l.Version = version
	w.revision++
	w.store.layout = record.Layout{Layout: l, Ever: []allocator.Room{"a", "b"}, Revision: w.revision}.After(w.extremes)
	w.extremes = w.store.layout // some memory knows those of lost histories
}

func (w *periodsWorld) step() error {
	switch w.IntN(14) {
	case 0:
		w.now = w.now.Add(time.Duration(w.Int64N(int64(18 * time.Hour))))
	case 1:
		w.move(w.store.layout.Layout.Version + 1)
	case 2:
		w.backups = append(w.backups, w.store.clone())
	case 3:
		w.living[w.IntN(len(w.living))].wrong = w.clock()
	case 4:
		if w.IntN(2) == 0 {
			if n := len(w.backups); n > 0 && w.IntN(2) > 0 {
				w.store = w.backups[n-1-w.IntN(min(n, 3))].clone()
			}
			w.recover()
		}
	default:
		return w.lease(w.living[w.IntN(len(w.living))])
	}
	return nil
}

// lease has an instance lease by the marks of all rooms, perhaps those of some time ago.
func (w *periodsWorld) lease(i *periodsInstance) error {
	s := &w.store
	mark, stamp := s.marks[i.room], record.Stamp{Epoch: s.epoch.Epoch, Revision: s.layout.Revision}
	i.known = max(i.known, s.epoch.MarginTotal)
	if i.floorStamp != stamp || i.floorOwnNext != mark.Next || w.IntN(2) == 0 {
		i.floorStamp, i.floorOf, i.floorOwnNext = stamp, maps.Clone(s.marks), mark.Next
		if w.IntN(3) == 0 {
			return nil // it leases later
		}
	}
	clock := w.now.Add(i.wrong)
	seg, base, err := ledger.NextLease(s.layout, s.epoch, w.tag, i.room, mark, i.floorOf, 1+w.Int64N(w.tag.MaxStep),
		clock)
	if allocator.KindOf(err) == allocator.Exhausted {
		return nil
	}
	if err != nil {
		return err
	}
	in, _ := w.tag.Period.Of(seg.First)
	if last, _ := w.tag.Period.Of(seg.Last()); last != in {
		return fmt.Errorf("%v lies in two periods", seg)
	}
	begun := w.tag.Period.At(clock).First
	for _, m := range s.marks {
		p, _ := w.tag.Period.Of(max(m.Next-1, 0))
		begun = max(begun, p.First)
	}
	if in.First > begun {
		return fmt.Errorf("%v lies in %v, which has not begun at %v; marks %+v", seg, in, clock, s.marks)
	}
	for id := range seg.IDs() {
		if w.issued[id] {
			return fmt.Errorf("ID %d of room %s twice, at %v, epoch %+v, base %d", id, i.room, clock, s.epoch, base)
		}
		w.issued[id] = true
	}
	s.marks[i.room] = mark.Leased(stamp, s.epoch.MarginTotal, base, seg)
	i.next, i.total = max(i.next, seg.Last()+1), max(i.total, s.epoch.MarginTotal)
	i.leases = append(i.leases, len(w.leases))
	s.covered[len(w.leases)] = true
	w.leases = append(w.leases, s.epoch.MarginTotal)
	return nil
}

// recover goes on with those that answer, and for good without the others. Its margin is the
// number of the lost leases that the store does not cover.
func (w *periodsWorld) recover() {
	s := &w.store
	s.covered = maps.Clone(s.covered)
	known := s.epoch.MarginTotal
	var answer, living []*periodsInstance
	for _, i := range slices.Concat(w.living, w.dead) {
		dead := slices.Contains(w.dead, i)
		switch answers := w.IntN(6) > 1; {
		case answers && !dead || !answers && dead: // a dead one's journal is found
			answer = append(answer, i)
			known = max(known, i.known)
			for _, lease := range i.leases {
				s.covered[lease] = true
			}
			if !dead {
				living = append(living, i)
			}
		case !dead:
			w.dead = append(slices.Clone(w.dead), i)
			for _, lease := range i.leases {
				w.lost[lease] = true
			}
		}
	}
	for room, m := range maps.Clone(s.marks) { // recover takes each number for itself
		next, total := int64(0), int64(0)
		for _, i := range answer {
			if i.room == room && i.next > m.Next {
				next, total = max(next, i.next), max(total, i.total)
			}
		}
		if next > 0 {
			m = m.Raised(next)
			if len(m.Eras) > 0 {
				m.Total = max(m.Total, total)
			}
			s.marks[room] = m
		}
	}
	margin := int64(0)
	for lease := range w.lost {
		if !s.covered[lease] {
			s.covered[lease] = true
			known = max(known, w.leases[lease]) // a recover that nobody knows is a blind spot
			margin++
		}
	}
	total := known + margin
	clock := w.now.Add(w.clock())
	w.move(record.RecoverVersion(s.layout.Layout.Version, clock))
	margins := record.Margins{Ends: s.epoch.MarginEnds}.Grown(total, clock)
	w.recovers++
	s.epoch = record.Epoch{Epoch: fmt.Sprintf("e%d", w.recovers), MarginTotal: total, Layout: s.layout.Layout.Version}
	if w.upgraded {
		s.epoch.MarginEnds = margins.Ends
	}
	for len(living) < 4 {
		living = append(living, w.instance([]allocator.Room{"a", "b"}[w.IntN(2)]))
	}
	w.living = living
	for _, i := range w.living {
		i.known = max(i.known, total)
	}
}

package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/programs"
)

// A leaseCall is one call of a history: a lease of count IDs in a room, or,
// where layout is set, a change to it.
type leaseCall struct {
	room   int
	count  int64
	layout *allocator.Layout
}

// A leaseResult is what came back: a segment, or an error after which the lease
// may or may not have been made.
type leaseResult struct {
	seg     allocator.Segment
	unknown bool
}

// leases is the state of the sequential specification of leasing one tag: the
// current layout, and for each room its mark and the layout version of its last
// lease. floors are the values that the largest mark had since the layout
// became the current one, the only ones that a floor may have been read as.
type leases struct {
	layout *allocator.Layout
	next   [2]int64
	leased [2]int64
	floors [64]int64
	n      int // of floors
}

var linearRooms = [2]allocator.Room{"a", "b"}

// lease returns every state after a lease of count IDs in a room, with the
// segment that was leased.
func (s leases) lease(room int, count int64) (after []leases, segs []allocator.Segment) {
	bases := []int64{s.next[room]}
	if s.leased[room] != s.layout.Version {
		bases = nil
		for _, floor := range s.floors[:s.n] {
			bases = append(bases, max(floor, s.next[room]))
		}
	}
	for _, base := range slices.Compact(bases) {
		seg, err := s.layout.Segment(linearRooms[room], max(base, 1), count, allocator.MaxID)
		if err != nil {
			continue // no range
		}
		then := s
		then.next[room], then.leased[room] = seg.Last()+1, s.layout.Version
		if largest := max(then.next[0], then.next[1]); largest > then.floors[then.n-1] {
			then.floors[then.n] = largest
			then.n++
		}
		after, segs = append(after, then), append(segs, seg)
	}
	return after, segs
}

// change returns the state after a change of layout.
func (s leases) change(to *allocator.Layout) leases {
	s.layout = to
	s.floors = [64]int64{max(s.next[0], s.next[1])}
	s.n = 1
	return s
}

// leasing is the sequential specification.
func leasing(first *allocator.Layout) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{leases{layout: first, n: 1}} },
		Step: func(state, input, output any) (next []any) {
			s, call, result := state.(leases), input.(leaseCall), output.(leaseResult)
			if call.layout != nil {
				return []any{s.change(call.layout)}
			}
			after, segs := s.lease(call.room, call.count)
			for _, then := range after { // leased, not trusted, and leased again: a gap
				more, moreSegs := then.lease(call.room, call.count)
				after, segs = append(after, more...), append(segs, moreSegs...)
			}
			for i, then := range after {
				if result.unknown || segs[i] == result.seg {
					next = append(next, then)
				}
			}
			if result.unknown {
				next = append(next, s)
			}
			return next
		},
	}).ToModel()
}

// linearFates are those after which one call did at most two leases, and was told
// of the last: where something came up meanwhile, it does not trust the answer to
// the first. (A transaction done twice is two more: TestNoIDTwice has it.)
var linearFates = []ledgertest.FateName{
	ledgertest.DoneAnswerLost, ledgertest.NotDone, ledgertest.Late, ledgertest.StaleRead,
	ledgertest.WrongCluster, ledgertest.OldRevision, ledgertest.NoLeader, ledgertest.NoSpaceButApplied,
}

// leaseHistory has two instances of each of two rooms lease at once, under faults
// and changes of layout, and returns what each call did.
func leaseHistory(t *testing.T, seed uint64) (history []porcupine.Operation, first *allocator.Layout, unknown int) {
	random := rand.New(rand.NewPCG(seed, 0))
	start := ledgertest.Lay(t, "10 a=0-5 b=5-10")
	start.Version = 1
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "10 a=0-5 b=5-10")
		var clock atomic.Int64
		var mu sync.Mutex
		note := func(client int, call leaseCall, do func() leaseResult) {
			began := clock.Add(1)
			result := do()
			ended := clock.Add(1)
			if result.unknown {
				ended = 1 << 40 // it may come later
			}
			mu.Lock()
			defer mu.Unlock()
			if result.unknown {
				unknown++
			}
			history = append(history, porcupine.Operation{ClientId: client, Input: call, Call: began,
				Output: result, Return: ended})
		}
		var all sync.WaitGroup
		for client := range 4 {
			room := client % 2
			own := rand.New(rand.NewPCG(seed, uint64(client)+1)) //nolint:gosec // a test's seed
			p := c.start(linearRooms[room])
			p.Conn.Fate(func(txn store.Txn) ledgertest.Fate {
				time.Sleep(time.Duration(own.IntN(3)) * time.Millisecond) // draws which room is next
				if own.IntN(8) > 0 {
					return ledgertest.Fate{}
				}
				fate := ledgertest.Fate{Name: linearFates[own.IntN(len(linearFates))], N: 1 + own.IntN(5)}
				if fate.Name == ledgertest.OldRevision && !ledgertest.PutsUnder("marks/")(txn) {
					return ledgertest.Fate{} // twice, it is an etcd that went back in time, and leasing is halted
				}
				return fate
			})
			all.Go(func() {
				var source allocator.Source
				for range 4 {
					if source == nil {
						source, _, _ = p.Source(bg, "t") // reads only
						continue
					}
					call := leaseCall{room: room, count: own.Int64N(12) + 1}
					note(client, call, func() leaseResult {
						seg, err := source.Lease(bg, call.count)
						return leaseResult{seg: seg, unknown: err != nil}
					})
				}
			})
		}
		all.Go(func() {
			for range 2 {
				time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
				cut := random.Int64N(9) + 1
				to := ledgertest.Lay(t, fmt.Sprintf("10 a=0-%d b=%d-10", cut, cut))
				if random.IntN(2) == 0 {
					to = ledgertest.Lay(t, fmt.Sprintf("20 b=0-%d a=%d-20", cut, cut))
				}
				from, err := c.Admin.Ledger.Refresh(bg)
				if err != nil {
					t.Error(err)
					return
				}
				to.Version = from.Layout.Version + 1
				note(4, leaseCall{layout: &to}, func() leaseResult {
					if _, err := c.Admin.ChangeLayout(bg, from, to, "test"); err != nil {
						t.Error(err)
					}
					return leaseResult{}
				})
			}
		})
		all.Wait()
	})
	return history, &start, unknown
}

// TestLinearizable checks recorded histories of leases against the sequential
// specification, and that histories in which one answer was changed are found.
func TestLinearizable(t *testing.T) {
	histories := 60
	if !programs.All() { // .ci/run has 60
		histories = 20
	}
	var calls, unknown, leased, planted, found, undecided int
	for seed := range uint64(histories) { //nolint:gosec // small
		history, first, lost := leaseHistory(t, seed)
		calls, unknown = calls+len(history), unknown+lost
		model := leasing(first)
		if result := porcupine.CheckOperationsTimeout(model, history, time.Minute); result != porcupine.Ok {
			for _, op := range history {
				t.Logf("client %d [%d, %d] %+v %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
			}
			t.Fatalf("seed %d: %v", seed, result)
		}
		for i, op := range history {
			result := op.Output.(leaseResult)
			if op.Input.(leaseCall).layout != nil || result.unknown {
				continue
			}
			leased++
			// Each call in doubt may have come anywhere or not at all: with more than
			// two the checker takes minutes to be sure that no order explains a history.
			if i%4 > 0 || lost > 2 {
				continue
			}
			// The same segment a second time, as another call's answer.
			again := slices.Clone(history)
			op.Call, op.Return = 1<<41, 1<<41+1
			planted++
			switch porcupine.CheckOperationsTimeout(model, append(again, op), time.Minute) {
			case porcupine.Illegal:
				found++
			case porcupine.Unknown: // too many ways to order calls in doubt
				undecided++
			}
		}
	}
	if planted == 0 || found+undecided != planted || undecided > planted/20 {
		t.Errorf("%d of %d planted duplicates were found, %d not decided in time", found, planted, undecided)
	}
	if unknown < calls/20 || leased < calls/3 {
		t.Errorf("weak: of %d calls %d leased and %d ended in doubt", calls, leased, unknown)
	}
	t.Logf("%d histories, %d calls, %d leased, %d in doubt; %d planted duplicates found", histories,
		calls, leased, unknown, found)
}

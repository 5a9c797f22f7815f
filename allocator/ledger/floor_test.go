package ledger_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/ledgertest/draw"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Any layout may follow any other.
func TestLayoutChangesInEveryDirection(t *testing.T) {
	for name, layouts := range map[string][]string{
		"swap":               {"100 a=0-50 b=50-100", "100 a=50-100 b=0-50", "100 a=0-50 b=50-100"},
		"shrink and grow":    {"100 a=0-50 b=50-100", "100 a=0-10 b=50-100", "100 a=0-10 b=10-100"},
		"larger boundary":    {"10 a=0-5 b=5-10", "1000 a=0-500 b=500-1000"},
		"smaller boundary":   {"1000 a=0-500 b=500-1000", "10 a=5-10 b=0-5"},
		"coprime boundaries": {"7 a=0-3 b=3-7", "10 a=3-10 b=0-3", "9 a=0-1 b=1-9"},
		"a room is added":    {"100 a=0-50 b=50-100", "100 a=0-50 b=50-60 c=60-100"},
		"a room goes":        {"100 a=0-50 b=50-100", "100 a=0-100", "100 a=0-1 b=1-100"},
		"a room comes alone": {"100 a=0-100", "100 b=0-100", "100 a=0-100"},
		"to the whole boundary": {"100 a=3-4 b=99-100", "1 b=0-1",
			"9223372036854775807 a=0-4611686018427387904 b=4611686018427387904-9223372036854775807"},
		"the same again": {"100 a=0-50 b=50-100", "100 a=0-50 b=50-100"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, layouts[0])
			processes := []*process{c.start("a"), c.start("a"), c.start("b"), c.start("c")}
			for i, layout := range layouts {
				if i > 0 {
					c.Move(layout)
				}
				for round := range 3 {
					for _, p := range processes {
						_, in := ledgertest.Lay(t, layout).Ranges[p.Room()]
						seg, err := p.TryLease("t", int64(1+37*round))
						switch {
						case !in:
							ledgertest.WantKind(t, err, allocator.NoRange, "room "+string(p.Room()),
								fmt.Sprintf("version %d", i+1))
						case err != nil:
							t.Errorf("room %s under %s: %v", p.Room(), layout, err)
						case seg.Version != int64(i+1):
							t.Errorf("room %s under version %d leased %v", p.Room(), i+1, seg)
						}
					}
				}
			}
			c.Check()
		})
	}
}

// Random layouts, rooms, instances, tags, restarts and faults, and recovers where
// an answer's revision was below what was seen, twice: no ID is ever in two
// segments. The store complains about each single step, tryLease about
// growth, and check lists all IDs.
func TestNoIDTwice(t *testing.T) {
	refusals, leases, recovers := map[allocator.Kind]int{}, 0, 0
	kinds := []allocator.Kind{allocator.Unavailable, allocator.NoRange, allocator.WentBack,
		allocator.Exhausted, allocator.Refused}
	never := func(kind allocator.Kind) bool { return refusals[kind] == 0 }
	enough := func() bool { return !slices.ContainsFunc(kinds, never) }
	draw.CheckUntil(t, enough, func(t *rapid.T) {
		rooms := []allocator.Room{"a", "b", "c"}
		c := newCluster(t, "10 a=0-3 b=3-6 c=7-10")
		var processes []*process
		var fate atomic.Pointer[ledgertest.Fate] // of one transaction of the next action
		next := func(store.Txn) ledgertest.Fate {
			if now := fate.Swap(nil); now != nil {
				return *now
			}
			return ledgertest.Fate{}
		}
		start := func(room allocator.Room) {
			p := c.start(room)
			p.Conn.Fate(next)
			processes = append(processes, p)
		}
		for _, room := range rooms {
			start(room)
		}
		c.Tag("u", func(s *record.TagSettings) {
			s.Start, s.Limit = 5, rapid.Int64Range(50, 2000).Draw(t, "limit")
			s.MaxJump = rapid.SampledFrom([]int64{20, 1000}).Draw(t, "max jump")
			s.MaxSkew = rapid.SampledFrom([]int64{0, 1, 40}).Draw(t, "max skew")
		})
		tags := rapid.SampledFrom([]allocator.Tag{"t", "t", "u"})
		for range rapid.IntRange(1, 100).Draw(t, "actions") {
			if name := rapid.SampledFrom(ledgertest.Fates()).Draw(t, "fate"); rapid.IntRange(0,
				3).Draw(t, "fault") == 0 {
				fate.Store(&ledgertest.Fate{Name: name, N: rapid.IntRange(1, 8).Draw(t, "n")})
			}
			if c.isHalted() != "" {
				var ids []record.InstanceID // some were started again without a journal
				for _, p := range processes {
					ids = append(ids, ledger.Registration{Room: p.Room(), Name: p.Name()}.ID())
				}
				c.Mem.Arrive()
				if _, err := c.recover(c.Mem.Open(), processes, without(ids...), margin(7)); err != nil {
					t.Fatalf("recover: %v", err)
				}
				recovers++
			}
			i := rapid.IntRange(0, len(processes)-1).Draw(t, "process")
			p := processes[i]
			switch rapid.IntRange(0, 15).Draw(t, "action") {
			case 0:
				c.MoveTo(draw.Layout(t, rooms))
			case 2:
				start(p.Room())
			case 3: // a restart under its name
				fate.Store(nil)
				again := c.startAs(p.Room(), p.Name())
				again.Conn.Fate(next)
				processes[i] = again
			case 4:
				_ = p.Serve(bg, 1)
			case 5:
				_, _ = p.Ledger.Refresh(bg)
			default:
				if _, err := p.TryLease(tags.Draw(t, "tag"), rapid.Int64Range(1, 40).Draw(t, "count")); err != nil {
					refusals[allocator.KindOf(err)]++
				} else {
					leases++
				}
			}
		}
		c.Check()
	})
	t.Logf("%d leases, refused: %v; %d recovers", leases, refusals, recovers)
	for _, kind := range kinds {
		if never(kind) {
			t.Errorf("weak: no lease was refused as %v", kind)
		}
	}
	if refusals[allocator.Internal] > 0 {
		t.Errorf("%d leases failed as internal", refusals[allocator.Internal])
	}
}

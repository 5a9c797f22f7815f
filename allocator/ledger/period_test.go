package ledger_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
)

// wall is a clock that a test sets.
type wall struct{ time.Time }

func (w *wall) config(cfg *ledger.Config) { cfg.Now = func() time.Time { return w.Time } }

func at(tb testing.TB, text string) *wall {
	tb.Helper()
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		tb.Fatal(err)
	}
	return &wall{t}
}

// daily makes the tag t one with a period of a day in a zone.
func daily(c *cluster, digits int, zone string) period.Period {
	p := period.Period{Unit: period.Day, Digits: digits, Zone: zone}
	c.Tag("daily", func(s *record.TagSettings) { s.Period = p })
	return p
}

// A clock is asked for before it opens a period, and only then.
func TestAClockOpensAPeriodOnlyWhereItMay(t *testing.T) {
	c := newCluster(t, "10 a=0-10")
	daily(c, 6, "UTC")
	clock := at(t, "2026-11-22T12:00:00Z")
	a := c.start("a", clock.config)
	var wrong error
	asked := 0
	a.OnPeriod(func(_ context.Context, now time.Time) error {
		if asked++; !now.Equal(clock.Time) {
			t.Errorf("asked of %v, not of the clock that opens the period, %v", now, clock.Time)
		}
		return wrong
	})
	for range 3 {
		if _, err := a.TryLease("daily", 10); err != nil {
			t.Fatal(err)
		}
	}
	wrong = errors.Join(allocator.Refused, errors.New("the clock is an hour ahead"))
	clock.Time = clock.Add(24 * time.Hour)
	if _, err := a.TryLease("daily", 10); err == nil || !strings.Contains(err.Error(), "an hour ahead") || asked != 2 {
		t.Errorf("asked %d times, got %v", asked, err)
	}
	clock.Time = clock.Add(-24 * time.Hour)
	if seg, err := a.TryLease("daily", 10); err != nil || seg.First != 20261122_000030 || asked != 2 {
		t.Errorf("asked %d times, got %v, %v", asked, seg, err)
	}
}

// With clocks of rooms and instances that say anything, and layouts that change at any
// moment, no ID comes twice, each ID lies in a day of the calendar, no lease lies in two, and no
// lease lies in a day before the one that its instance's clock shows.
func TestPeriodsWithAnyClocks(t *testing.T) {
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 16))
		layouts := []string{"10 a=0-5 b=5-10", "10 a=5-10 b=0-5", "7 a=0-3 b=3-7", "12 a=0-1 b=1-12"}
		c := newCluster(t, layouts[0])
		p := daily(c, 3, []string{"UTC", "Europe/Berlin", "America/Sao_Paulo"}[random.IntN(3)])
		var all []*process
		var clocks []*wall
		for i := range 4 {
			clock := at(t, "2026-10-24T20:00:00Z")
			clocks = append(clocks, clock)
			all = append(all, c.start([]allocator.Room{"a", "b"}[i%2], clock.config))
		}
		for range 300 {
			i := random.IntN(len(all))
			switch random.IntN(12) {
			case 0:
				c.Move(layouts[random.IntN(len(layouts))])
			case 1:
				clocks[i].Time = clocks[i].Add(time.Duration(random.Int64N(int64(12 * time.Hour))))
			case 2:
				clocks[i].Time = clocks[i].Add(-time.Duration(random.Int64N(int64(6 * time.Hour))))
			case 3:
				for _, clock := range clocks {
					clock.Time = clock.Add(time.Hour)
				}
			}
			seg, err := all[i].TryLease("daily", 1+random.Int64N(200))
			if allocator.KindOf(err) == allocator.Exhausted {
				continue
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			first, ok := p.Of(seg.First)
			if last, _ := p.Of(seg.Last()); !ok || first != last || seg.First < first.First {
				t.Fatalf("seed %d: %v lie in the periods %v and %v", seed, seg, first, last)
			}
			if now := p.At(clocks[i].Time); first.First < now.First {
				t.Fatalf("seed %d: %v are of the period %v, and the clock shows %v", seed, seg, first, now)
			}
		}
		c.Check()
	}
}

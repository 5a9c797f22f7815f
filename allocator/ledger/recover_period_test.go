package ledger_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/period"
)

// recoverAt recovers c by a clock.
func (c *cluster) recoverAt(clock *wall, living []*process, change ...func(*recovery.Config)) *recovery.Report {
	c.Helper()
	cfg := recovery.Config{Actor: "ann", Apply: true, Layout: recovery.LayoutKnown, Ask: asking(living)}
	for _, f := range change {
		f(&cfg)
	}
	report, err := recovery.Run(bg, ledgertest.Open(c.TB, c.Mem.Open(), clock.config), cfg)
	if err != nil {
		c.Fatalf("recover: %v", err)
	}
	return report
}

// Without an instance the margin takes a tag with a period at most to the period after the
// next one, and stays in the present one if the steps are small. Recover names the tags whose
// IDs then have a later date.
func TestMarginOfATagWithAPeriod(t *testing.T) {
	for _, test := range []struct {
		digits  int
		maxStep int64
		clock   string
		want    string // the period of the next ID
	}{
		{9, 1_000_000, "2026-11-25T12:00:00Z", "2026-11-25"},
		{9, 1_000_000, "2026-11-25T23:30:00Z", "2026-11-26"}, // it may have begun by another clock
		{9, 100_000_000, "2026-11-25T12:00:00Z", "2026-11-27"},
		{8, 100_000_000, "2026-11-25T12:00:00Z", "2026-11-27"},
		{6, 100_000_000, "2026-11-29T12:00:00Z", "2026-12-01"},
		{4, 100_000_000, "2026-11-25T12:00:00Z", "2026-11-27"},
	} {
		c := newCluster(t, "1000 a=0-500 b=500-1000")
		clock := at(t, test.clock)
		p := period.Period{Unit: period.Day, Digits: test.digits, Zone: "UTC"}
		c.Tag("daily", func(s *record.TagSettings) { s.Period, s.MaxStep = p, test.maxStep })
		a, silent := c.start("a", clock.config), c.start("b", clock.config)
		for _, i := range []*process{a, silent} {
			if _, err := i.TryLease("daily", 10); err != nil {
				t.Fatal(err)
			}
		}
		report := c.recoverAt(clock, []*process{a}, without(silent.id()), margin(13))
		seg, err := a.TryLease("daily", 1)
		for range 3 {
			if err != nil {
				seg, err = a.TryLease("daily", 1)
			}
		}
		span, _ := p.Of(seg.First)
		if err != nil || span.String() != test.want {
			t.Errorf("%d digits, steps of %d, %s: the next ID is of %v, %v; want %s", test.digits, test.maxStep,
				test.clock, span, err, test.want)
		}
		if named := slices.Contains(report.BeyondPeriod, "daily"); named != (test.want != test.clock[:10]) {
			t.Errorf("%d digits, steps of %d, %s: named %v", test.digits, test.maxStep, test.clock, report.BeyondPeriod)
		}
		c.Check()
	}
}

// No ID comes twice after a restore around midnight, whatever an instance leased that is silent
// since, as long as the margin has as many steps: also with a clock that was ahead, so that
// the instance had opened the next day.
func TestRestoreWithASilentInstanceAroundMidnight(t *testing.T) {
	seeds := uint64(300)
	if os.Getenv("LIVE") == "" { // .ci/run has 300
		seeds = 40
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 16))
		c := newCluster(t, []string{"10 a=0-5 b=5-10", "7 a=0-1 b=1-7"}[random.IntN(2)])
		step := []int64{1, 20, 300}[random.IntN(3)]
		c.Tag("daily", func(s *record.TagSettings) {
			s.Period = period.Period{Unit: period.Day, Digits: 2 + random.IntN(3), Zone: "UTC"}
			s.MinStep, s.MaxStep = 1, step
		})
		ahead := time.Duration(random.Int64N(int64(time.Hour)))
		clock := at(t, []string{"2026-11-24T22:00:00Z", "2026-11-30T22:00:00Z"}[random.IntN(2)])
		clock.Time = clock.Add(time.Duration(random.Int64N(int64(3 * time.Hour))))
		fast := &wall{clock.Add(ahead)}
		a, silent := c.start("a", clock.config), c.start("b", fast.config)
		issued := make(map[int64]bool)
		lease := func(i *process) bool {
			seg, err := i.TryLease("daily", 1+random.Int64N(step))
			if err != nil {
				return false
			}
			for id := range seg.IDs() {
				if issued[id] {
					t.Fatalf("seed %d: ID %d twice", seed, id)
				}
				issued[id] = true
			}
			return true
		}
		for range random.IntN(3) {
			lease(a)
		}
		backup, steps := c.Mem.Revision(), int64(0)
		for range random.IntN(8) {
			if lease(silent) {
				steps++
			}
			if random.IntN(3) == 0 {
				pass := time.Duration(random.Int64N(int64(20 * time.Minute)))
				clock.Time, fast.Time = clock.Add(pass), fast.Add(pass)
			}
		}
		c.Mem.Restore(backup, 0, ledgertest.ClusterID)
		c.recoverAt(clock, []*process{a}, without(silent.id()), margin(steps))
		replaced := c.start("b", clock.config)
		for range 20 {
			lease([]*process{a, replaced}[random.IntN(2)])
			if random.IntN(2) == 0 {
				clock.Time = clock.Add(time.Duration(random.Int64N(int64(time.Hour))))
			}
		}
	}
}

package ledger_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
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

// A margin counts in each period that may have lost leases, and takes no lease into a later one: a
// tag of which it leaves no ID in the present period issues none until the first period that began
// after all lost leases. Recover names it.
func TestMarginOfATagWithAPeriod(t *testing.T) {
	for _, test := range []struct {
		digits  int
		maxStep int64
		clock   string
		left    bool
	}{
		{9, 1_000_000, "2026-11-25T12:00:00Z", true},
		{9, 1_000_000, "2026-11-25T23:30:00Z", true},
		{9, 100_000_000, "2026-11-25T12:00:00Z", false},
		{8, 100_000_000, "2026-11-25T12:00:00Z", false},
		{6, 100_000_000, "2026-11-29T12:00:00Z", false},
		{4, 100_000_000, "2026-11-25T12:00:00Z", false},
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
		if named := slices.Contains(report.BeyondPeriod, "daily"); named == test.left {
			t.Errorf("%d digits, steps of %d: named %v", test.digits, test.maxStep, report.BeyondPeriod)
		}
		today, d := p.At(clock.Time).First, 13*((test.maxStep-1)/500+2)*1000
		for day := range 4 {
			now := p.At(clock.Time)
			least := now.First
			if now.Begins.Before(clock.Add(time.Duration(-day) * 24 * time.Hour).Add(49 * time.Hour)) {
				least += d
			}
			a.hear()
			seg, err := a.TryLease("daily", 1)
			switch full := least >= now.End; {
			case full && allocator.KindOf(err) != allocator.Exhausted:
				t.Errorf("%d digits, steps of %d, day %d: %v, %v; want none", test.digits, test.maxStep, day, seg, err)
			case !full && (err != nil || seg.First < least || seg.First > least+2000):
				t.Errorf("%d digits, steps of %d, day %d: %v, %v; want %d or a little more", test.digits,
					test.maxStep, day, seg, err, least)
			case !full && now.First == today && !test.left:
				t.Errorf("%d digits, steps of %d: IDs are left", test.digits, test.maxStep)
			}
			clock.Time = clock.Add(24 * time.Hour)
		}
		c.Check()
	}
}

// The margin of a period does not depend on marks. An instance with a clock 8 hours behind took it in
// yesterday's period, and the next instance opened today's at its first ID: all lost IDs came twice.
func TestMarginOfAPeriodThatSomeClocksHaveNotReached(t *testing.T) {
	c := newCluster(t, "10 a=0-5 b=5-10")
	p := daily(c, 9, "UTC")
	clock, behind := at(t, "2026-11-25T05:00:00Z"), at(t, "2026-11-24T21:00:00Z")
	slow, silent := c.start("a", behind.config), c.start("b", clock.config)
	if _, err := slow.TryLease("daily", 10); err != nil {
		t.Fatal(err)
	}
	backup := c.Mem.Revision()
	lost, err := silent.TryLease("daily", 1000)
	if in, _ := p.Of(lost.First); err != nil || in != p.At(clock.Time) {
		t.Fatalf("%v, %v", lost, err)
	}
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	c.recoverAt(clock, []*process{slow}, without(silent.id()), margin(1))
	slow.hear()
	if seg, err := slow.TryLease("daily", 10); err != nil || seg.Last() >= p.At(clock.Time).First {
		t.Errorf("by the clock that is behind: %v, %v", seg, err)
	}
	for _, room := range []allocator.Room{"b", "a"} {
		if seg, err := c.start(room, clock.config).TryLease("daily", 1000); err != nil || seg.First <= lost.Last() {
			t.Errorf("room %s: %v, %v; lost were %v", room, seg, err, lost)
		}
	}
	c.Check()
}

// No ID comes twice after a restore around midnight, whatever an instance leased that is silent
// since, as long as the margin has as many steps: also with a clock that was a day ahead or behind.
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
		ahead := time.Duration(random.Int64N(int64(48*time.Hour))) - 24*time.Hour
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

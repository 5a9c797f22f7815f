package ledger_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// A tag with a period is deleted and made again, with smaller steps, after a recover went on
// without the instance that had opened the day. The new tag leaves that day's margin free.
func TestSecondLifeOfATagWithAPeriod(t *testing.T) {
	for formats := 1; formats <= 2; formats++ {
		t.Run(fmt.Sprintf("formats %d", formats), func(t *testing.T) {
			c := &cluster{memcluster.NewOf(t, "10 a=0-5 b=5-10", formats)}
			clock := at(t, "2026-11-22T12:00:00Z")
			c.Admin = manage(ledgertest.Open(t, c.Mem.Open(), clock.config))
			p := period.Period{Unit: period.Day, Digits: 6, Zone: "UTC"}
			c.Tag("daily", func(s *record.TagSettings) { s.Period, s.MinStep, s.MaxStep = p, 1, 200 })
			a, lost := c.start("a", clock.config), c.start("b", clock.config)
			if _, err := a.TryLease("daily", 10); err != nil {
				t.Fatal(err)
			}
			clock.Time = clock.Add(24 * time.Hour)
			backup := c.Mem.Revision()
			if seg, err := lost.TryLease("daily", 200); err != nil || seg.Count != 200 {
				t.Fatalf("leased %v, %v", seg, err)
			}
			c.Mem.Restore(backup, 0, ledgertest.ClusterID)
			c.recoverAt(clock, []*process{a}, without(lost.id()), margin(1))
			c.Admin = manage(ledgertest.Open(t, c.Mem.Open(), clock.config))
			if err := c.Admin.DeleteTag(bg, "daily", "test"); err != nil {
				t.Fatal(err)
			}
			c.Tag("daily", func(s *record.TagSettings) { s.Period, s.MinStep, s.MaxStep = p, 1, 10 })
			for _, room := range []allocator.Room{"b", "a"} {
				again := c.start(room, clock.config)
				for range 40 {
					if _, err := again.TryLease("daily", 10); err != nil {
						t.Fatal(err)
					}
				}
			}
			c.twice("daily")
			c.Check()
		})
	}
}

// hasTag reports whether a tag has a key.
func (c *cluster) hasTag(name allocator.Tag) bool {
	_, there := c.Mem.Value(prefix + "tags/" + string(name))
	return there
}

// lives deletes a tag that has leased, and returns what another one of its name answers.
func (c *cluster) lives(name allocator.Tag, first, second func(*record.TagSettings)) (record.Tag, error) {
	c.Helper()
	c.Tag(name, first)
	_, err := c.start("a").TryLease(name, 10) // time-ordered IDs are not leased so
	if _, timed := errors.AsType[*ledger.TimeTagError](err); err != nil && !timed {
		c.Fatalf("%v", err)
	}
	if err := c.Admin.DeleteTag(bg, name, "test"); err != nil {
		c.Fatalf("%v", err)
	}
	settings := record.DefaultTag()
	second(&settings)
	return c.Admin.CreateTag(bg, name, settings, "test")
}

// What makes other IDs, or other texts, of a name is refused for its next life, with the reason.
// Only --reuse makes it, and the audit has that.
func TestSecondLifeIsRefused(t *testing.T) {
	timed := func(change func(*timeid.Layout)) func(*record.TagSettings) {
		return func(s *record.TagSettings) {
			l := timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond,
				Epoch: 1_600_000_000_000}
			change(&l)
			tag := record.NewTimeTag(l)
			s.Time = &tag
		}
	}
	plain := func(*record.TagSettings) {}
	same := timed(func(*timeid.Layout) {})
	text := func(format, key string, limit int64) func(*record.TagSettings) {
		return func(s *record.TagSettings) { s.Format, s.KeyCheck, s.Limit = format, key, limit }
	}
	day := func(unit period.Unit, digits int) func(*record.TagSettings) {
		return func(s *record.TagSettings) { s.Period = period.Period{Unit: unit, Digits: digits, Zone: "UTC"} }
	}
	c := newCluster(t, "100 a=0-50 b=50-100")
	for _, test := range []struct {
		name          allocator.Tag
		first, second func(*record.TagSettings)
		want          string // "" if the second one is made
	}{
		{"same", plain, plain, ""},
		{"time-same", same, same, ""},
		{"time-counter", same, plain, "kind: cannot be changed"},
		{"counter-time", plain, same, "kind: cannot be changed"},
		{"later-epoch", same, timed(func(l *timeid.Layout) { l.Epoch++ }), "time-epoch"},
		{"earlier-epoch", same, timed(func(l *timeid.Layout) { l.Epoch-- }), "time-epoch"},
		{"bits", same, timed(func(l *timeid.Layout) { l.TimeBits, l.SequenceBits = 42, 11 }), "bits"},
		{"unit", same, timed(func(l *timeid.Layout) { l.Unit, l.Epoch = time.Second, 1_600_000_000_000 }), "unit"},
		{"order", same, timed(func(l *timeid.Layout) { l.Order = timeid.WorkerLast }), "order"},
		{"format", plain, text("prefix(A-) | decimal(12)", "", 1_000_000_000_000),
			"format: cannot be changed (it is none)"},
		{"period", plain, day(period.Day, 9), ""},
		{"shorter", day(period.Day, 9), day(period.Month, 9), "had the period"},
		{"none", day(period.Day, 9), plain, ""},
	} {
		_, err := c.lives(test.name, test.first, test.second)
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
			continue
		}
		ledgertest.WantKind(t, err, allocator.Refused, test.want, "march tag create "+string(test.name)+" --reuse")
		settings := record.DefaultTag()
		test.second(&settings)
		made, risk, err := c.Admin.ReuseTag(bg, test.name, settings, "ann")
		if err != nil || made.Name != test.name || risk == nil {
			t.Errorf("%s: reused: %+v, %v, %v", test.name, made, risk, err)
		}
		entries, _, err := c.Admin.Audits(bg, "", 1)
		if err != nil || entries[0].Action != "create tag --reuse" || entries[0].Actor != "ann" ||
			len(entries[0].From) == 0 {
			t.Errorf("%s: audit: %+v, %v", test.name, entries, err)
		}
	}
}

// A counter's next life takes over what the margins of recovers follow from. With another period
// it begins above the old life.
func TestSecondLifeTakesOver(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	first := func(s *record.TagSettings) { s.Start, s.MinStep, s.MaxStep = 701, 10, 5000 }
	made, err := c.lives("u", first, steps(20))
	if err != nil || made.LargestStep != 5000 || made.Least != 701 || made.Start != 1 || made.MaxStep != 20 {
		t.Fatalf("made %+v, %v", made, err)
	}
	if err := c.Admin.DeleteTag(bg, "u", "test"); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.DeleteTag(bg, "u", "test"); allocator.KindOf(err) != allocator.NotFound {
		t.Errorf("deleted again: %v", err)
	}
	settings := record.DefaultTag()
	settings.Period = period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}
	if made, err = c.Admin.CreateTag(bg, "u", settings, "test"); err != nil ||
		made.Start != c.markOf("a", "u").Next || made.Least != 701 {
		t.Errorf("with a period: %+v, %v", made, err)
	}
	// A counter of which nothing was leased leaves nothing behind.
	c.Tag("typo", first)
	if err := c.Admin.DeleteTag(bg, "typo", "test"); err != nil || c.hasTag("typo") {
		t.Errorf("deleted: %v, it left a key", err)
	}
	deleted, _, err := c.Admin.DeletedTags(bg, "", "", 0, 10)
	if err != nil || len(deleted) != 0 {
		t.Errorf("deleted tags: %v, %v", deleted, err)
	}
	c.Check()
}

// A margin of the next life lies above where the leases that a recover lost began: at the start of
// the life before.
func TestSecondLifeBelowTheStartOfTheFirst(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("u", func(s *record.TagSettings) { s.Start, s.MinStep, s.MaxStep = 500, 1, 10 })
	c.lose("u", 10, func() {})
	if err := c.Admin.DeleteTag(bg, "u", "test"); err != nil {
		t.Fatal(err)
	}
	c.Tag("u", func(s *record.TagSettings) { s.MinStep, s.MaxStep = 1, 10 })
	c.leaseAll("u")
}

// --fresh is refused where a key or a mark shows that the name was in use.
func TestFreshIsRefusedOverAnEarlierLife(t *testing.T) {
	for formats := 1; formats <= 2; formats++ {
		c := &cluster{memcluster.NewOf(t, "100 a=0-50 b=50-100", formats)}
		c.Tag("u", steps(10))
		if _, err := c.start("a").TryLease("u", 10); err != nil {
			t.Fatal(err)
		}
		if err := c.Admin.DeleteTag(bg, "u", "test"); err != nil {
			t.Fatal(err)
		}
		_, err := c.Admin.CreateFreshTag(bg, "u", record.DefaultTag(), "test")
		ledgertest.WantKind(t, err, allocator.Refused, "tag u is not fresh")
		if formats == 1 {
			continue
		}
		if err := c.Admin.ForgetTag(bg, "u", "test"); err != nil {
			t.Fatal(err)
		}
		_, err = c.Admin.CreateFreshTag(bg, "u", record.DefaultTag(), "test")
		ledgertest.WantKind(t, err, allocator.Refused, "tag u is not fresh")
		// A plain counter goes on above its marks.
		c.Tag("u", steps(10))
		ledgertest.WantKind(t, c.Admin.ForgetTag(bg, "u", "test"), allocator.Refused, "tag u is not deleted")
	}
}

// Where rooms have marks of a name of which nothing else is known, a tag is made only if nothing
// can come again: a plain counter, after no recover with a margin.
func TestSecondLifeOfAForgottenName(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("u", steps(1000))
	c.lose("u", 1000, func() {})
	a := c.start("a")
	if _, err := a.TryLease("u", 10); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.DeleteTag(bg, "u", "test"); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.ForgetTag(bg, "u", "test"); err != nil {
		t.Fatal(err)
	}
	settings := record.DefaultTag()
	_, err := c.Admin.CreateTag(bg, "u", settings, "test")
	ledgertest.WantKind(t, err, allocator.Refused, "without instances since room b leased", "--reuse")
	settings.Format = "decimal(19)"
	_, err = c.Admin.CreateTag(bg, "u", settings, "test")
	ledgertest.WantKind(t, err, allocator.Refused, "it had texts", "--reuse")
}

// A skip of all rooms holds for a room that comes later, too.
func TestSkipOfAllRoomsHoldsForALaterRoom(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	for range 2 { // an import that is run twice
		if _, err := c.Admin.SkipTag(bg, "t", nil, 5_000_000, false, "test"); err != nil {
			t.Fatal(err)
		}
	}
	c.Move("100 a=0-40 b=50-100")
	c.Move("100 a=0-40 b=50-100 c=40-50")
	for _, room := range []allocator.Room{"c", "a", "b"} {
		if seg, err := c.start(room).TryLease("t", 1); err != nil || seg.First < 5_000_000 {
			t.Errorf("room %s leased %v, %v; want 5,000,000 or above", room, seg, err)
		}
	}
	c.Check()
}

// The upgrade writes the tombstones of tags that were deleted before, once.
func TestUpgradeBuriesDeletedTags(t *testing.T) {
	c := &cluster{memcluster.NewOf(t, "100 a=0-50 b=50-100", 1)}
	timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond})
	names := []allocator.Tag{"busy", "again", "unused", "timed"}
	for _, name := range names {
		c.Tag(name, func(s *record.TagSettings) {
			s.Start = 5
			if name == "timed" {
				s.Start, s.Time = record.DefaultTag().Start, &timed
			}
		})
	}
	a := c.start("a")
	for _, name := range names[:2] {
		if _, err := a.TryLease(name, 10); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		if err := c.Admin.DeleteTag(bg, name, "test"); err != nil || c.hasTag(name) {
			t.Fatalf("tag %s: %v, or it left a key", name, err)
		}
	}
	c.Tag("again", steps(10))
	for range 2 {
		if _, err := c.Admin.Upgrade(bg, "ann"); err != nil {
			t.Fatal(err)
		}
		deleted, bad, err := c.Admin.DeletedTags(bg, "", "", 0, 10)
		if err != nil || len(bad) > 0 || len(deleted) != 2 || deleted[0].Name != "busy" || deleted[0].Least != 5 ||
			deleted[1].Name != "timed" || deleted[1].Time == nil {
			t.Fatalf("deleted tags: %+v, %v, %v", deleted, bad, err)
		}
	}
	if err := c.Admin.ForgetTag(bg, "busy", "ann"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admin.Upgrade(bg, "ann"); err != nil || c.hasTag("busy") {
		t.Errorf("a forgotten tag came back, or %v", err)
	}
}

// While leasing is halted nothing is created over a tombstone: the next margin is not known.
func TestNoSecondLifeWhileLeasingIsHalted(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	if _, err := c.start("a").TryLease("t", 10); err != nil {
		t.Fatal(err)
	}
	if err := c.Admin.DeleteTag(bg, "t", "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admin.Ledger.Halt(bg, "ann", "a restore"); err != nil {
		t.Fatal(err)
	}
	_, err := c.Admin.CreateTag(bg, "t", record.DefaultTag(), "test")
	ledgertest.WantKind(t, err, allocator.WentBack, "halted by ann")
	c.Tag("new", steps(10))
}

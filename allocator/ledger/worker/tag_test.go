package worker_test

import (
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
)

// A tag of kind time is created only if every room has a worker of its width. It is never
// leased from, and keeps its bits.
func TestTagsOfKindTime(t *testing.T) {
	c := newCluster(t, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 90}, "b": {Lower: 91, Upper: 92}})
	preset, err := timeid.PresetNamed("cosid-js")
	if err != nil {
		t.Fatal(err)
	}
	create := func(name allocator.Tag) error {
		settings, tag := record.DefaultTag(), record.NewTimeTag(preset.Layout)
		settings.Time = &tag
		_, err := c.manage.CreateTag(bg, name, settings, "ann")
		return err
	}
	ledgertest.WantKind(t, create("narrow"), allocator.Refused, "room b", "8 workers of 3 bits")
	c.move(halves)
	if err := create("t"); err != nil {
		t.Fatal(err)
	}
	for text, change := range map[string]func(*record.TimeTag){
		"epoch_ms: 2027-01-15T08:00:00.001Z is in the future; allowed: up to " +
			"2027-01-15T08:00:00.000Z": func(t *record.TimeTag) {
			t.EpochMS = start + 1
		},
		"time bits: 20, with which the time ends at 2027-01-15T08:00:00.000Z": func(t *record.TimeTag) {
			t.TimeBits, t.EpochMS = 20, start-1<<20
		},
	} {
		settings, tag := record.DefaultTag(), record.NewTimeTag(preset.Layout)
		settings.Time = &tag
		change(&tag)
		_, err := c.manage.CreateTag(bg, "other", settings, "ann")
		ledgertest.WantKind(t, err, allocator.Invalid, text)
	}
	p := c.start("a")
	_, _, err = p.Source(bg, "t")
	ledgertest.WantKind(t, err, allocator.Invalid, "tag t is of kind time")
	_, err = c.manage.UpdateTag(bg, "t", func(s *record.TagSettings) error { s.Time.WorkerBits++; return nil }, "ann")
	ledgertest.WantKind(t, err, allocator.Invalid, "cannot be changed (they are 41/3/9")
	changed, err := c.manage.UpdateTag(bg, "t", func(s *record.TagSettings) error {
		s.Time.Rollback = timeid.Offset
		return nil
	}, "ann")
	if err != nil || changed.Time.Rollback != timeid.Offset {
		t.Errorf("%+v, %v", changed.Time, err)
	}
	p.take(ms(3))
	ledgertest.CheckCluster(t, c.open(), "default", nil)
}

// The audit records that an instance took a worker over from another one. It does not record
// that an instance renewed its own, took it again, or took an unused one. Of many at once it
// records only the first.
func TestTheAuditOfWorkers(t *testing.T) {
	c := newCluster(t, halves)
	pin := func(n int64) worker.Request {
		return worker.Request{Bits: 10, Tick: time.Millisecond, Pin: worker.PinTo(n)}
	}
	audited := func() (all []record.AuditEntry) {
		t.Helper()
		entries, _, err := c.manage.Audits(bg, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Action == "take worker" {
				all = append(all, e)
			}
		}
		return all
	}
	p, q := c.startAs("a", "one"), c.startAs("a", "two")
	for n := range int64(3) {
		w := p.take(pin(n))
		p.renew(w)
	}
	c.pass(time.Hour)
	c.startAs("a", "one").take(pin(0))
	if all := audited(); len(all) != 0 {
		t.Fatalf("%d entries, want none: %+v", len(all), all)
	}
	q.take(pin(1))
	q.take(pin(2))
	all := audited()
	if len(all) != 1 {
		t.Fatalf("%d entries, want one: %+v", len(all), all)
	}
	e := all[0]
	if e.Actor != "a/two" || e.Object != "windows/a/10/0000000000000000001" ||
		!strings.Contains(string(e.From), `"one"`) || !strings.Contains(string(e.To), `"two"`) {
		t.Errorf("%+v, from %s to %s", e, e.From, e.To)
	}
	c.pass(time.Hour)
	q.take(pin(0))
	if all := audited(); len(all) != 2 {
		t.Errorf("%d entries, want two", len(all))
	}
	ledgertest.CheckCluster(t, c.open(), "default", nil)
}

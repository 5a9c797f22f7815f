package worker_test

import (
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/timeid"
)

// A tag of kind time is created only where every room has a worker of its width, is
// never leased from, and keeps its bits.
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
	wantKind(t, create("narrow"), allocator.Refused, "room b", "8 workers of 3 bits")
	c.move(halves)
	if err := create("t"); err != nil {
		t.Fatal(err)
	}
	p := c.start("a")
	_, _, err = p.Source(bg, "t")
	wantKind(t, err, allocator.Invalid, "tag t is of kind time")
	_, err = c.manage.UpdateTag(bg, "t", func(s *record.TagSettings) error { s.Time.WorkerBits++; return nil }, "ann")
	wantKind(t, err, allocator.Invalid, "cannot be changed (they are 41/3/9")
	changed, err := c.manage.UpdateTag(bg, "t", func(s *record.TagSettings) error { s.Time.Rollback = timeid.Offset; return nil }, "ann")
	if err != nil || changed.Time.Rollback != timeid.Offset {
		t.Errorf("%+v, %v", changed.Time, err)
	}
	p.take(ms(3))
	ledgertest.CheckCluster(t, c.open(), "default", nil)
}

package sim_test

import (
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
)

const (
	// fleeting is a tag that operators delete and create again: its second life repeats no ID of
	// the first. One cluster of three has it.
	fleeting = allocator.Tag("fleeting")
	// yearly is a tag with a period, which begins as the run does: for clocks that are behind it
	// has not begun. With the other time zones it begins an hour or half a day later: for clocks that are
	// ahead it has begun.
	yearly = allocator.Tag("yearly")
	// wrongClock is the name of the disaster by which periods meet wrong clocks.
	wrongClock = "clock hours off"
)

// yearly returns the settings of the tag with a period.
func (w *world) yearly(s record.TagSettings) record.TagSettings {
	s.Start, s.Limit = 0, allocator.MaxID
	s.Period = period.Period{Unit: period.Year, Digits: period.Year.MaxDigits(),
		Zone: pick(w.dice("time zone"), []string{"UTC", "Etc/GMT+1", "Etc/GMT+12"})}
	return s
}

// lastLife creates the fleeting tag, if it is deleted. A restore may have forgotten its key, and
// recover put back its marks: then nothing tells how far a margin of it must go, creation is
// refused, and the operator chooses a start above all that was issued.
func (w *world) lastLife() {
	if w.fleetingLives() || !slices.Contains(w.tags, fleeting) {
		return
	}
	ctx := context.Background()
	_, err := w.admin.CreateTag(ctx, fleeting, w.life, "simulation")
	if allocator.KindOf(err) == allocator.Refused && w.wentBack() {
		life := w.life
		life.Start = allocator.MaxID - 1<<45
		if _, _, err = w.admin.ReuseTag(ctx, fleeting, life, "simulation"); err == nil {
			w.count("tags created again, of which etcd had forgotten the key", 1)
		}
	}
	if err != nil {
		w.Errorf("create tag %s: %v", fleeting, err)
	}
}

// wentBack reports whether etcd ever went back to a backup.
func (w *world) wentBack() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.mu.past.wentBackTo) > 0
}

// fleetingLives reports whether the fleeting tag has a key that is no tombstone.
func (w *world) fleetingLives() bool {
	value, there := w.mem.Value(keys.Tag(fleeting))
	_, err := keys.DecodeTag(store.KV{Key: keys.Tag(fleeting), Value: value})
	return there && allocator.KindOf(err) != allocator.NotFound
}

// setClocks sets all clocks right that were led astray, and starts their instances again: an
// instance whose clock showed a later period waits for that one until it does.
func (w *world) setClocks() {
	w.mu.Lock()
	all := slices.Clone(w.mu.processes)
	w.mu.Unlock()
	for _, p := range all {
		if p.link.ahead.Swap(0) != 0 && p.runs() && slices.Contains(w.tags, yearly) {
			p.crash()
		}
	}
}

// numbers are a tag's numbers in one period; a tag without a period has one.
type numbers struct {
	tag allocator.Tag
	in  period.Span
}

func (w *world) numbers(tag allocator.Tag, id int64) numbers {
	if tag != yearly {
		return numbers{tag: tag}
	}
	span, _ := w.yearly(record.TagSettings{}).Period.Of(id)
	return numbers{tag, span}
}

// someIDs returns an ID of each period that a clock of the simulation may show.
func (w *world) someIDs(tag allocator.Tag) []int64 {
	if tag != yearly {
		return []int64{0}
	}
	years, now := w.yearly(record.TagSettings{}).Period, time.Now()
	return []int64{
		years.At(now.Add(-25 * time.Hour)).First, years.At(now).First, years.At(now.Add(25 * time.Hour)).First,
	}
}

// lacks returns how many IDs the margins so far lack of all leases that were ever made of a tag. Of the
// tag with a period they must reach over those of each period, whatever came later.
func (w *world) lacks(tag allocator.Tag) (n int64) {
	if tag != yearly {
		return w.mu.past.highest[tag] - w.floor(tag)
	}
	for _, p := range w.mu.processes {
		for _, l := range p.link.leasesOf(tag) {
			n = max(n, l.end-w.floorOver(tag, l.first))
		}
	}
	return n
}

// floorOver is floor for an ID: in a tag with a period, that of the ID's period.
func (w *world) floorOver(tag allocator.Tag, id int64) int64 {
	if tag != yearly {
		return w.floor(tag)
	}
	in := w.numbers(tag, id).in
	floor := min(above(in.First, w.marginTotal(), w.span(tag)), in.End)
	for _, room := range w.rooms {
		if next := w.mark(tag, room).Next; next != nil && w.numbers(tag, *next-1).in == in {
			floor = max(floor, min(w.reach(tag, room), in.End))
		}
	}
	return floor
}

// ended reports whether margins left no ID of a tag: recover names it. In a tag with a period that is
// until the next one begins.
func (w *world) ended(tag allocator.Tag) bool {
	if tag != yearly {
		return w.floor(tag) > allocator.MaxID-w.span(tag)
	}
	id := max(w.highest(tag)-1, w.yearly(record.TagSettings{}).Period.At(time.Now()).First)
	return w.floorOver(tag, id) > w.numbers(tag, id).in.End-w.span(tag)
}

// deleteOrCreate deletes the fleeting tag, or creates it again, with other steps.
func deleteOrCreate(ctx context.Context, w *world, d dice, c *console.Server) error {
	if !slices.Contains(w.tags, fleeting) {
		return nil
	}
	if w.fleetingLives() {
		_, err := c.DeleteTag(ctx, &marchv1.DeleteTagRequest{Name: string(fleeting)})
		if err == nil {
			w.count("tags deleted", 1)
		}
		return err
	}
	life := w.life
	life.MinStep = pick(d, []int64{1, 3, 10, 50})
	life.MaxStep = life.MinStep * pick(d, []int64{1, 10, 100})
	_, err := w.admin.CreateTag(ctx, fleeting, life, "simulation")
	if err == nil {
		w.count("tags created again", 1)
	}
	return err
}

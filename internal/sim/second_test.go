package sim_test

import (
	"context"
	"slices"

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
	// has not begun. With the other time zone it begins an hour later: for clocks that are ahead it
	// has begun.
	yearly = allocator.Tag("yearly")
	// wrongClock is the name of the disaster by which periods meet wrong clocks.
	wrongClock = "clock hours off"
)

// periodsOutlastMargins says that no ID of a tag with a period comes twice after a recover that
// went on without an instance, whatever clocks show: DESIGN 3.2 promises it. The operator's margin
// (see world.margin) does not count with periods yet, so it is not checked.
const periodsOutlastMargins = false

// yearly returns the settings of the tag with a period.
func (w *world) yearly(s record.TagSettings) record.TagSettings {
	s.Start, s.Limit = 0, allocator.MaxID
	s.Period = period.Period{Unit: period.Year, Digits: period.Year.MaxDigits(),
		Zone: pick(w.dice("time zone"), []string{"UTC", "Etc/GMT+1"})}
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

// beyondMargins reports whether IDs of a tag may come twice, because nothing promises that they do
// not. The caller holds the lock.
func (w *world) beyondMargins(tag allocator.Tag) bool {
	if tag != yearly || periodsOutlastMargins || !w.mu.past.guessed {
		return false
	}
	w.mu.counts["IDs of a tag with a period, not checked after a recover without an instance"]++
	return true
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

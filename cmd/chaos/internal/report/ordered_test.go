package report_test

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/chaos/internal/report"
)

// The report finds an ID of an ordered tag that is smaller than one that any instance had answered when its call was
// sent. It finds no other ID, and none that the holder of another instance, or of another room, issued.
func TestOrderedTags(t *testing.T) {
	for name, order := range map[string]record.StrictOrder{"room": record.OrderRoom, "cluster": record.OrderCluster} {
		for fault, c := range map[string]struct {
			late time.Duration // how long before the second answer its call was sent
			want int64
		}{"none": {-1, 0}, "an inversion": {time.Microsecond, 1}, "at the same time": {time.Second, 0}} {
			t.Run(name+", "+fault, func(t *testing.T) {
				r := newRun(t)
				settings := record.DefaultTag()
				settings.StrictOrder, settings.TenureHold = order, record.DefaultTenureHold
				other := allocator.Room("a")
				if order == record.OrderCluster {
					settings.Home, other = "a", "b"
				}
				_, err := r.admin.CreateTag(bg, "o", settings, "test")
				must(t, err)
				holder, passes := r.joinFor("o", "a", "one"), r.joinFor("o", other, "two")
				_, _, err = holder.joined.Hold(bg, holder.source, time.Second, "")
				must(t, err)
				holder.lease(40)
				first, second := allocator.Run{First: holder.held[0].First, Count: 10}, holder.held[0]
				second.First, second.Count = second.First+10, 10
				holder.answer(first, time.Time{})
				if c.want == 0 && c.late < 0 {
					passes.answer(second, time.Time{})
				} else {
					second.First += 10
					holder.answer(second, time.Time{})
					second.First -= 10
					passes.answer(second, r.at.Add(time.Millisecond-c.late))
				}
				r.end(holder, passes)
				got, err := report.Check(bg, r.dir)
				must(t, err)
				if got.Inversions.Count != c.want || len(got.Failures()) != int(c.want) || got.Ordered < 2 {
					t.Errorf("%d inversions in %d answers; failures: %q", got.Inversions.Count, got.Ordered,
						got.Failures())
				}
			})
		}
	}
}

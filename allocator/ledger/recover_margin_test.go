package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
)

// later returns a ledger with a clock that stands so long after the last beat.
func (c *cluster) later(age time.Duration) *ledger.Ledger {
	c.Helper()
	var beat struct{ Time time.Time }
	if err := json.Unmarshal(c.Value("beat"), &beat); err != nil {
		c.Fatalf("beat: %v", err)
	}
	return ledgertest.Open(c.TB, c.Mem.Open(), func(cfg *ledger.Config) {
		cfg.Now = func() time.Time { return beat.Time.Add(age) }
	})
}

// A step of a tag lasts for the tag's reserve. So the margin goes by the least reserve
// of all tags, and by the default where that is less: tags that the backup does not know
// may have it.
func TestMarginGoesByTheLeastReserve(t *testing.T) {
	for _, test := range []struct {
		reserves []time.Duration
		want     int64 // for an hour and each instance
	}{
		{nil, 1 + 2*6},
		{[]time.Duration{time.Hour}, 1 + 2*6},
		{[]time.Duration{2 * time.Hour, time.Minute, time.Hour}, 1 + 2*60},
	} {
		c := newCluster(t, "100 a=0-50 b=50-100")
		for k, reserve := range test.reserves {
			c.Tag(allocator.Tag(fmt.Sprint("u", k)), func(s *record.TagSettings) {
				s.Reserve = record.DurationOf(reserve)
			})
		}
		a, b, third := c.startAs("a", "one"), c.startAs("b", "two"), c.startAs("b", "three")
		all := asking([]*process{a, b, third})
		l := c.later(time.Hour)
		silent := func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			// One never answers, the other not after the halt.
			if s.Name == "one" || s.Name == "two" && q.Barrier != nil {
				return record.Memory{}, allocator.Errorf(allocator.Unavailable, "it is silent")
			}
			return all(ctx, s, q, use)
		}
		cfg := recovery.Config{Actor: "ann", Ask: silent, Without: []record.InstanceID{a.id(), b.id()}}
		if report, err := recovery.Run(bg, l, cfg); err != nil || report.Margin != test.want {
			t.Errorf("reserves %v, one silent: margin %d, %v; want %d", test.reserves, report.Margin, err, test.want)
		}
		cfg.Apply = true
		if report, err := recovery.Run(bg, l, cfg); err != nil || report.Margin != 2*test.want ||
			report.Total != report.Margin {
			t.Errorf("reserves %v, two silent: margin %d, total %d, %v; want %d", test.reserves, report.Margin,
				report.Total, err, 2*test.want)
		}
		// Where all answer there is none; and an operator's word stands.
		cfg.Ask = all
		if report, err := recovery.Run(bg, c.later(time.Hour), cfg); err != nil || report.Margin != 0 {
			t.Errorf("none silent: margin %d, %v", report.Margin, err)
		}
		cfg.Ask = silent
		margin(7)(&cfg)
		if report, err := recovery.Run(bg, c.later(time.Hour), cfg); err != nil || report.Margin != 7 {
			t.Errorf("--margin 7: margin %d, %v", report.Margin, err)
		}
	}
}

// A raise takes over the margin total of the lease that it is for. It once kept the mark's: the
// room then got the margins of earlier recovers once more, and went further than the total said.
func TestRaiseTakesOverTheTotalOfItsLease(t *testing.T) {
	c := newCluster(t, "1000 a=0-500 b=500-1000")
	c.Tag("t1", steps(500))
	const span = 2 * 1000
	a, b := c.start("a"), c.start("b")
	lease := func(n int64) allocator.Segment {
		t.Helper()
		a.hear()
		seg, err := a.TryLease("t1", n)
		if err != nil {
			t.Fatal(err)
		}
		return seg
	}
	lease(10)
	backup := c.Mem.Revision()
	c.mustRecover([]*process{a}, without(b.id()), margin(5))
	lost := lease(10)
	c.Mem.Restore(backup, 0, ledgertest.ClusterID)
	if report := c.mustRecover([]*process{a}, without(b.id()), margin(3)); report.Total != 8 {
		t.Fatalf("total %d", report.Total)
	}
	if m := c.markOf("a", "t1"); m.Next != lost.Last()+1 || m.Total != 5 {
		t.Errorf("the raised mark: %+v", m)
	}
	if seg := lease(10); seg.First < lost.Last()+3*span || seg.First > lost.Last()+3*span+1000 {
		t.Errorf("after the second recover: %v; the lost lease ended at %d", seg, lost.Last())
	}
	c.Check()
}

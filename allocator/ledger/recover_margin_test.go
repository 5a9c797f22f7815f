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

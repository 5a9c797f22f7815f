package report_test

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/cmd/chaos/internal/report"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// The report finds an ID of a strict tag if its call was sent later than hold after the
// layout was replaced. It finds no other ID.
func TestStrictTag(t *testing.T) {
	const hold = 5 * time.Second
	for _, test := range []struct {
		name   string
		strict bool
		hold   time.Duration
		change bool
		after  time.Duration // since the change
		want   int64
	}{
		{"late", true, hold, true, hold + 2*time.Second, 3},
		{"within the hold", true, hold, true, hold - time.Second, 0},
		{"another tag", false, hold, true, time.Minute, 0},
		{"under the layout in force", true, hold, false, time.Minute, 0},
		{"in a run that does not say what hold was", true, 0, true, time.Minute, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRun(t)
			must(t, runlog.Run{Cluster: "default", Kinds: []string{"kill"}, Hold: test.hold}.Write(r.dir))
			settings := record.DefaultTag()
			settings.StrictRetract = test.strict
			_, err := r.admin.CreateTag(bg, "strict", settings, "test")
			must(t, err)
			a := r.joinFor("strict", "a", "one")
			a.lease(100)
			a.issue(1)
			if test.change {
				r.change()
				r.recorded()
			}
			r.at = time.Now().Add(test.after)
			a.issue(3)
			r.end(a)
			got, err := report.Check(bg, r.dir)
			must(t, err)
			if got.Stale.Count != test.want || (got.Verdict == report.Failed) != (test.want > 0) {
				t.Errorf("%d are stale: %v; failures: %q", got.Stale.Count, got.Stale.Examples, got.Failures())
			}
		})
	}
}

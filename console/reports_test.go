package console

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
)

// TestReportsAreNoted: while a migration waits, the console says when it saw each report. Then the
// log has the latest of them with these times, and how many there were before.
func TestReportsAreNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		s := b.console()
		var instances []*ledger.Instance
		for k := range reportsNoted + 2 {
			instances = append(instances, b.join("a", allocator.Instance(fmt.Sprintf("i-%02d", k)), time.Hour))
		}
		m := b.migrate(time.Hour)
		step := func() {
			t.Helper()
			time.Sleep(time.Second)
			must(s.driveOnce(bg))(t)
		}
		step()
		var seen []time.Time
		for _, i := range instances {
			if len(seen) == 1 {
				shown := must(s.showMigration(bg, b.read(m.ID)))(t)
				if r := shown.GetMoves()[0].GetReports(); !r[0].GetReported().AsTime().Equal(seen[0]) ||
					r[1].GetReported() != nil {
					t.Errorf("i-00 and i-01 reported at %v and %v, want %v and none", r[0].GetReported().AsTime(),
						r[1].GetReported(), seen[0])
				}
			}
			if err := i.Serve(bg, 2); err != nil {
				t.Fatal(err)
			}
			step()
			seen = append(seen, time.Now())
		}
		step()
		m = b.read(m.ID)
		if m.State != record.Done {
			t.Fatalf("the migration is %s", m.State)
		}
		var got, want []string
		for _, e := range m.Log {
			if strings.Contains(e.Text, "reported") {
				got = append(got, e.Time.Format(time.TimeOnly)+" "+e.Text)
			}
		}
		for k, at := range seen {
			switch text := at.UTC().Format(time.TimeOnly); {
			case k == 1:
				want = append(want, text+" 2 instances reported move 1")
			case k > 1:
				want = append(want, fmt.Sprintf("%s a/i-%02d reported move 1", text, k))
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("the log says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

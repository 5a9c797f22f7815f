package console_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// The list of problems has tags whose time bits end within a year, the first first, and
// slices with few workers left; a metric has each, for alerts.
func TestProblemsOfTimeTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := testcluster.New(t)
		c.Init(testcluster.Halves(), "test")
		lately := c.LedgerOver(c.Open(t), func(cfg *ledger.Config) {
			cfg.Now = func() time.Time { return time.Now().Add(-48 * time.Hour) }
		})
		// ending creates a tag whose time bits end in some days, by a clock of two days ago.
		ending := func(days int) {
			t.Helper()
			l := timeid.Layout{TimeBits: 40, WorkerBits: 3, SequenceBits: 12, Unit: time.Millisecond}
			l.Epoch = time.Now().Add(time.Duration(days)*24*time.Hour).UnixMilli() - 1<<40
			tag := record.NewTimeTag(l)
			settings := record.DefaultTag()
			settings.Time = &tag
			if _, err := admin.New(lately, admin.DefaultConfig()).CreateTag(bg, tagOf(1000+days),
				settings, "test"); err != nil {
				t.Fatal(err)
			}
		}
		for _, days := range []int{300, 366, 500, -1} {
			ending(days)
		}
		c.Tag(nil, "test", "counter")
		keys := record.Keys("/march/default/")
		live := func(bits int, numbers ...int64) {
			t.Helper()
			now := time.Now().UnixMilli()
			for _, number := range numbers {
				w := record.Worker{
					Room: "a", Instance: "one", Incarnation: "c", From: now - 1000,
					Until: now + time.Hour.Milliseconds(), Clock: now,
					Stamp: record.Stamp{Epoch: "e", Revision: 1},
				}
				c.Corrupt(store.OpPut(keys.Worker(record.WorkerID{Bits: bits, Number: number}), w.Encode()))
			}
		}
		live(3, 0, 1, 2, 4, 5, 6, 7) // room a has three of four, room b all
		live(1, 0, 1)                // slices of one worker
		s := c.Console(func(cfg *console.Config) { cfg.Metrics = serve.NewMetrics("test", nil) })
		var got []string
		testcluster.Await(t, "the problems are told", func() bool {
			answer := must(s.GetOverview(bg, &marchv1.GetOverviewRequest{}))(t)
			got = nil
			for _, p := range answer.GetProblems() {
				switch p.GetKind() {
				case marchv1.ProblemKind_PROBLEM_KIND_TIME_ENDS, marchv1.ProblemKind_PROBLEM_KIND_WORKERS_USED:
					got = append(got, fmt.Sprintf("%s %s: %s", api.Word(p.GetKind()), p.GetOf(), p.GetWhat()))
				}
			}
			return len(got) == 3
		})
		for k, want := range []string{
			fmt.Sprintf("time_ends %s: the time bits of tag %s were used up at ", tagOf(999), tagOf(999)),
			fmt.Sprintf("time_ends %s: the time bits of tag %s are used up at ", tagOf(1300), tagOf(1300)),
			"workers_used b, 3 bits: 4 of the 4 workers of 3 bits that room b may take are in use",
		} {
			if !strings.HasPrefix(got[k], want) {
				t.Errorf("got %q, want that it begins with %q", got[k], want)
			}
		}
		_, body := testcluster.Get(s.HTTP, "/metrics")
		lines := strings.Split(body, "\n")
		for _, want := range []string{"march_time_left_seconds 0",
			`march_worker_slice_used_ratio{bits="1",room="a"} 0`, `march_worker_slice_used_ratio{bits="3",room="a"} 0.75`,
			`march_worker_slice_used_ratio{bits="3",room="b"} 1`} {
			if !slices.Contains(lines, want) {
				t.Errorf("no %q among the metrics", want)
			}
		}
	})
}

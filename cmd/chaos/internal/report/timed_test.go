package report_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	workers "github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/cmd/chaos/internal/report"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// timedLayout is the layout of the tag e.
var timedLayout = timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond,
	Epoch: timeid.EpochCosId}

// timer is an instance with a worker, and its caller.
type timer struct {
	*workers.Worker
	run  *run
	room allocator.Room
	name allocator.Instance
	file *runlog.Writer
}

func (r *run) timer(room allocator.Room, name allocator.Instance) *timer {
	r.t.Helper()
	l, err := ledger.New(r.store.Open(), ledger.DefaultConfig())
	must(r.t, err)
	joined, err := l.Join(bg, ledger.Registration{Room: room, Name: name})
	must(r.t, err)
	all, err := workers.New(joined, workers.DefaultConfig())
	must(r.t, err)
	w := &timer{run: r, room: room, name: name}
	w.Worker, err = all.Take(bg, workers.Request{Bits: 10, Tick: time.Millisecond})
	must(r.t, err)
	w.file, err = runlog.Create(r.dir, fmt.Sprintf("%s-%s-e", room, name))
	must(r.t, err)
	return w
}

// answer logs that a caller got IDs of a worker, at a time of the worker's window.
func (w *timer) answer(of *timer, at, sequence, count int64) {
	w.run.t.Helper()
	first, err := timedLayout.Compose(timeid.Parts{Time: at, Worker: of.ID().Number, Sequence: sequence})
	must(w.run.t, err)
	w.run.at = w.run.at.Add(time.Millisecond)
	must(w.run.t, w.file.Add(runlog.Answer{
		Sent: w.run.at, Received: w.run.at, Room: w.room, Instance: w.name, Tag: "e",
		Runs: []allocator.Run{{First: first, Count: count}},
	}))
}

// The oracles of time-ordered IDs find each planted fault, and nothing else.
func TestTimedOracles(t *testing.T) {
	for _, test := range []struct {
		name          string
		twice, window int64 // findings
		fault         func(a, a2, b *timer)
	}{
		{name: "nothing", fault: func(_, _, _ *timer) {}},
		{name: "the first and the last tick", fault: func(a, _, _ *timer) {
			a.answer(a, a.Window().From, 0, 4096)
			a.answer(a, a.Window().Until-1, 0, 1)
		}},
		{name: "a tick after the window", window: 7, fault: func(a, _, _ *timer) {
			a.answer(a, a.Window().Until, 0, 7)
		}},
		{name: "a tick before the window", window: 7, fault: func(a, _, _ *timer) {
			a.answer(a, a.Window().From-1, 0, 7)
		}},
		{name: "another room's worker", window: 5, fault: func(a, _, b *timer) {
			a.answer(b, b.Window().From+500, 0, 5)
		}},
		{name: "another instance's worker", window: 5, fault: func(a, a2, _ *timer) {
			a2.answer(a, a.Window().From+500, 0, 5)
		}},
		{name: "IDs twice", twice: 3, fault: func(a, _, _ *timer) {
			a.answer(a, a.Window().From+9, 10, 10)
			a.answer(a, a.Window().From+9, 17, 30)
		}},
		{name: "IDs twice, one answer within another", twice: 4, fault: func(a, _, _ *timer) {
			a.answer(a, a.Window().From+9, 10, 100)
			a.answer(a, a.Window().From+9, 20, 2)
			a.answer(a, a.Window().From+9, 40, 2)
		}},
		{name: "the same sequence in another tick", fault: func(a, _, _ *timer) {
			a.answer(a, a.Window().From+9, 10, 10)
			a.answer(a, a.Window().From+10, 10, 10)
		}},
		{name: "into the next worker's IDs", window: 2, fault: func(a, _, _ *timer) {
			a.answer(a, a.Window().From+9, 4000, 98)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRun(t)
			settings := record.DefaultTag()
			tag := record.NewTimeTag(timedLayout)
			settings.Time = &tag
			_, err := r.admin.CreateTag(bg, "e", settings, "test")
			must(t, err)
			counter := r.join("a", "one")
			counter.lease(100)
			counter.issue(1)
			timers := []*timer{r.timer("a", "two"), r.timer("a", "three"), r.timer("b", "one")}
			for _, w := range timers {
				w.answer(w, w.Window().From+100, 0, 50)
				w.answer(w, w.Window().From+100, 50, 50)
			}
			pinned := fmt.Sprintf("two %d", timers[0].ID().Number)
			must(t, runlog.Run{Cluster: "default", Kinds: []string{"kill"}, Rows: map[string]string{
				pinned: "pinned worker", "two": "any worker", "two 1023": "another worker"}}.Write(r.dir))
			test.fault(timers[0], timers[1], timers[2])
			for _, w := range timers {
				must(t, w.file.Close())
			}
			r.end(counter)
			got, err := report.Check(bg, r.dir)
			must(t, err)
			if got.Duplicates.Count != test.twice || got.NoWindow.Count != test.window || got.TimeIDs < 300 ||
				got.Windows != 3 || got.Planted != 2 ||
				(got.Verdict == report.Failed) != (test.twice+test.window > 0) {
				t.Errorf("%d twice, %d of no window, %d IDs, %d windows, %d planted, %q", got.Duplicates.Count,
					got.NoWindow.Count, got.TimeIDs, got.Windows, got.Planted, got.Failures())
			}
			if got.Rows["pinned worker"] == 0 || len(got.Rows) > 1 {
				t.Errorf("features %v", got.Rows)
			}
		})
	}
}

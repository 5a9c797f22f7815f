package report_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/report"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// A run without a fault passes. The oracle for each fault finds it.
func TestOraclesFindPlantedFaults(t *testing.T) {
	type run3 struct {
		*run
		a, a2, b *worker
	}
	for _, test := range []struct {
		name  string
		want  func(r *report.Report) *report.Finding // nil: it passes
		count int64                                  // 0: any
		fault func(r run3)
		after func(r run3) // the run ended
	}{
		{name: "nothing"},
		{
			name: "an ID twice, by one instance", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Duplicates
			},
			fault: func(r run3) {
				run := r.b.issue(3)
				r.b.answer(allocator.Run{First: run.First + 1, Count: 1}, time.Time{})
			},
		},
		{
			name: "IDs twice, by two instances", count: 5, want: func(r *report.Report) *report.Finding {
				return &r.Duplicates
			},
			fault: func(r run3) { r.a2.answer(r.a.issue(5), time.Time{}) },
		},
		{
			name: "a residue of another room", count: 2, want: func(r *report.Report) *report.Finding {
				return &r.WrongRoom
			},
			fault: func(r run3) { r.a.answer(allocator.Run{First: 160, Count: 2}, time.Time{}) },
		},
		{
			name: "IDs of another instance's segment", count: 4, want: func(r *report.Report) *report.Finding {
				return &r.NotLeased
			},
			fault: func(r run3) {
				run := r.a2.held[0]
				r.a.answer(allocator.Run{First: run.First, Count: 4}, time.Time{})
			},
		},
		{
			name: "IDs that no instance leased", count: 3, want: func(r *report.Report) *report.Finding {
				return &r.NotLeased
			},
			fault: func(r run3) { r.a.answer(allocator.Run{First: 1_000_000, Count: 3}, time.Time{}) },
		},
		{
			name: "IDs that came before they were leased", count: 4, want: func(r *report.Report) *report.Finding {
				return &r.Early
			},
			fault: func(r run3) {
				r.at = r.leased.Add(-2 * time.Millisecond)
				r.b.issue(4)
			},
		},
		{
			name: "an ID below one before", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Inversions
			},
			fault: func(r run3) {
				first := r.a.held[0]
				r.a.held[0].First, r.a.held[0].Count = first.First+1, first.Count-1
				r.a.issue(1)
				r.a.answer(allocator.Run{First: first.First, Count: 1}, time.Time{})
			},
		},
		{
			name:  "an ID below one that had not come when it was asked for",
			fault: func(r run3) { late(r.a) },
		},
		{
			name: "an ID too far behind", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Behind
			},
			fault: func(r run3) {
				r.a.catchUp("")
				r.a.issue(1)
			},
		},
		{
			name: "IDs of what a process left that was behind",
			fault: func(r run3) {
				r.a.catchUp(`{"@level":"info","@message":"stopped"}` + "\n")
				r.a.issue(1)
			},
		},
		{
			name: "an ID of an old layout after the report", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Retracted
			},
			fault: func(r run3) {
				r.change()
				must(r.t, r.a.joined.Serve(bg, 2))
				r.recorded()
				r.at = time.Now().Add(time.Second)
				r.a.issue(1)
			},
		},
		{
			name: "an ID of an old layout to a call from before the report",
			fault: func(r run3) {
				r.change()
				must(r.t, r.a.joined.Serve(bg, 2))
				r.recorded()
				sent := r.at
				r.at = time.Now().Add(time.Second)
				run := r.a.held[0]
				r.a.answer(allocator.Run{First: run.First, Count: 1}, sent)
			},
		},
		{
			name: "a mark that fell", want: func(r *report.Report) *report.Finding { return &r.Rules },
			fault: func(r run3) {
				v, _ := r.store.Value("/march/default/marks/b/t")
				r.store.Corrupt(store.Op{Put: &store.Put{Key: "/march/default/marks/b/t",
					Value: []byte(strings.NewReplacer(`"next":"4`, `"next":"1`, `"end":"4`,
						`"end":"1`).Replace(string(v)))}})
			},
		},
		{
			name: "a lease that etcd does not know", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Leases
			},
			after: func(r run3) {
				path := filepath.Join(r.dir, "logs", "a.one.log")
				log, err := os.ReadFile(path)
				must(r.t, err)
				must(r.t, os.WriteFile(path, []byte(strings.Replace(string(log), `"count":200`, `"count":199`, 1)),
					0o600))
			},
		},
		{
			name: "a promise that was measured", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Measured
			},
			fault: func(r run3) {
				r.events.Add(runlog.Event{What: runlog.Issuing, Fault: 1, Took: time.Hour, Violation: "an hour"})
			},
		},
		{
			name: "an etcd that went back by itself", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Rules
			},
			after: func(r run3) {
				path := filepath.Join(r.history(), runlog.EtcdsHistory)
				content, err := os.ReadFile(path)
				must(r.t, err)
				must(r.t, os.WriteFile(path, reborn(r.t, content), 0o600))
			},
		},
		{
			name: "processes that panicked", count: 3, want: func(r *report.Report) *report.Finding {
				return &r.Processes
			},
			after: func(r run3) {
				r.say("a.one", "panic: runtime error: index out of range [7]\n\ngoroutine 1 [running]:")
				r.say("recover-1-0.txt", "panic: a command")
				r.say("c0", "fatal error: all goroutines are asleep - deadlock!")
				r.say("b.one", `{"@level":"info","@message":"panic: not at its beginning"}`)
			},
		},
		{
			name: "errors outside of restores", count: 2, want: func(r *report.Report) *report.Finding {
				return &r.Processes
			},
			after: func(r run3) {
				r.restored(runlog.Event{Kind: "plain"}, time.Hour)
				for _, ago := range []time.Duration{time.Hour + 2*time.Second, time.Hour + time.Second/2,
					time.Hour - 10*time.Second, time.Hour - 12*time.Second} {
					r.say("a.one", fmt.Sprintf(`{"@level":"error","@message":"registration lost","@timestamp":%q}`,
						time.Now().Add(-ago).Format(time.RFC3339Nano)))
				}
			},
		},
		{
			name: "an error while one member forgets, which loses nothing", count: 1,
			want: func(r *report.Report) *report.Finding {
				return &r.Processes
			},
			after: func(r run3) {
				r.restored(runlog.Event{Kind: runlog.OneCopiedBack}, time.Hour)
				r.say("c1", fmt.Sprintf(`{"@level":"error","@message":"leasing is halted","@timestamp":%q}`,
					time.Now().Add(-time.Hour).Format(time.RFC3339Nano)))
			},
		},
		{
			name: "an instance that was left behind", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Processes
			},
			after: func(r run3) {
				r.restored(runlog.Event{Kind: runlog.ForceNewCluster}, time.Hour)
				r.say("a.two", r.behind())
			},
		},
		{
			name: "an instance that was left behind by a restore that no process can see",
			after: func(r run3) {
				r.restored(runlog.Event{Kind: runlog.ForceNewCluster, Target: runlog.WithoutJournal}, time.Hour)
				r.say("a.two", r.behind())
			},
		},
		{
			name: "calls that failed by a defect", count: 3, want: func(r *report.Report) *report.Finding {
				return &r.Calls
			},
			after: func(r run3) {
				r.restored(runlog.Event{Kind: "plain"}, time.Hour)
				r.failed("internal", time.Hour, 3)
				r.failed("unavailable", time.Minute, 50)
				r.failed("grpc Internal", time.Minute, 4)
			},
		},
		{
			name: "calls that failed as etcd went back, and it was not restored", count: 6,
			want: func(r *report.Report) *report.Finding {
				return &r.Calls
			},
			after: func(r run3) {
				r.restored(runlog.Event{Kind: "plain"}, time.Hour)
				r.failed("went_back", time.Hour+2*time.Second, 2)
				r.failed("went_back", time.Hour-5*time.Second, 500)
				r.failed("invalid", time.Minute, 4)
			},
		},
		{
			name: "a machine ID of two clients", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.SameMachine
			},
			after: func(r run3) { r.holdings(time.Hour) },
		},
		{
			name: "a machine ID of two clients, where etcd was restored meanwhile",
			after: func(r run3) {
				r.restored(runlog.Event{Kind: "plain"}, time.Hour+time.Second)
				r.holdings(time.Hour)
			},
		},
		{
			name: "a history that ends before the run", count: 2, want: func(r *report.Report) *report.Finding {
				return &r.Checker
			},
			fault: func(r run3) { // the revision, and a lease
				r.recorded()
				r.stop()
				r.short, r.leased = true, time.Now()
				r.b.lease(10)
			},
		},
		{
			name: "a history of another etcd", count: 1, want: func(r *report.Report) *report.Finding {
				return &r.Checker
			},
			after: func(r run3) {
				path := filepath.Join(r.dir, runlog.Dir, runlog.Faults)
				events, err := os.ReadFile(path)
				must(r.t, err)
				must(r.t, os.WriteFile(path, []byte(strings.Replace(string(events), `"cluster_id":"`,
					`"cluster_id":"7`, 1)), 0o600))
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRun(t)
			a, a2, b := r.join("a", "one"), r.join("a", "two"), r.join("b", "one")
			for _, w := range []*worker{a, b, a2} {
				w.lease(200)
			}
			a.issue(20)
			for range 4 {
				for _, w := range []*worker{a, a2, b} {
					w.issue(15)
				}
			}
			all := run3{r, a, a2, b}
			if test.fault != nil {
				test.fault(all)
			}
			r.end(a, a2, b)
			if test.after != nil {
				test.after(all)
			}
			got, err := report.Check(bg, r.dir)
			if err != nil {
				t.Fatal(err)
			}
			if test.want == nil {
				if failures := got.Failures(); len(failures) > 0 || got.Verdict == report.Failed {
					t.Errorf("failures: %v", failures)
				}
				return
			}
			if f := test.want(got); got.Verdict != report.Failed || test.count != 0 && f.Count != test.count ||
				f.Count == 0 || len(f.Examples) == 0 {
				t.Errorf("found %d of it, want %d: %v; all: %q", f.Count, test.count, f.Examples, got.Failures())
			}
		})
	}
}

// catchUp logs that the tag is behind, and leases. Some lines come between. What was held before is held still.
func (w *worker) catchUp(between string) {
	w.run.t.Helper()
	w.run.leased, w.run.at = w.run.at, w.run.at.Add(2*time.Second)
	logged, held := w.log.Len(), len(w.held)
	w.lease(40)
	lease := string(w.log.Bytes()[logged:])
	w.log.Truncate(logged)
	_, err := fmt.Fprintf(w.log, `{"@message":%q,"room":%q,"instance":%q,"tag":%q,"least":%d}`+"\n%s%s",
		w.run.source("../../../../room/skew.go", `log\.Debug\("([^"]+)", "room"`), w.room, w.name, w.tag,
		w.held[held].First, between, lease)
	must(w.run.t, err)
}

// source returns what is in parentheses where a file of the source matches.
func (r *run) source(path, like string) string {
	r.t.Helper()
	source, err := os.ReadFile(path)
	must(r.t, err)
	found := regexp.MustCompile(like).FindSubmatch(source)
	if found == nil {
		r.t.Fatalf("%s says nothing any longer like %s", path, like)
	}
	return string(found[1])
}

// say adds a line to a process's log, or to a command's output if log ends in .txt.
func (r *run) say(log, line string) {
	r.t.Helper()
	if !strings.HasSuffix(log, ".txt") {
		log += ".log"
	}
	file, err := os.OpenFile(filepath.Join(r.dir, "logs", log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(r.t, err)
	_, err = file.WriteString(line + "\n")
	must(r.t, errors.Join(err, file.Close()))
}

// behind returns the line that an instance logs if the recover of an hour ago went on
// without it. The message is the one in the room's source.
func (r *run) behind() string {
	r.t.Helper()
	message := r.source("../../../../room/report.go", `s\.log\.Error\("([^"]+)", "tag", o\.Tag`)
	return fmt.Sprintf(`{"@level":"error","@message":%q,"@timestamp":%q}`, message,
		time.Now().Add(-time.Hour).Format(time.RFC3339Nano))
}

// restored adds the events of a restore some time ago, and of a recover ten seconds later.
func (r *run) restored(e runlog.Event, ago time.Duration) {
	r.t.Helper()
	file, err := os.OpenFile(filepath.Join(r.dir, runlog.Dir, runlog.Faults), os.O_APPEND|os.O_WRONLY, 0o600)
	must(r.t, err)
	e.What, e.Time = runlog.Restoring, time.Now().Add(-ago)
	must(r.t, json.NewEncoder(file).Encode(e))
	e.What, e.Time = runlog.Recovered, e.Time.Add(10*time.Second)
	must(r.t, errors.Join(json.NewEncoder(file).Encode(e), file.Close()))
}

// holdings has a client take machine ID 7 ten seconds after another one took it, which gives it back five seconds
// later. A third one takes it then.
func (r *run) holdings(ago time.Duration) {
	r.t.Helper()
	file, err := runlog.CreateHoldings(r.dir, "a")
	must(r.t, err)
	from := time.Now().Add(-ago)
	for i, client := range []string{"x", "y", "z"} {
		h := runlog.Holding{Client: client, Instance: "one", Number: 7,
			From: from.Add(time.Duration(i) * 10 * time.Second)}
		h.Until = h.From.Add(10 * time.Second)
		if client == "x" {
			h.Until = h.From.Add(15 * time.Second)
		}
		must(r.t, file.Add(h))
	}
	must(r.t, file.Close())
}

// failed makes calls fail some time ago.
func (r *run) failed(kind string, ago time.Duration, n int) {
	r.t.Helper()
	r.fails++
	file, err := runlog.Create(r.dir, fmt.Sprint("failed-", r.fails))
	must(r.t, err)
	at := time.Now().Add(-ago)
	for range n {
		must(r.t, file.Add(runlog.Answer{Sent: at, Received: at, Room: "a", Instance: "one", Tag: "t", Failed: kind,
			Error: kind}))
	}
	must(r.t, file.Close())
}

// late adds an answer with lower IDs than the answers before it. Its call was sent before
// they came.
func late(w *worker) {
	run := w.held[0]
	sent := w.run.at.Add(time.Microsecond)
	w.held[0].First, w.held[0].Count = run.First+1, run.Count-1
	w.issue(1)
	w.answer(allocator.Run{First: run.First, Count: 1}, sent)
}

// change takes residues from room a.
func (r *run) change() {
	r.t.Helper()
	from, err := r.admin.Ledger.Refresh(bg)
	must(r.t, err)
	_, err = r.admin.ChangeLayout(bg, from, allocator.Layout{Boundary: 100,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 20}, "b": {Lower: 50, Upper: 100}}}, "test")
	must(r.t, err)
}

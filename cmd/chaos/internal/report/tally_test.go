package report_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/report"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// A report counts the events of a run. A run with too few of them is weak.
func TestTally(t *testing.T) {
	r := newRun(t)
	a, b := r.join("a", "one"), r.join("b", "one")
	a.lease(100)
	b.lease(250)
	failed := 0
	a.conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if ledgertest.Writes(txn) {
			failed++
			return ledgertest.Fate{Name: ledgertest.DoneAnswerLost}
		}
		return ledgertest.Fate{}
	})
	if _, err := a.source.Lease(bg, 100); err == nil {
		t.Fatal("leased")
	}
	a.conn.Fate(nil)
	a.lease(100)
	for range 4 {
		a.issue(50)
		b.issue(50)
	}
	r.at = r.at.Add(time.Minute)
	b.issue(1)
	r.events.Add(runlog.Event{What: runlog.Issuing, Fault: 1, Kind: "kill", Took: time.Second, Limit: 5 * time.Second})
	r.failed("unavailable", time.Hour, 30)
	r.failed("grpc Canceled", time.Hour, 1)
	r.failed("unavailable", time.Minute, 20)
	r.end(a, b)
	got, err := report.Check(bg, r.dir)
	if err != nil {
		t.Fatal(err)
	}
	tr := got.Transactions
	switch {
	case tr.OK != 3 || tr.Failed != 1 || tr.Applied != 1 || failed != 1:
		t.Errorf("transactions %+v", tr)
	case got.IDs != 350 || got.Answers != 9 || got.Segments != 3 || got.Unissued != 100 || got.Skipped != 100:
		t.Errorf("%d IDs in %d answers of %d segments, %d unissued, %d skipped", got.IDs, got.Answers,
			got.Segments, got.Unissued, got.Skipped)
	case len(got.Rooms) != 2 || got.Rooms[1].Silence < time.Minute || got.Rooms[1].IDs != 201 ||
		got.Rooms[0].Silence > time.Second:
		t.Errorf("rooms %+v", got.Rooms)
	case got.Faults["kill"] != 1 || got.Recovery.Count != 1 || got.Recovery.P99 != time.Second:
		t.Errorf("faults %v, recovery %v", got.Faults, got.Recovery)
	case got.Refill.Calm.Count+got.Refill.Faults.Count != 3:
		t.Errorf("refills %+v", got.Refill)
	case got.Planted != 1 || len(got.Failures()) > 0:
		t.Errorf("%d planted, failures %v", got.Planted, got.Failures())
	}
	if weak := got.Weak(); len(weak) != 1 || weak[0] != "0 migrations; a run of 0s has 1" {
		t.Errorf("weak for %q", weak)
	}
	var text strings.Builder
	must(t, got.Print(&text))
	for _, want := range []string{"350 in 9 answers", "1 failed but applied", "1 grpc Canceled, 50 unavailable",
		"duplicates", "WEAK    0 migrations", "\nweak\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, text.String())
		}
	}
	if b, err := json.Marshal(got); err != nil || !strings.Contains(string(b), `"verdict":"weak"`) {
		t.Errorf("as JSON: %s, %v", b, err)
	}
	again, err := report.Check(bg, r.dir)
	if err != nil || again.IDs != got.IDs || again.Planted != 1 || len(again.Failures()) > 0 {
		t.Errorf("checked again: %+v, %v", again, err)
	}
}

// A run without any event is weak in every way, and a longer one in more.
func TestWeak(t *testing.T) {
	r := newRun(t)
	r.end()
	always := []string{"no IDs", "no duplicate was planted"}
	few := []string{"freeze", "kill"}
	all := append([]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, few...)
	for _, test := range []struct {
		length time.Duration
		kinds  []string
		want   []string
	}{
		{10 * time.Second, all, append(always, "0 migrations; a run of 10s has 1")},
		{time.Minute, all, append(always, "1 faults; a run of 1m0s has 10", "0 migrations; a run of 1m0s has 2",
			"faults of 1 kinds; a run of 1m0s has 10", "failed and was applied")},
		{time.Minute, few, append(always, "1 faults; a run of 1m0s has 2", "0 migrations; a run of 1m0s has 2",
			"faults of 1 kinds; a run of 1m0s has 2", "failed and was applied")},
		{10 * time.Minute, all, append(always, "1 faults; a run of 10m0s has 100",
			"0 migrations; a run of 10m0s has 20", "these kinds: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, freeze",
			"failed and was applied")},
		{10 * time.Minute, few, append(always, "1 faults; a run of 10m0s has 2", "0 migrations; a run of 10m0s has 20",
			"these kinds: freeze", "failed and was applied")},
		{9 * time.Minute, few, append(always, "0 migrations; a run of 9m0s has 18", "faults of 1 kinds", "1 faults",
			"failed and was applied")},
		{19 * time.Minute, few, append(always, "0 migrations", "these kinds: freeze", "failed and was applied",
			"1 faults", "feature: counter", "feature: quota", "feature: skew", "kind: shift", "kind: switch")},
	} {
		run := runlog.Run{Cluster: "default", Kinds: test.kinds, Time: test.length}
		if test.length%(10*time.Minute) == 9*time.Minute {
			run.Rows = map[string]string{"t": "counter", "behind t": "skew", "too_many t": "quota"}
			run.Columns = []string{"shift", "switch"}
		}
		must(t, run.Write(r.dir))
		got, err := report.Check(bg, r.dir)
		if err != nil {
			t.Fatal(err)
		}
		weak := strings.Join(got.Weak(), "; ")
		for _, want := range test.want {
			if !strings.Contains(weak, want) {
				t.Errorf("%v: weak for %q; want %q", test.length, weak, want)
			}
		}
		if len(got.Weak()) != len(test.want) {
			t.Errorf("%v: weak for %q; want %q", test.length, weak, test.want)
		}
	}
	must(t, os.Remove(filepath.Join(r.dir, runlog.Dir, runlog.Faults)))
	must(t, runlog.Run{Cluster: "default", Time: time.Hour, Kinds: []string{"kill"},
		Columns: []string{"shift", "switch"}, Rows: map[string]string{"skip": "skip", "limit": "limit"}}.Write(r.dir))
	events, err := runlog.CreateEvents(r.dir)
	must(t, err)
	events.Add(runlog.Event{What: runlog.Restored, Kind: "plain"})
	events.Add(runlog.Event{What: runlog.Moved, Kind: "shift"})
	events.Add(runlog.Event{What: runlog.Used, Kind: "skip"})
	must(t, events.Close())
	got, err := report.Check(bg, r.dir)
	if err != nil {
		t.Fatal(err)
	}
	weak := strings.Join(got.Weak(), "; ")
	for _, want := range []string{"did not come to its end", "no fault of these kinds: kill", "feature: limit",
		"kind: switch"} {
		if !strings.Contains(weak, want) {
			t.Errorf("weak for %q; want %q", weak, want)
		}
	}
	if strings.Contains(weak, "feature: skip") || strings.Contains(weak, "kind: shift") {
		t.Errorf("weak for %q, though an operator skipped, and shifted a range", weak)
	}
}

// The restore counts as seen by the first process that halted leasing after it, even if not
// all members answered yet. `march recover` does not count, because it always halts.
func TestWhatHalted(t *testing.T) {
	for _, seen := range []bool{true, false} {
		r := newRun(t)
		a := r.join("a", "one")
		a.lease(10)
		r.events.Add(runlog.Event{What: runlog.Restoring, Kind: runlog.ForceNewCluster,
			Time: time.Now().Add(-time.Minute)})
		if seen {
			_, err := r.admin.Ledger.Halt(bg, "instance a/one", "etcd's raft index is 9, and was 120")
			must(t, err)
		}
		r.recorded()
		r.events.Add(runlog.Event{What: runlog.Restored, Kind: runlog.ForceNewCluster,
			Time: time.Now().Add(time.Minute)})
		if !seen {
			_, err := r.admin.Ledger.Halt(bg, "ann", "march recover")
			must(t, err)
		}
		r.end(a)
		got, err := report.Check(bg, r.dir)
		must(t, err)
		if len(got.Restores) != 1 || got.Restores[0].Halted != seen || got.Restores[0].After != 0 {
			t.Errorf("seen %v: %+v", seen, got.Restores)
		}
	}
}

// An instance that was stopped before it heard of a recover may report its old knowledge when
// it goes on, but no longer once it has issued IDs.
func TestResumedAfterRecover(t *testing.T) {
	r := newRun(t)
	must(t, runlog.Run{Cluster: "default",
		Rooms: []runlog.RunRoom{{Name: "a", Instances: []string{"one"}}}}.Write(r.dir))
	ago := time.Now().Add(-time.Hour)
	add := func(e runlog.Event, after time.Duration) {
		e.Time = ago.Add(after)
		r.events.Add(e)
	}
	add(runlog.Event{What: runlog.Restoring, Kind: "plain"}, 0)
	add(runlog.Event{What: runlog.Recovered}, 10*time.Second)
	add(runlog.Event{What: runlog.FaultBegan, Fault: -1, Target: "one"}, 10*time.Second)
	add(runlog.Event{What: runlog.Issuing, Fault: 1}, 11*time.Second)
	add(runlog.Event{What: runlog.FaultEnded, Fault: -1, Target: "one"}, time.Minute)
	add(runlog.Event{What: runlog.Issuing, Fault: -1, Target: "one"}, time.Minute+time.Second)
	a := r.join("a", "one")
	r.end(a)
	r.failed("went_back", time.Hour-time.Minute-time.Second/2, 2) // while it comes back
	r.failed("went_back", time.Hour-2*time.Minute, 3)
	got, err := report.Check(bg, r.dir)
	must(t, err)
	if got.Calls.Count != 3 {
		t.Errorf("%d calls failed wrongly: %v", got.Calls.Count, got.Calls.Examples)
	}
}

package sim_test

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/march-id/march/allocator/ledger/ledgertest"
)

// result is what a seed came to.
type result struct {
	problems []string
	counts   map[string]int
}

// simulate runs a seed, or a script where there is one.
func simulate(t *testing.T, seed uint64, script []byte, verbose func(string)) (r result) {
	journals, err := os.MkdirTemp(shm(), "march-sim-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(journals) }()
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, script, journals, verbose)
		w.run()
		r = result{problems: w.mu.problems, counts: w.summary()}
	})
	return r
}

// shm returns a directory in memory where there is one: a journal syncs often.
func shm() string {
	const dir = "/dev/shm"
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

// seeds is how many seeds a run has.
func seeds() int {
	switch {
	case *allSeeds > 0:
		return *allSeeds
	case testing.Short() || raceEnabled:
		return 40
	}
	return 150
}

// TestSimulation runs every seed until one fails: in as many processes as there
// are processors.
func TestSimulation(t *testing.T) {
	switch {
	case *oneSeed >= 0:
		report(t, uint64(*oneSeed), simulate(t, uint64(*oneSeed), nil, func(line string) { t.Log(line) }))
		return
	case *share >= 0:
		runShare(t)
		return
	}
	dir, total := t.TempDir(), make(map[string]int)
	var mu sync.Mutex
	var running sync.WaitGroup
	for i := range runtime.NumCPU() {
		running.Go(func() {
			file := filepath.Join(dir, strconv.Itoa(i))
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSimulation$", "-seeds", strconv.Itoa(seeds()), //nolint:gosec // this test's own binary
				"-share", strconv.Itoa(i), "-shares", strconv.Itoa(runtime.NumCPU()), "-counts", file)
			out, err := child.CombinedOutput()
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
				return
			}
			met := make(map[string]int)
			data, err := os.ReadFile(file)
			if err = errors.Join(err, json.Unmarshal(data, &met)); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for what, n := range met {
				total[what] += n
			}
		})
	}
	running.Wait()
	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%9d %s", total[what], what)
	}
	if !t.Failed() {
		weak(t, total)
	}
}

// runShare runs this process's share of the seeds.
func runShare(t *testing.T) {
	total := make(map[string]int)
	for seed := *share; seed < seeds() && !t.Failed(); seed += *shares {
		r := simulate(t, uint64(seed), nil, nil) //nolint:gosec // not negative
		for what, n := range r.counts {
			total[what] += n
		}
		report(t, uint64(seed), r) //nolint:gosec // not negative
	}
	if *counts == "" {
		return
	}
	data, err := json.Marshal(total)
	if err = errors.Join(err, os.WriteFile(*counts, data, 0o600)); err != nil {
		t.Error(err)
	}
}

func report(t *testing.T, seed uint64, r result) {
	t.Helper()
	if len(r.problems) > 0 {
		t.Errorf("seed %d:\n  %s\nagain, with its schedule: go test ./sim -run TestSimulation -seed %d -v", seed, strings.Join(r.problems, "\n  "), seed)
	}
}

// weak fails where the seeds did not meet what they are there to meet.
func weak(t *testing.T, total map[string]int) {
	t.Helper()
	want := []string{
		failedButApplied, "IDs", "IDs of strict tags checked for lateness", "issued again", "migrations done", "migrations aborted",
		"call: unavailable", "call: no_range", "call: exhausted",
		"backups", "restores", "marks deleted by hand", "journals lost", "recover: done", "recovers without who runs", "IDs of a stretch that was lost",
	}
	for _, fate := range ledgertest.Fates() {
		if fate != ledgertest.Done {
			want = append(want, "fate: "+fate.String())
		}
	}
	for _, k := range troubles() {
		want = append(want, "trouble: "+k.name)
	}
	for _, a := range actions() {
		want = append(want, "operator: "+a.name+": done")
	}
	for _, what := range want {
		if total[what] == 0 {
			t.Errorf("weak: in %d seeds there was none of: %s", seeds(), what)
		}
	}
}

// TestReplay runs seeds until one goes the same way as the time before. Not all
// do, see the package comment; so it holds most of them to it.
func TestReplay(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has goroutines run in random order")
	}
	const seeds, tries, most = 10, 4, 7
	same := 0
	for seed := range uint64(seeds) {
		var last []string
		simulate(t, seed, nil, func(line string) { last = append(last, line) })
		for range tries {
			var again []string
			simulate(t, seed, nil, func(line string) { again = append(again, line) })
			at := differ(last, again)
			if at < 0 {
				same++
				break
			}
			t.Logf("seed %d went differently from line %d on:\n%s", seed, at, strings.Join(slices.Concat(
				last[max(at-3, 0):min(at+3, len(last))], []string{"---"}, again[max(at-3, 0):min(at+3, len(again))]), "\n"))
			last = again
		}
	}
	if same < most {
		t.Errorf("%d of %d seeds went the same way twice; want %d", same, seeds, most)
	}
}

// differ returns the first index at which a and b differ, -1 where they do not.
func differ(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if i >= min(len(a), len(b)) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

// FuzzSimulation runs scripts instead of seeds, so that a fuzzer can look for
// what leads further.
func FuzzSimulation(f *testing.F) {
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a simulation's, to be repeated
		script := make([]byte, 200)
		for i := range script {
			script[i] = byte(random.Uint32())
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if r := simulate(t, 0, script, nil); len(r.problems) > 0 {
			t.Errorf("%s", strings.Join(r.problems, "\n"))
		}
	})
}

package sim_test

import (
	"encoding/json"
	"errors"
	"fmt"
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
	"testing/cryptotest"
	"testing/synctest"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/race"
)

// result is the outcome of a seed.
type result struct {
	problems []string
	counts   map[string]int
}

// simulate runs a seed, or a script if there is one.
func simulate(t *testing.T, seed uint64, script []byte, verbose func(string)) (r result) {
	journals := journals(t)
	if steady {
		runtime.GC() // there is no other collection, and reused memory is cheaper than new memory
	}
	cryptotest.SetGlobalRandom(t, seed)
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, script, journals, verbose)
		w.run()
		r = result{problems: w.mu.problems, counts: w.summary()}
	})
	return r
}

// journals returns a new folder for journals, in one that the test removes: folders of mirrors are beside it.
func journals(t *testing.T) string {
	t.Helper()
	base, err := os.MkdirTemp(shm(), "march-sim-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(base, "journals")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shm returns a directory in memory if there is one: a journal syncs often.
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
	case race.Enabled:
		return 4 // one goroutine at a time: the detector finds little here
	}
	if !programs.All() {
		return 6
	}
	return 20 // .ci/run has 200 beside them
}

// TestSimulation runs all seeds, or the requested one, in processes of their own: as many at
// once as there are processors.
func TestSimulation(t *testing.T) {
	switch {
	case *oneSeed >= 0:
		report(t, uint64(*oneSeed), simulate(t, uint64(*oneSeed), nil, func(line string) { t.Log(line) }))
		return
	case *first >= 0:
		runBatch(t)
		return
	}
	runtime.GOMAXPROCS(runtime.NumCPU()) // this process only waits
	defer runtime.GOMAXPROCS(1)
	total := make(map[string]int)
	var mu sync.Mutex
	var running errgroup.Group
	running.SetLimit(runtime.NumCPU())
	for from := 0; from < seeds() && !t.Failed(); from += *batch {
		running.Go(func() error {
			met := startBatch(t, from)
			mu.Lock()
			defer mu.Unlock()
			for what, n := range met {
				total[what] += n
			}
			return nil
		})
	}
	_ = running.Wait() // t has the errors
	for _, what := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%9d %s", total[what], what)
	}
	if !t.Failed() {
		weak(t, total)
	}
}

// startBatch runs some seeds in a process of their own, and returns the faults that they met.
func startBatch(t *testing.T, from int) (met map[string]int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "counts")
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSimulation$", "-with", *with, //nolint:gosec // this test's own binary
		"-first", strconv.Itoa(from), "-batch", strconv.Itoa(min(*batch, seeds()-from)), "-counts", file)
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
		return nil
	}
	data, err := os.ReadFile(file)
	if err = errors.Join(err, json.Unmarshal(data, &met)); err != nil {
		t.Error(err)
	}
	return met
}

// runBatch is the body of such a process.
func runBatch(t *testing.T) {
	total := make(map[string]int)
	for seed := *first; seed < *first+*batch && !t.Failed(); seed++ {
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
		t.Errorf("seed %d:\n  %s\nagain, with its schedule: %s", seed, strings.Join(r.problems, "\n  "), again(seed))
	}
}

// again returns the command that runs a seed again in the same way.
func again(seed uint64) string {
	command := fmt.Sprintf("go test ./sim -run TestSimulation -v -seed %d", seed)
	if steady {
		command = fmt.Sprintf("go run ./cmd/simulate -seed %d", seed)
	}
	if *with != "" {
		command += fmt.Sprintf(" -with %q", *with)
	}
	return command
}

// weak fails if the seeds did not meet their faults. A few seeds need not meet rare faults: a
// thousand must.
func weak(t *testing.T, total map[string]int) {
	t.Helper()
	if *with != "" || seeds() < 100 {
		return // a developer asked for these seeds
	}
	want := []string{
		failedButApplied, "IDs", "issued again", "migrations done", "migrations aborted",
		"tokens of kept IDs", "processes that took what the one before kept",
		journalsRequired, "call: unavailable", "call: no_range", "call: exhausted", "backups", "recover: done",
	}
	if *with != ledgertest.StaleRead.String() { // if all seeds have it, no strict tag can be relied on
		want = append(want, "IDs of strict tags checked for lateness")
	}
	if seeds() >= 1000 {
		want = append(want, "restores", "journals lost", "recovers without a running instance",
			"requests to another etcd", "IDs of a time that etcd forgot, in no era",
			"confirm: done", "rollbacks of raft's data", "journals that show a rollback",
			"rollbacks to before a recover", "rehearsals that went through", "instances asked by a rehearsal",
			"instances left out whose range another room got", "marks that roles refused",
			"recovers by a clock hours off",
			"calls of a tag with max_skew checked",
			"calls of a tag with max_skew checked against what other instances of the room leased",
			"calls of an ordered tag checked", "calls passed on", "takes and releases of an ordered tag",
			"calls of a tag that is ordered over all rooms checked", "calls passed on twice",
			"values with a field of a newer version", "values of a newer format",
			"leases beside a value of a newer format",
			"fields of a newer version kept", "recovers without hundreds of instances",
			"restores of an etcd that was empty",
			"recovers without an instance that nobody knows", "recovers without a misspelled instance, refused",
			"pods that crashed, left in good order and were taken away", "marks that roles refused",
			"pods missing after a restore, by recover's word", "tags deleted", "tags created again",
			"time-ordered IDs of callers", "machine IDs of silent clients, given to others",
			"recovers with recover's own margin, of lost leases",
			"time-ordered IDs", "clocks that were refused", "recovers after which windows begin later",
			"workers not to be had before a recover's time", "issued again after a recover's time")
	}
	for _, fate := range ledgertest.Fates() {
		if fate != ledgertest.Done {
			want = append(want, "fate: "+fate.String())
		}
	}
	for _, k := range slices.Concat(troubles(), disasters()) {
		want = append(want, "trouble: "+k.name)
	}
	for _, t := range timeTroubles() {
		if seeds() >= 1000 {
			want = append(want, "trouble: "+t.name)
		}
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

// FuzzSimulation runs scripts instead of seeds, so that a fuzzer can search for new behaviour.
func FuzzSimulation(f *testing.F) {
	scripts := uint64(1)
	if programs.All() {
		scripts = 2
	}
	for seed := uint64(1); seed <= scripts; seed++ { // short ones: the race detector runs them, too
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable on purpose
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

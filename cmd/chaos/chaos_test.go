package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// A random layout is valid, has every room, and gives each room at least a tenth, so that
// the IDs of a run do not lie too far apart.
func TestRandomLayout(t *testing.T) {
	for seed := range uint64(2_000) {
		random := rand.New(rand.NewPCG(seed, 0))
		layout, err := api.LayoutFromProto(randomLayout(random, []string{"a", "b", "c"}, boundaries))
		if err == nil {
			err = layout.Validate()
		}
		if err != nil || len(layout.Ranges) != 3 {
			t.Fatalf("seed %d: %+v, %v", seed, layout, err)
		}
		for room, r := range layout.Ranges {
			if r.Width() < layout.Boundary/10 {
				t.Fatalf("seed %d: room %s has %v of %d", seed, room, r, layout.Boundary)
			}
		}
	}
}

// Kinds of faults have distinct names, and can be selected.
func TestDeck(t *testing.T) {
	all, err := deck(nil)
	if err != nil || len(all) < 10 {
		t.Fatalf("%d kinds, %v", len(all), err)
	}
	seen := make(map[string]bool)
	for _, f := range all {
		if seen[f.kind] || f.what == "" || f.begin == nil {
			t.Errorf("kind %q: twice, or without a description", f.kind)
		}
		seen[f.kind] = true
		one, err := deck([]string{f.kind})
		if err != nil || len(one) != 1 || one[0].kind != f.kind {
			t.Errorf("only %q: %v, %v", f.kind, one, err)
		}
	}
}

// The restore matrix has each cell once. Only the cells in which no process can see the restore
// are residual.
func TestCells(t *testing.T) {
	seen := make(map[string]bool)
	residual := 0
	for _, c := range cells() {
		if seen[c.String()] {
			t.Errorf("%v: twice", c)
		}
		seen[c.String()] = true
		told := runlog.Event{What: runlog.Restoring, Kind: c.way.name, Target: c.rooms}
		if told.Residual() != c.residual() || told.Loses() != c.way.loses {
			t.Errorf("%v: its events say residual %v, loses %v", c, told.Residual(), told.Loses())
		}
		if c.residual() {
			residual++
			if c.rooms != withoutJournal {
				t.Errorf("%v is residual", c)
			}
		}
	}
	if len(seen) != 18 || residual != 2 {
		t.Errorf("%d cells, %d residual", len(seen), residual)
	}
}

// The first three restores of a run leave the rooms each of their fates, and need a recover.
func TestFirstRestores(t *testing.T) {
	for seed := range uint64(30) {
		d, r := &driver{config: &config{seed: seed}}, rand.New(rand.NewPCG(seed, 0))
		fates := make(map[string]bool)
		for ; d.restores < 3; d.restores++ {
			c := d.cell(r)
			fates[c.rooms] = true
			if !c.way.loses || c.residual() {
				t.Errorf("seed %d: %v", seed, c)
			}
		}
		if len(fates) != 3 {
			t.Errorf("seed %d: the rooms are only %v", seed, fates)
		}
	}
}

// A run of an even seed and one of an odd seed show all features and moves of the table in docs/proof.md, which the
// simulation's TestMoves reads, too.
func TestFeaturesAndMovesAreTheTables(t *testing.T) {
	text, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| feature | ")
	table, _, _ = strings.Cut(table, "\n\n")
	header, table, _ := strings.Cut(table, " |\n")
	_, table, _ = strings.Cut(table, "\n") // the line below the header
	var features []string
	for line := range strings.Lines(table) {
		features = append(features, strings.Split(line, " | ")[0][2:])
	}
	if got := (&config{only: []string{"kill room"}}).moves(); len(got) > 0 {
		t.Errorf("a run of one kind of fault is to make %v", got)
	}
	shown := slices.Concat(slices.Collect(maps.Values(rows(0))), slices.Collect(maps.Values(rows(1))))
	for _, of := range []struct{ want, got []string }{
		{features, shown},
		{strings.Split(header, " | "), slices.Concat((&config{}).moves(), (&config{seed: 1}).moves())},
	} {
		slices.Sort(of.want)
		slices.Sort(of.got)
		if got := slices.Compact(of.got); !slices.Equal(got, of.want) || len(of.want) < 13 {
			t.Errorf("runs show %q; the table has %q", got, of.want)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--time 1s", "time: 1s; allowed: 10s to 24h"},
		{"--rate 1", "rate: 1; allowed: 1000"},
		{"--only sunshine", `"sunshine" is no kind of fault; allowed: kill room`},
		{"--dir .", "is not empty"},
		{"--nothing", "unknown flag"},
		{"something", `"something"`},
		{"matrix --cells 19", "cells: 19; allowed: 1 to 18"},
		{"matrix --rate 1", "rate: 1; allowed: 1000"},
		{"check", "0 arguments; allowed: one"},
	} {
		var out bytes.Buffer
		root := newRoot(&out, &out)
		root.SetArgs(strings.Fields(test.args))
		err := root.ExecuteContext(t.Context())
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), test.want) {
			t.Errorf("chaos %s: exit code %d, %v; want %q", test.args, exitCode(err), err, test.want)
		}
	}
}

// A run that broke is checked as far as it came. Its error says how it broke, and its report
// says what was wrong until then. A run that was interrupted is not checked.
func TestBrokenRunIsChecked(t *testing.T) {
	dir := t.TempDir()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(runlog.Run{Cluster: clusterName}.Write(dir))
	check(os.Mkdir(filepath.Join(dir, runlog.Dir), 0o700))
	check(os.WriteFile(filepath.Join(dir, runlog.Dir, runlog.EtcdsHistory), nil, 0o600))
	events, err := runlog.CreateEvents(dir) // a run makes this file itself, so this run breaks
	check(err)
	check(events.Close())
	callers, err := runlog.Create(dir, "load-a-1")
	check(err)
	for range 2 {
		check(callers.Add(runlog.Answer{Room: "a", Instance: "a-0", Tag: "t",
			Runs: []allocator.Run{{First: 77, Count: 1}}}))
	}
	check(callers.Close())
	var out bytes.Buffer
	c := &config{dir: dir, march: "march", output: outputText, stdout: &out, stderr: io.Discard}
	if err := c.torture(t.Context()); !errors.Is(err, fs.ErrExist) ||
		!strings.Contains(err.Error(), "the run failed") || !strings.Contains(out.String(), "FAILED  duplicates") {
		t.Errorf("%v, and printed:\n%s", err, out.String())
	}
	out.Reset()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.torture(interrupted); err == nil || out.Len() > 0 {
		t.Errorf("interrupted: %v, and printed:\n%s", err, out.String())
	}
}

// No process is stopped for long while a room is cut off from etcd. Processes may be stopped
// again when the room is connected again, or if it could not be cut off.
func TestCutOffHoldsPauses(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	d := newDriver(&config{}, &cluster.Cluster{Config: cluster.Config{Rooms: []cluster.Room{{Name: "a"}}}},
		nil, hclog.NewNullLogger())
	free := func() bool {
		if !d.hold.TryLock() {
			return false
		}
		d.hold.Unlock()
		return true
	}
	d.hold.Lock()
	if _, err := cutOff(t.Context(), d, r); !errors.Is(err, errSkip) {
		t.Errorf("while an operator holds pauses: %v", err)
	}
	d.hold.Unlock()
	hurt, err := cutOff(t.Context(), d, r)
	if err != nil {
		t.Fatal(err)
	}
	if free() {
		t.Error("a process may be stopped while a room is cut off")
	}
	if err := hurt.end(t.Context()); err != nil || !free() {
		t.Errorf("after the end: %v, free %v", err, free())
	}
	stopped := &cluster.Server{Room: "a"}
	d.Instances, d.mu.paused[stopped] = []*cluster.Server{stopped}, true
	if _, err := cutOff(t.Context(), d, r); !errors.Is(err, errSkip) || !free() {
		t.Errorf("a room with a stopped instance: %v, free %v", err, free())
	}
}

// The driver expects all callers to get IDs again, including the Go client, but not while
// an instance that they ask is stopped.
func TestExpected(t *testing.T) {
	one, two, alone := &cluster.Server{Room: "a", ID: "a-0"}, &cluster.Server{Room: "a", ID: "a-1"},
		&cluster.Server{Room: "c", ID: "c-0"}
	d := newDriver(&config{}, &cluster.Cluster{Config: cluster.Config{Tags: []allocator.Tag{"t"}},
		Instances: []*cluster.Server{one, two, alone}}, nil, hclog.NewNullLogger())
	for _, test := range []struct {
		leftOut func(*cluster.Server) bool
		want    string
	}{
		{nil, "a/a-0 t, a/a-1 t, a/client t, c/c-0 t, c/client t"},
		{func(s *cluster.Server) bool { return s == two }, "a/a-0 t, c/c-0 t, c/client t"},
		{func(s *cluster.Server) bool { return s != alone }, "c/c-0 t, c/client t"},
	} {
		if got := joined(d.expected(test.leftOut)); got != test.want {
			t.Errorf("expected: %s; want %s", got, test.want)
		}
	}
	asked := 0
	// just after the driver asked about each instance
	stopped := func(*cluster.Server) bool { asked++; return asked > len(d.Instances) }
	if late := d.awaitIssuing(t.Context(), time.Unix(1e9, 0), stopped, nil); late != "" {
		t.Errorf("the driver waits for %s, though no instance runs", late)
	}
}

// A fault that never begins, for example because no etcd answers, is an error in the end.
func TestBeginningIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(&config{}, &cluster.Cluster{}, nil, hclog.NewNullLogger())
		never := fault{"never", "", func(ctx context.Context, _ *driver, _ *rand.Rand) (*injury, error) {
			return nil, cluster.Poll(ctx, "something", func() bool { return false })
		}}
		if err := d.inject(t.Context(), never, 1, nil); err == nil ||
			!strings.Contains(err.Error(), "waiting for something: not within 10m0s") {
			t.Errorf("got %v", err)
		}
	})
}

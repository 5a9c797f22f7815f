package runlog_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

var at = time.Unix(1_700_000_000, 123)

var some = []runlog.Answer{
	{Sent: at, Received: at.Add(time.Millisecond), Room: "a", Instance: "a-0", Tag: "order",
		Runs: []allocator.Run{{First: 1, Count: 10}, {First: 100, Count: 3}}},
	{Sent: at.Add(time.Second), Received: at.Add(2 * time.Second), Room: "a", Tag: "item",
		Runs: []allocator.Run{{First: allocator.MaxID, Count: 1}}},
	{Sent: at, Received: at, Room: "b", Instance: "b-1", Tag: "order", Failed: "internal",
		Error: "a defect"},
}

func write(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	w, err := runlog.Create(dir, "load-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range some {
		if err := w.Add(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, runlog.Dir, "caller-load-1.jsonl")
}

// read reads all records, and returns the error that ended them.
func read(t *testing.T, path string) (got []runlog.Answer, err error) {
	t.Helper()
	r, err := runlog.Open[runlog.Answer](path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	for {
		i, err := r.Next()
		if err != nil {
			return got, err
		}
		got = append(got, i)
	}
}

func TestThereAndBack(t *testing.T) {
	got, err := read(t, write(t))
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if diff := cmp.Diff(some, got); diff != "" {
		t.Error(diff)
	}
}

// A file that ends anywhere is read up to its last whole record. What is no record is an error.
func TestTornAndWrong(t *testing.T) {
	path := write(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before := 0
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := read(t, path)
		if !errors.Is(err, io.EOF) || len(got) < before {
			t.Fatalf("%d of %d bytes: %d records, %v", n, len(whole), len(got), err)
		}
		want := append([]runlog.Answer{}, some[:len(got)]...)
		if diff := cmp.Diff(want, append([]runlog.Answer{}, got...)); diff != "" {
			t.Fatal(diff)
		}
		before = len(got)
	}
	if before != len(some) {
		t.Errorf("%d records of all but the end of the last line", before)
	}
	if err := os.WriteFile(path, append(whole, "no line\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, path); errors.Is(err, io.EOF) || len(got) != len(some) {
		t.Errorf("what is no record: %d records, %v", len(got), err)
	}
}

func TestEvents(t *testing.T) {
	dir := t.TempDir()
	e, err := runlog.CreateEvents(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []runlog.Event{
		{Time: at.UTC(), What: runlog.FaultBegan, Fault: 1, Kind: "kill room", Target: "a-0"},
		{Time: at.UTC(), What: runlog.Issuing, Fault: 1, Took: time.Second, Limit: 5 * time.Second, Violation: "none"},
	}
	for _, event := range want {
		e.Add(event)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, runlog.Dir, runlog.Faults)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, `{"what":"to`...), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := runlog.ReadEvents(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

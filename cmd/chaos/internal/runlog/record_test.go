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

var some = []runlog.Issued{
	{Sent: at, Received: at.Add(time.Millisecond), Room: "a", Instance: "a-0", Tag: "order", Kind: runlog.Batch,
		Runs: []allocator.Run{{First: 1, Count: 10}, {First: 100, Count: 3}}},
	{Sent: at.Add(time.Second), Received: at.Add(2 * time.Second), Room: "a", Tag: "item", Kind: runlog.Client,
		Runs: []allocator.Run{{First: allocator.MaxID, Count: 1}}},
	{Sent: at, Received: at, Room: "b", Instance: "b-1", Tag: "order", Kind: runlog.Stream, Runs: []allocator.Run{}},
}

func write(t *testing.T) (path string) {
	t.Helper()
	dir := t.TempDir()
	w, err := runlog.Create(dir, runlog.Header{Process: "load", Worker: "1"})
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
	return filepath.Join(dir, runlog.Dir, "load-1.rec")
}

// read reads all records, and returns the error that ended them.
func read(t *testing.T, path string) (got []runlog.Issued, err error) {
	t.Helper()
	r, err := runlog.Open(path)
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

// A file that ends anywhere is read up to its last whole record. A wrong byte is an error.
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
		if len(got) == 0 && err != nil && !errors.Is(err, io.EOF) {
			continue // in the header
		}
		if !errors.Is(err, io.EOF) || len(got) < before || len(got) == len(some) {
			t.Fatalf("%d of %d bytes: %d records, %v", n, len(whole), len(got), err)
		}
		if diff := cmp.Diff(some[:len(got)], got, cmp.Transformer("nil", func(r []runlog.Issued) []runlog.Issued {
			return append([]runlog.Issued{}, r...)
		})); len(got) > 0 && diff != "" {
			t.Fatal(diff)
		}
		before = len(got)
	}
	if before != len(some)-1 {
		t.Errorf("%d records of all but the last byte", before)
	}
	wrong := append([]byte{}, whole...)
	wrong[len(wrong)-1] ^= 1
	if err := os.WriteFile(path, wrong, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, path); !errors.Is(err, runlog.ErrBad) || len(got) != len(some)-1 {
		t.Errorf("a wrong byte: %d records, %v", len(got), err)
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
	path := filepath.Join(dir, "events.jsonl")
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

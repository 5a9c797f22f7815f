package bits_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/bits"
)

func open(t *testing.T, dir string) *bits.Set {
	t.Helper()
	s, err := bits.Open(dir, bits.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func add(t *testing.T, s *bits.Set, tag allocator.Tag, first, count int64) []allocator.Run {
	t.Helper()
	twice, err := s.Add(tag, allocator.Run{First: first, Count: count})
	if err != nil {
		t.Fatal(err)
	}
	return twice
}

type fataler interface {
	Helper()
	Fatal(args ...any)
}

func has(t fataler, s *bits.Set, tag allocator.Tag, id int64) bool {
	t.Helper()
	there, err := s.Has(tag, id)
	if err != nil {
		t.Fatal(err)
	}
	return there
}

func verdict(t fataler, s *bits.Set) bits.Verdict {
	t.Helper()
	v, err := s.Verdict()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// The test compares a set with a map of IDs. Add returns exactly the IDs of a run that were
// there, for runs in any order, of IDs near and far.
func TestAddAgainstMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		s, err := bits.Open(dir, bits.DefaultLimits())
		if err != nil {
			rt.Fatal(err)
		}
		model := make(map[int64]int) // how often each ID came again
		bases := []int64{0, bits.PageIDs - 70, 7*bits.PageIDs - 1, 1 << 40, allocator.MaxID - 300}
		var found []int64
		again := 0
		for range rapid.IntRange(1, 30).Draw(rt, "runs") {
			base := rapid.SampledFrom(bases).Draw(rt, "base")
			run := allocator.Run{First: base + rapid.Int64Range(0, 150).Draw(rt, "first"),
				Count: rapid.Int64Range(1, 150).Draw(rt, "count")}
			if rapid.IntRange(0, 9).Draw(rt, "reopen") == 0 {
				if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				if s, err = bits.Open(dir, bits.DefaultLimits()); err != nil {
					rt.Fatal(err)
				}
			}
			twice, err := s.Add("t", run)
			if err != nil {
				rt.Fatal(err)
			}
			found = found[:0]
			for _, r := range twice {
				for k := range r.Count {
					found = append(found, r.First+k)
				}
			}
			var want []int64
			for k := range run.Count {
				id := run.First + k
				if _, there := model[id]; there {
					want = append(want, id)
					again++
				}
				model[id]++
			}
			if !slices.Equal(found, want) {
				rt.Fatalf("added %v: found %v, want %v", run, found, want)
			}
		}
		v := verdict(rt, s)
		if v.IDs != int64(len(model)) || v.TwiceIDs() != int64(again) {
			rt.Fatalf("%d IDs, %d twice; want %d, %d", v.IDs, v.TwiceIDs(), len(model), again)
		}
		for id := range model {
			if !has(rt, s, "t", id) || has(rt, s, "u", id) || has(rt, s, "t", id+1) != (model[id+1] > 0) {
				rt.Fatalf("Has is wrong of %d or the next", id)
			}
		}
		if err := s.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

// Many workers add the same IDs at once, in runs of all sizes: each ID is new to exactly one
// of them. Half of the workers have the files open as another process would.
func TestAddAtOnce(t *testing.T) {
	dir := t.TempDir()
	sets := []*bits.Set{open(t, dir), open(t, dir)}
	s := sets[0]
	const workers, ids = 8, 3 * bits.PageIDs / 2
	var fresh atomic.Int64
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for first := int64(0); first < ids; {
				n := min(1+random.Int64N(300), ids-first)
				twice, err := sets[w%2].Add("t", allocator.Run{First: first, Count: n})
				if err != nil {
					t.Error(err)
					return
				}
				fresh.Add(n)
				for _, r := range twice {
					fresh.Add(-r.Count)
				}
				first += n
			}
		})
	}
	group.Wait()
	if v := verdict(t, s); fresh.Load() != ids || v.IDs != ids || v.TwiceIDs() != (workers-1)*ids {
		t.Errorf("%d were new, %d there, %d twice; want %d, %d, %d", fresh.Load(), v.IDs, v.TwiceIDs(),
			ids, ids, (workers-1)*ids)
	}
}

// A child sets bits and is killed. All bits that it reported as set are there.
func TestSurvivesKill(t *testing.T) {
	const variable = "BITS_TEST_DIR"
	if dir := os.Getenv(variable); dir != "" {
		s, err := bits.Open(dir, bits.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(100) {
			if _, err := s.Add("t", allocator.Run{First: i * 100_000, Count: 50_000}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Plant("t", 7); err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Println("ready")
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestSurvivesKill$")
	child.Env = append(os.Environ(), variable+"="+dir)
	out, err := child.Output()
	if exit := (&exec.ExitError{}); !errors.As(err, &exit) || !strings.Contains(string(out), "ready") {
		t.Fatalf("the child ended with %v: %s", err, out)
	}
	s := open(t, dir)
	v := verdict(t, s)
	if v.IDs != 5_000_000 || v.Planted != 1 || len(v.Missed) != 0 || len(v.Twice) != 0 {
		t.Errorf("verdict %+v", v)
	}
	for i := range int64(100) {
		if twice := add(t, s, "t", i*100_000, 100_000); len(twice) != 1 ||
			twice[0] != (allocator.Run{First: i * 100_000, Count: 50_000}) {
			t.Fatalf("run %d: twice %v", i, twice)
		}
	}
}

// Planted IDs are told apart from others, even if they lie in one run with them.
func TestPlant(t *testing.T) {
	s := open(t, t.TempDir())
	add(t, s, "t", 100, 50)
	if err := s.Plant("t", 99); err == nil {
		t.Error("an ID that was not issued was planted")
	}
	if err := s.Plant("t", 120); err != nil {
		t.Fatal(err)
	}
	if v := verdict(t, s); v.Planted != 1 || len(v.Missed) != 0 || len(v.Twice) != 0 {
		t.Errorf("after planting: %+v", v)
	}
	add(t, s, "t", 118, 5) // 120 among them
	v := verdict(t, s)
	if v.TwiceIDs() != 5 || len(v.Missed) != 0 {
		t.Errorf("five came twice and one was planted besides: %+v", v)
	}
	for _, r := range v.Twice {
		if r.Tag != "t" || r.First < 118 || r.First+r.Count > 123 {
			t.Errorf("%v came twice", r)
		}
	}
}

// A set that did not find the planted IDs reports that.
func TestMissedPlant(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	add(t, s, "t", 100, 50)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "planted.jsonl"), []byte(`{"tag":"t","first":"101","count":"1"}`+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	if v := verdict(t, open(t, dir)); !slices.Equal(v.Missed, []bits.Run{{Tag: "t", First: 101, Count: 1}}) {
		t.Errorf("verdict %+v", v)
	}
}

func TestBounds(t *testing.T) {
	dir := t.TempDir()
	s, err := bits.Open(dir, bits.Limits{Pages: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []allocator.Run{{First: -1, Count: 1}, {First: 1, Count: 0},
		{First: allocator.MaxID, Count: 2}} {
		if _, err := s.Add("t", run); err == nil {
			t.Errorf("%v was added", run)
		}
	}
	if _, err := s.Add("../t", allocator.Run{First: 1, Count: 1}); err == nil {
		t.Error("a tag that is none was added")
	}
	for _, tag := range []allocator.Tag{"t", "u"} {
		add(t, s, tag, 1<<50, 1)
	}
	add(t, s, "t", allocator.MaxID, 1)
	if _, err := s.Add("u", allocator.Run{First: 5, Count: 1}); err == nil ||
		!strings.Contains(err.Error(), "4 pages") || !strings.Contains(err.Error(), "allowed: 3") {
		t.Errorf("a fourth page: %v", err)
	}
	if twice := add(t, s, "t", allocator.MaxID, 1); len(twice) != 1 {
		t.Error("the set forgot when it was full")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := bits.Open(dir, bits.Limits{Pages: 2}); err == nil {
		t.Error("three pages were opened where two are allowed")
	}
	if _, err := bits.Open(dir, bits.Limits{}); err == nil {
		t.Error("opened without a bound")
	}
}

// A half-written end that a killed process left is overwritten. Damage elsewhere is an
// error.
func TestTornFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	add(t, s, "t", 1, 1)
	add(t, s, "t", 1, 1)
	add(t, s, "t", 5*bits.PageIDs, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(dir, "t.index")
	content, err := os.ReadFile(index)
	if err != nil || len(content) != 24 {
		t.Fatalf("index of %d bytes, %v", len(content), err)
	}
	notes := filepath.Join(dir, "twice.jsonl")
	lines, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(index, content[:17], 0o600); err != nil { // the second page is gone
		t.Fatal(err)
	}
	if err := os.WriteFile(notes, append(lines, `{"tag":"t`...), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if !has(t, s, "t", 1) || has(t, s, "t", 5*bits.PageIDs) || verdict(t, s).TwiceIDs() != 1 {
		t.Errorf("after a torn index: %+v", verdict(t, s))
	}
	add(t, s, "t", 9*bits.PageIDs, 3)
	if has(t, s, "t", 5*bits.PageIDs) || verdict(t, s).IDs != 4 {
		t.Errorf("the slot of the lost page was not cleared: %+v", verdict(t, s))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	content[3] ^= 1
	if err := os.WriteFile(index, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bits.Open(dir, bits.DefaultLimits()); err == nil || !strings.Contains(err.Error(), "bad checksum") {
		t.Errorf("a damaged index: %v", err)
	}
}

func TestMissing(t *testing.T) {
	a, b := open(t, t.TempDir()), open(t, t.TempDir())
	for _, s := range []*bits.Set{a, b} {
		add(t, s, "t", 1000, 1000)
	}
	if n, _, err := a.Missing(b); err != nil || n != 0 {
		t.Errorf("%d are missing of the same", n)
	}
	add(t, a, "t", 5_000_000, 3)
	add(t, a, "u", 1, 1)
	n, first, err := a.Missing(b)
	if err != nil {
		t.Fatal(err)
	}
	if want := []bits.Run{{Tag: "t", First: 5_000_000, Count: 3}, {Tag: "u", First: 1, Count: 1}}; n != 4 ||
		!slices.Equal(first, want) {
		t.Errorf("%d are missing, the first %v", n, first)
	}
	if n, _, err := b.Missing(a); err != nil || n != 0 {
		t.Errorf("%d are missing the other way round", n)
	}
}

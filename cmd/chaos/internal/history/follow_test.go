package history_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/history"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// The ledger's history breaks no rule, under any layouts, while transactions are lost, late,
// resent or done without an answer, watches break, and revisions are compacted. Every
// segment that an instance accepted is a rise of a mark in the history.
func TestLedgerKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		r := recording(rt, dir)
		layouts := []string{"100 a=0-50 b=50-100", "100 a=50-100 b=0-50", "7 a=0-3 b=3-7",
			"100 a=0-30 b=30-60 c=60-100", "1000 a=0-1 b=1-999"}
		r.init(layouts[0])
		tags := []allocator.Tag{"t", "u"}
		for _, tag := range tags {
			r.tag(tag)
		}
		fates := ledgertest.Fates()
		type worker struct {
			room   allocator.Room
			tag    allocator.Tag
			source allocator.Source
		}
		var workers []worker
		for i, room := range []allocator.Room{"a", "a", "b", "b", "c"} {
			conn := r.store.Open()
			l, err := ledger.New(conn, ledger.DefaultConfig())
			if err != nil {
				rt.Fatal(err)
			}
			joined, err := l.Join(bg, ledger.Registration{Room: room, Name: allocator.Instance(fmt.Sprint("i", i))})
			if err != nil {
				rt.Fatal(err)
			}
			for _, tag := range tags {
				source, _, err := joined.Source(bg, tag)
				if err != nil {
					rt.Fatal(err)
				}
				workers = append(workers, worker{room, tag, source})
			}
			var count atomic.Int64
			every := rapid.Int64Range(2, 9).Draw(rt, "every")
			conn.Fate(func(txn store.Txn) ledgertest.Fate {
				n := count.Add(1)
				if n%every != 0 || !ledgertest.Writes(txn) {
					return ledgertest.Fate{}
				}
				fate := ledgertest.Fate{Name: fates[n/every%int64(len(fates))], N: 2}
				if fate.Name == ledgertest.WrongCluster || fate.Name == ledgertest.OldRevision {
					return ledgertest.Fate{} // no healthy etcd answers like this
				}
				return fate
			})
		}
		type accepted struct {
			worker
			allocator.Segment
		}
		var segments []accepted
		for range rapid.IntRange(5, 30).Draw(rt, "operations") {
			switch rapid.IntRange(0, 19).Draw(rt, "operation") {
			case 0, 1:
				r.change(rapid.SampledFrom(layouts).Draw(rt, "layout"))
			case 2:
				r.store.Break()
			case 3:
				_ = r.read() // otherwise it may be compacted before the recorder sees it
				r.store.Compact()
			case 4:
				largest := int64(1000)
				for _, s := range segments {
					largest = max(largest, s.Last())
				}
				if _, err := r.admin.SkipTag(bg, "t", nil, largest+rapid.Int64Range(1, 500).Draw(rt, "skip"),
					false, "test"); err != nil {
					rt.Fatal(err)
				}
			default:
				w := rapid.SampledFrom(workers).Draw(rt, "worker")
				if seg, err := w.source.Lease(bg, rapid.Int64Range(1, 300).Draw(rt, "count")); err == nil {
					segments = append(segments, accepted{w, seg})
				}
			}
		}
		h := r.read()
		r.stop()
		if len(h.Problems) > 0 || len(h.Lives) != 1 || len(h.Lives[0].Gaps) > 0 || h.Lives[0].Doubtful > 0 {
			rt.Fatalf("%d lives %+v, problems %v", len(h.Lives), h.Lives[0], h.Problems)
		}
		for _, s := range segments {
			found := 0
			for _, rise := range h.Rises {
				least, most := rise.Least()
				if rise.Room == s.room && rise.Tag == s.tag && rise.Next == s.Last()+1 && rise.Lease &&
					least <= s.First && s.Count <= most && rise.Layout.Version == s.Version {
					found++
				}
			}
			if found != 1 {
				rt.Errorf("room %s tag %s: %v is %d rises of %+v", s.room, s.tag, s.Segment, found, h.Rises)
			}
		}
	})
}

// Revisions that the recorder missed in a life are a gap. A mark that fell in a gap is found.
func TestGap(t *testing.T) {
	for _, fell := range []bool{false, true} {
		r := recording(t, t.TempDir())
		r.init("100 a=0-50 b=50-100")
		r.tag("t")
		a := r.join("a", "one", "t")
		r.lease(a, 20)
		_ = r.read()
		r.stop()
		for range 5 {
			r.lease(a, 20)
		}
		if fell {
			v, _ := r.store.Value(prefix + "marks/a/t")
			r.store.Corrupt(set("marks/a/t", strings.ReplaceAll(string(v),
				fmt.Sprintf("%q", fmt.Sprint(r.lease(a, 1).First)), `"5"`)))
		}
		r.store.Compact()
		r.follow()
		h := r.read()
		if len(h.Lives) != 1 || len(h.Lives[0].Gaps) != 1 {
			t.Fatalf("fell %v: %+v", fell, h.Lives)
		}
		if got := strings.Join(rules(h), ", "); got != map[bool]string{true: "mark fell", false: ""}[fell] &&
			!strings.HasPrefix(got, "mark fell") {
			t.Errorf("fell %v: %v", fell, h.Problems)
		}
		if fell {
			continue // the ledger has halted leasing by now
		}
		r.lease(a, 7)
		if h = r.read(); len(h.Rises) != 2 {
			t.Errorf("rises before and after the gap: %+v", h.Rises)
		}
	}
}

// A recorder that was killed in the middle of a line goes on from that line.
func TestFollowAgain(t *testing.T) {
	r := recording(t, t.TempDir())
	r.init("100 a=0-50 b=50-100")
	r.tag("t")
	a := r.join("a", "one", "t")
	r.lease(a, 20)
	_ = r.read()
	r.stop()
	path := filepath.Join(r.dir, runlog.EtcdsHistory)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(content, `{"ti`...), 0o600); err != nil {
		t.Fatal(err)
	}
	r.lease(a, 30)
	r.change("100 a=50-100 b=0-50")
	r.lease(a, 40)
	r.follow()
	h := r.read()
	r.stop()
	if len(h.Lives) != 1 || len(h.Lives[0].Gaps) != 0 || len(h.Rises) != 3 || len(h.Problems) > 0 {
		t.Errorf("%+v", h)
	}
	// Anything else that cannot be read is an error.
	if content, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] = 0
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := history.Read(r.dir, "default"); err == nil || !strings.Contains(err.Error(), "line ") {
		t.Errorf("a damaged file: %v", err)
	}
}

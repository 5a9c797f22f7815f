package history_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/history"
)

// logged starts a cluster with a tag, whose instances log into a run's directory.
func logged(tb tb, dir string) *recorded {
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o700); err != nil {
		tb.Fatal(err)
	}
	r := recording(tb, filepath.Join(dir, "log"))
	r.init("100 a=0-50 b=50-100")
	r.tag("t")
	return r
}

// logging starts an instance; its log is a file of the run.
func (r *recorded) logging(room allocator.Room, name allocator.Instance) (*ledgertest.Conn, allocator.Source, func()) {
	var log bytes.Buffer
	cfg := ledger.DefaultConfig()
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Debug, JSONFormat: true,
		TimeFormat: "2006-01-02T15:04:05.000Z07:00"})
	conn := r.store.Open()
	l, err := ledger.New(conn, cfg)
	if err != nil {
		r.tb.Fatal(err)
	}
	i, err := l.Join(bg, ledger.Registration{Room: room, Name: name})
	if err != nil {
		r.tb.Fatal(err)
	}
	source, _, err := i.Source(bg, "t")
	if err != nil {
		r.tb.Fatal(err)
	}
	return conn, source, func() {
		path := filepath.Join(filepath.Dir(r.dir), "logs", fmt.Sprintf("%s.%s.log", room, name))
		if err := os.WriteFile(path, append(log.Bytes(), "panic: not a line of JSON\n{\"@message\":\"segment le"...),
			0o600); err != nil {
			r.tb.Fatal(err)
		}
	}
}

// Transactions fail in every way. Each segment that a source returned is in its instance's
// log, all of them are in the history, and each failed transaction that was done is found.
func TestMatchAgainstLedger(t *testing.T) {
	applied := 0
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		c := logged(rt, dir)
		defer c.stop()
		wrong := 0 // transactions that were done but answered otherwise
		var sources []allocator.Source
		var closers []func()
		owners := []history.Owner{{Room: "a", Instance: "one", Tag: "t"}, {Room: "a", Instance: "two", Tag: "t"},
			{Room: "b", Instance: "one", Tag: "t"}}
		for _, o := range owners {
			conn, source, closeLog := c.logging(o.Room, o.Instance)
			conn.Fate(func(txn store.Txn) ledgertest.Fate {
				if !ledgertest.Writes(txn) || rapid.IntRange(0, 3).Draw(rt, "fails") > 0 {
					return ledgertest.Fate{}
				}
				return ledgertest.Fate{Name: rapid.SampledFrom([]ledgertest.FateName{
					ledgertest.DoneAnswerLost, ledgertest.NotDone, ledgertest.NoSpaceButApplied, ledgertest.Twice,
					ledgertest.NoLeader, ledgertest.Late,
				}).Draw(rt, "fate"), N: 1}
			})
			sources, closers = append(sources, source), append(closers, closeLog)
		}
		got := make(map[history.Owner][]allocator.Segment)
		boundary := int64(100)
		for range rapid.IntRange(1, 25).Draw(rt, "operations") {
			if rapid.IntRange(0, 9).Draw(rt, "move") == 0 {
				boundary = 300 - boundary
				c.change(fmt.Sprintf("%d b=0-%d a=%[2]d-%[1]d", boundary, boundary/2))
			}
			i := rapid.IntRange(0, 2).Draw(rt, "instance")
			if seg, err := sources[i].Lease(bg, rapid.Int64Range(1, 130).Draw(rt, "count")); err == nil {
				got[owners[i]] = append(got[owners[i]], seg)
			} else {
				wrong++
			}
		}
		h := c.read()
		for _, f := range closers {
			f()
		}
		lines, err := history.ReadLeases(dir)
		if err != nil {
			rt.Fatal(err)
		}
		s := history.Match(lines, h)
		if len(s.Problems) > 0 || len(h.Problems) > 0 || s.Unseen > 0 || len(s.Orphans) > 0 {
			rt.Fatalf("problems %v %v, %d unseen, orphans %v", s.Problems, h.Problems, s.Unseen, s.Orphans)
		}
		leases, segments := 0, 0
		for _, rise := range h.Rises {
			if rise.Lease {
				leases++
			}
		}
		for _, o := range owners {
			finder := s.Finder(o)
			segments += len(got[o])
			for _, seg := range got[o] {
				for run := range seg.Runs() {
					if found, n, line := finder.Find(run); found != history.Within ||
						n != run.Count || line.Segment != seg {
						rt.Fatalf("%v: %v is %v, %d IDs, of %v", o, run, found, n, line)
					}
				}
			}
		}
		if s.Leased != segments || leases != s.Leased+len(s.Applied)+len(s.GivenUp) || len(s.Applied) > wrong {
			rt.Fatalf("%d leased of %d segments, %d rises, %d applied of %d", s.Leased, segments,
				leases, len(s.Applied), wrong)
		}
		applied += len(s.Applied)
	})
	if applied == 0 {
		t.Error("no transaction failed and was done: nothing was shown")
	}
}

// Each case puts a wrong line in a log, or leaves a line out. Each is found.
func TestMatchFindsPlantedFaults(t *testing.T) {
	dir := t.TempDir()
	c := logged(t, dir)
	defer c.stop()
	_, one, closeOne := c.logging("a", "one")
	_, two, closeTwo := c.logging("a", "two")
	for range 5 {
		for _, source := range []allocator.Source{one, two} {
			if _, err := source.Lease(bg, 70); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := c.read()
	closeOne()
	closeTwo()
	good, err := history.ReadLeases(dir)
	// two instances are refused at times
	good = slices.DeleteFunc(good, func(l history.Line) bool { return l.Outcome != history.Leased })
	if err != nil || len(good) != 10 {
		t.Fatalf("%d lines, %v", len(good), err)
	}
	for _, test := range []struct {
		name, want string
		change     func(lines []history.Line) []history.Line
	}{
		{"nothing", "", func(l []history.Line) []history.Line { return l }},
		{"a segment of two", "by one transaction", func(l []history.Line) []history.Line {
			twice := l[3]
			twice.Instance = "two"
			return append(l, twice)
		}},
		{"one leased twice", "both leased", func(l []history.Line) []history.Line {
			l[3].Segment.First, l[3].Segment.Count = l[2].Segment.First, l[2].Segment.Count
			return l
		}},
		{"more than was leased", "where the history has the mark go", func(l []history.Line) []history.Line {
			l[3].Segment.Count++
			return l
		}},
		{"from before the mark", "where the history has the mark go", func(l []history.Line) []history.Line {
			l[3].Segment.First--
			l[3].Segment.Count++
			return l
		}},
		{"of another epoch", "where the history has the mark go", func(l []history.Line) []history.Line {
			l[3].Epoch = "e"
			return l
		}},
		{"at a revision that wrote nothing", "which the history does not have", func(l []history.Line) []history.Line {
			l[3].Revision = 2
			return l
		}},
		{"under another layout", "where the history has the mark go", func(l []history.Line) []history.Line {
			l[3].Segment.Version = 2
			return l
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			lines := test.change(append([]history.Line(nil), good...))
			s := history.Match(lines, h)
			text := strings.Join(s.Problems, "\n")
			if test.want == "" && text != "" || !strings.Contains(text, test.want) {
				t.Errorf("problems: %s; want %q", text, test.want)
			}
		})
	}
	// A lease without a line is an orphan. A lease with a line that says lost is applied.
	if s := history.Match(good[1:], h); len(s.Orphans) != 1 || len(s.Applied) != 0 {
		t.Errorf("a line left out: orphans %v, applied %v", s.Orphans, s.Applied)
	}
	lost := append([]history.Line(nil), good...)
	lost[4].Outcome = history.Lost
	if s := history.Match(lost, h); len(s.Applied) != 1 || len(s.Orphans) != 0 || s.Lost != 1 {
		t.Errorf("a line of a lost lease: applied %v, orphans %v", s.Applied, s.Orphans)
	}
}

// The history contradicts a line that says an instance leased from below a skip on, in an era
// that goes on above the skip. The history has only the end of a lease.
func TestMatchKnowsSkips(t *testing.T) {
	dir := t.TempDir()
	c := logged(t, dir)
	defer c.stop()
	_, one, closeOne := c.logging("a", "one")
	if _, err := one.Lease(bg, 5); err != nil {
		t.Fatal(err)
	}
	if _, err := c.admin.SkipTag(bg, "t", nil, 1010, false, "test"); err != nil {
		t.Fatal(err)
	}
	if seg, err := one.Lease(bg, 20); err != nil || seg.First != 1010 {
		t.Fatal(seg, err)
	}
	h := c.read()
	closeOne()
	lines, err := history.ReadLeases(dir)
	lines = slices.DeleteFunc(lines, func(l history.Line) bool { return l.Outcome != history.Leased })
	if err != nil || len(lines) != 2 {
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	if s := history.Match(lines, h); len(s.Problems) > 0 || len(h.Problems) > 0 {
		t.Errorf("problems %v, %v", s.Problems, h.Problems)
	}
	lines[1].Segment.First, lines[1].Segment.Count = 1005, 25
	if s := history.Match(lines, h); len(s.Problems) != 1 ||
		!strings.Contains(s.Problems[0], "where the history has the mark go") {
		t.Errorf("a lease from below the skip on: problems %v", s.Problems)
	}
}

func TestFind(t *testing.T) {
	r := allocator.Range{Lower: 10, Upper: 20}
	owner := history.Owner{Room: "a", Instance: "one", Tag: "t"}
	lines := []history.Line{
		{Owner: owner, Outcome: history.Leased, Segment: allocator.Segment{Version: 1, Boundary: 100,
			Range: r, First: 115, Count: 10}},
		{Owner: owner, Outcome: history.Leased, Segment: allocator.Segment{Version: 2, Boundary: 7,
			Range: allocator.Range{Lower: 0, Upper: 7}, First: 300, Count: 50}},
	}
	f := history.Match(lines, &history.History{}).Finder(owner)
	for _, test := range []struct {
		first, count int64
		want         history.Found
		n            int64
	}{
		{115, 5, history.Within, 5}, {115, 9, history.Within, 5}, {210, 9, history.Within, 5},
		{120, 1, history.Foreign, 1},
		{209, 1, history.Foreign, 1},
		{114, 1, history.Nowhere, 1}, {215, 1, history.Nowhere, 1}, {0, 1, history.Nowhere, 1},
		{299, 1, history.Nowhere, 1},
		{300, 60, history.Within, 50}, {349, 1, history.Within, 1}, {350, 1, history.Nowhere, 1},
		{118, 1, history.Within, 1},
	} {
		if found, n, _ := f.Find(allocator.Run{First: test.first, Count: test.count}); found != test.want ||
			n != test.n {
			t.Errorf("%d IDs from %d on: %v, %d; want %v, %d", test.count, test.first, found, n, test.want, test.n)
		}
	}
	// If segments share IDs, Find returns for each ID a segment that has it.
	lines = append(lines, history.Line{Owner: owner, Outcome: history.Leased, Segment: allocator.Segment{Version: 1,
		Boundary: 100, Range: allocator.Range{Lower: 0, Upper: 50}, First: 100, Count: 1000}})
	f = history.Match(lines, &history.History{}).Finder(owner)
	for first, want := range map[int64]history.Found{109: history.Within, 120: history.Within, 160: history.Foreign,
		340: history.Within, 400: history.Within, 2049: history.Within, 2050: history.Nowhere} {
		if found, _, _ := f.Find(allocator.Run{First: first, Count: 1}); found != want {
			t.Errorf("%d among segments that share IDs: %v, want %v", first, found, want)
		}
	}
	other := owner
	other.Room = "b"
	if found, _, _ := history.Match(lines, &history.History{}).Finder(other).Find(
		allocator.Run{First: 115, Count: 1}); found != history.Nowhere {
		t.Error("an ID of another room's segment was found")
	}
}

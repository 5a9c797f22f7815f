package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
)

// Many tags, over pages, with one that is bad; then with all bad.
func TestVerifyManyTags(t *testing.T) {
	const n = 4_000
	m, l, revisions := verifyCluster(t)
	for i := range n {
		putGood(m, fmt.Sprintf("tag-%05d", i), revisions)
	}
	set(m, "marks/a/tag-01234", mark(150, revisions[1], era(1, 1, 105), era(2, 105, 150)))
	calls, last := 0, verify.Progress{}
	report, err := verify.Run(t.Context(), l.Cluster(),
		verify.Options{PageSize: 500, Progress: func(p verify.Progress) {
			calls++
			if p.Tags < last.Tags || p.Marks < last.Marks || p.Eras < last.Eras || p.At != "" && p.At <= last.At {
				t.Errorf("progress goes from %+v to %+v", last, p)
			}
			last = p
		}})
	if err != nil {
		t.Fatal(err)
	}
	if report.Tags != n || report.Marks != 2*n || report.Eras != 4*n || int64(calls) < n/500 ||
		last.Tags != n || last.Problems != 1 {
		t.Errorf("%d calls, the last %+v, report %+v", calls, last, report)
	}
	if len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "tag tag-01234: ") {
		t.Errorf("it says %q", report.Problems)
	}
	m.Corrupt(store.Op{Delete: verifyPrefix + "layouts/0000000000000000002"})
	report, err = verify.Run(t.Context(), l.Cluster(), verify.Options{PageSize: 500})
	if err != nil || len(report.Problems) != verify.MaxProblems || report.More != 2*n+2-verify.MaxProblems {
		t.Errorf("%v: %d problems and %d more, want %d in all", err, len(report.Problems), report.More, 2*n+2)
	}
}

// names are ways to name many tags.
func names() map[string]func(i int) string {
	random := rand.New(rand.NewPCG(1, 2))
	return map[string]func(i int) string{
		"numbers":  func(i int) string { return fmt.Sprint(i) },
		"padded":   func(i int) string { return fmt.Sprintf("tag-%06d", 17*i) },
		"random":   func(int) string { return fmt.Sprintf("%016x", random.Uint64()) },
		"far":      func(i int) string { return fmt.Sprintf("%c-%s-%03d", 'a'+i%5, strings.Repeat("x", 40), i/5) },
		"prefixes": func(i int) string { return fmt.Sprintf("%s%d", strings.Repeat("a.", i%25), i) },
	}
}

// Pages stay few whatever names look like.
func TestVerifyPagesFew(t *testing.T) {
	const n, page = 3000, 100
	for what, name := range names() {
		m, l, revisions := verifyCluster(t)
		for i := range n {
			putGood(m, name(i), revisions)
		}
		calls := 0
		report, err := verify.Run(t.Context(), l.Cluster(),
			verify.Options{PageSize: page, Progress: func(verify.Progress) {
				calls++
			}})
		if err != nil || len(report.Problems) > 0 || report.Tags != n || report.Marks != 2*n || report.Eras != 4*n {
			t.Errorf("%s: %v %+v", what, err, report)
		}
		if most := 6 * n / page; calls > most {
			t.Errorf("%s: %d pages, want at most %d", what, calls, most)
		}
		t.Logf("%s: %d pages", what, calls)
	}
}

// A cluster with as many rooms as there may be: transactions stay within
// etcd's limit.
func TestVerifyManyRooms(t *testing.T) {
	m := ledgertest.NewFake(t)
	l, err := ledger.New(m.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	var rooms []allocator.Room
	for i := range allocator.MaxRooms {
		rooms = append(rooms, allocator.Room(fmt.Sprintf("r%02d", i)))
	}
	layout, err := allocator.EqualLayout(6400, rooms)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := manage(l).Init(t.Context(), layout, "test"); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		set(m, fmt.Sprintf("tags/t%03d", i), fmt.Sprintf(tagSettings, int64(allocator.MaxID)))
		for j, room := range rooms {
			set(m, fmt.Sprintf("marks/%s/t%03d", room, i),
				mark(int64(100*j+50), 2, era(1, int64(100*j), int64(100*j+50))))
		}
	}
	report, err := verify.Run(t.Context(), l.Cluster(), verify.Options{})
	if err != nil || len(report.Problems) > 0 || report.Marks != 64*300 || report.Tags != 300 {
		t.Errorf("%v %+v", err, report)
	}
}

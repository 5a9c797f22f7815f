package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
)

const verifyPrefix = "/march/default/"

// verifyCluster returns a cluster of rooms a and b, under layout version 2 in
// which they have changed places, with the revisions of both layouts.
func verifyCluster(t *testing.T) (*ledgertest.Fake, *ledger.Ledger, [2]int64) {
	m := ledgertest.NewFake(t)
	l, err := ledger.New(m.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	low, high := allocator.Range{Lower: 0, Upper: 5}, allocator.Range{Lower: 5, Upper: 10}
	stored, err := manage(l).Init(t.Context(), allocator.Layout{Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": low, "b": high}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	revisions := [2]int64{m.Revision(), 0}
	if _, err := manage(l).ChangeLayout(t.Context(), stored, allocator.Layout{Boundary: 10,
		Ranges: map[allocator.Room]allocator.Range{"a": high, "b": low}}, "test"); err != nil {
		t.Fatal(err)
	}
	revisions[1] = m.Revision()
	return m, l, revisions
}

func set(m *ledgertest.Fake, key, value string) {
	m.Corrupt(store.Op{Put: &store.Put{Key: verifyPrefix + key, Value: []byte(value)}})
}

func era(version, first, end int64) string {
	return fmt.Sprintf(`{"version":"%d","epoch":"e","first":"%d","end":"%d"}`, version, first, end)
}

// mark is a mark with the stamp of a layout's revision, and eras.
func mark(next, revision int64, eras ...string) string {
	return fmt.Sprintf(`{"format":2,"next":"%d","stamp":{"epoch":"e","layout_revision":"%d"},"eras":[%s]}`, next,
		revision, strings.Join(eras, ","))
}

const tagSettings = `{"format":2,"start":"1","limit":"%d","min_step":"1000","max_step":"10000000","reserve":"10m0s","max_jump":"1000000000000000","largest_step":"10000000","created":"2026-01-01T00:00:00Z","nonce":"x"}`

// putGood writes a tag with a mark of two eras in both rooms.
func putGood(m *ledgertest.Fake, name string, revisions [2]int64) {
	set(m, "tags/"+name, fmt.Sprintf(tagSettings, int64(allocator.MaxID)))
	set(m, "marks/a/"+name, mark(150, revisions[1], era(1, 1, 45), era(2, 105, 150)))
	set(m, "marks/b/"+name, mark(145, revisions[1], era(1, 5, 100), era(2, 100, 145)))
}

// Names at every page's edge: each tag is checked, and each key is counted once.
func TestVerifyOrders(t *testing.T) {
	m, l, revisions := verifyCluster(t)
	names := []string{"a", "a-", "a--", "a-0", "a.", "a.b", "a0", "a0-", "aa", "a-a.b", "a-a", "a-a-", "b", "b-1",
		"b-2", "b-3", "b-4", "b.1", "b_", "c"}
	for _, name := range names {
		putGood(m, name, revisions)
	}
	for _, bad := range append([]string{""}, names...) {
		if bad != "" {
			set(m, "marks/a/"+bad, mark(150, revisions[1], era(1, 1, 105), era(2, 105, 150)))
		}
		for page := int64(1); page < 12; page++ {
			report, err := verify.Run(t.Context(), l.Cluster(), verify.Options{PageSize: page})
			if err != nil {
				t.Fatal(err)
			}
			n := int64(len(names))
			if report.Layouts != 2 || report.Rooms != 2 || report.Tags != n ||
				report.Marks != 2*n || report.Eras != 4*n {
				t.Errorf("page %d: counted %+v", page, report)
			}
			if bad == "" && len(report.Problems) > 0 ||
				bad != "" && (len(report.Problems) != 1 || !strings.Contains(report.Problems[0], "tag "+bad+": ")) {
				t.Errorf("page %d: %q is bad, but it says: %q", page, bad, report.Problems)
			}
		}
		if bad != "" {
			putGood(m, bad, revisions)
		}
	}
}

// The cluster moves while it is read: layouts, rooms, eras. At every
// transaction in turn the layout changes and all rooms lease under it; nothing
// is found wrong.
func TestVerifyMoves(t *testing.T) {
	ctx := t.Context()
	for at := 0; ; at++ {
		m, l, _ := verifyCluster(t)
		names := []allocator.Tag{"a", "a-1", "a-2", "b", "b-1", "b-2", "c"}
		lease := func(rooms ...allocator.Room) {
			for _, room := range rooms {
				p, err := l.Join(ctx, ledger.Registration{Room: room, Name: "one"})
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range names {
					source, _, err := p.Source(ctx, name)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := source.Lease(ctx, 20); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		for _, name := range names {
			if _, err := manage(l).CreateTag(ctx, name, record.DefaultTag(), "test"); err != nil {
				t.Fatal(err)
			}
		}
		lease("a", "b")
		conn := m.Open()
		var mu sync.Mutex // lists are read at once
		count := 0
		conn.Fate(func(store.Txn) (fate ledgertest.Fate) {
			mu.Lock()
			defer mu.Unlock()
			if count++; count != at+1 && count != at+3 {
				return fate
			}
			stored, err := l.Refresh(ctx)
			if err != nil {
				t.Fatal(err)
			}
			third := allocator.Layout{Boundary: 12, Ranges: map[allocator.Room]allocator.Range{"a": {Lower: 8,
				Upper: 12}, "b": {Lower: 4, Upper: 8}, "new": {Lower: 0, Upper: 4}}}
			if _, err := manage(l).ChangeLayout(ctx, stored, third, "test"); err != nil {
				t.Fatal(err)
			}
			lease("new", "a", "b")
			return fate
		})
		reader, err := ledger.New(conn, ledger.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		report, err := verify.Run(ctx, reader.Cluster(), verify.Options{PageSize: 3})
		if err != nil || len(report.Problems) > 0 {
			t.Errorf("moved at %d: %v %q", at, err, report.Problems)
		}
		if count <= at {
			if at < 9 {
				t.Errorf("only %d transactions", count)
			}
			return
		}
	}
}

// A check whose revision etcd forgets begins anew, and gives up in the end.
func TestVerifyCompacted(t *testing.T) {
	for _, often := range []int{1, 9} {
		m, _, revisions := verifyCluster(t)
		putGood(m, "t", revisions)
		if often > 1 {
			set(m, "consoles/c", "{")
		}
		conn, trips := m.Open(), 0
		var compacting sync.Mutex // the status is asked beside
		conn.Fate(func(store.Txn) (fate ledgertest.Fate) {
			compacting.Lock()
			defer compacting.Unlock()
			if trips++; trips%4 == 3 && trips < 4*often {
				putGood(m, "t", revisions)
				m.Corrupt(store.Op{Delete: verifyPrefix + "consoles/c"}) // the next attempt does not find it
				m.Compact()
			}
			return fate
		})
		reader, err := ledger.New(conn, ledger.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		report, err := verify.Run(t.Context(), reader.Cluster(), verify.Options{})
		if often == 1 && (err != nil || len(report.Problems) > 0 || report.Tags != 1) {
			t.Errorf("compacted once: %v %+v", err, report)
		}
		if often > 1 && (allocator.KindOf(err) != allocator.Unavailable || len(report.Problems) == 0) {
			t.Errorf("compacted again and again: %v %+v", err, report)
		}
	}
}

// No cluster, etcd away and the caller's context end Verify early.
func TestVerifyErrors(t *testing.T) {
	m := ledgertest.NewFake(t)
	l, err := ledger.New(m.Open(), ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify.Run(t.Context(), l.Cluster(), verify.Options{}); allocator.KindOf(err) != allocator.Refused {
		t.Errorf("without a cluster: %v", err)
	}
	m, l, revisions := verifyCluster(t)
	for i := range 20 {
		putGood(m, fmt.Sprintf("t%d", i), revisions)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	report, err := verify.Run(ctx, l.Cluster(), verify.Options{PageSize: 2, Progress: func(p verify.Progress) {
		if p.Tags > 4 {
			cancel()
		}
	}})
	if err == nil || ctx.Err() == nil || report.Tags == 0 || report.Tags == 20 {
		t.Errorf("canceled: %v %+v", err, report)
	}
}

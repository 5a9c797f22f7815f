package console_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// tagGate is a store that holds back reads of many tags, except for as many as a test lets
// through.
type tagGate struct {
	store.Store
	first bool // reads that begin at the first tag pass
	mu    sync.Mutex
	let   int           // how many more reads pass
	came  int           // how many reads came so far
	more  chan struct{} // closed when let changes
}

func (g *tagGate) open(reads int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.let += reads
	close(g.more)
	g.more = make(chan struct{})
}

func (g *tagGate) reads() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.came
}

// Txn implements ledger.Store.
func (g *tagGate) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	for _, op := range txn.Then {
		if op.Get == nil || op.Get.End == "" || !strings.Contains(op.Get.Key, "/tags/") ||
			g.first && strings.HasSuffix(op.Get.Key, "/tags/") {
			continue
		}
		g.mu.Lock()
		g.came++
		for g.let == 0 {
			more := g.more
			g.mu.Unlock()
			select {
			case <-ctx.Done():
				return store.Answer{}, ctx.Err()
			case <-more:
			}
			g.mu.Lock()
		}
		g.let--
		g.mu.Unlock()
	}
	return g.Store.Txn(ctx, txn)
}

// TestPlanAnswersBeforeItsCosts: a console makes a plan though the one read of the first tags,
// for their workers, does not come back, nor that of the console's start. The answer
// about the costs says how many tags were read so far. Once counted, the costs are not
// counted again when the plan is applied.
func TestPlanAnswersBeforeItsCosts(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const tags, pages = 2500, 3
		w := newWorld(t, halves())
		w.tags(tags)
		w.try = time.Hour // a read waits for the test
		etcd := &tagGate{Store: w.Mem.Open(), more: make(chan struct{})}
		n := w.nodeOver(etcd)
		plan := w.plan(n, quarter())
		if len(plan.GetMoves()) != 2 || plan.GetCost() != nil || etcd.reads() != 2 {
			t.Fatalf("the plan %v, after %d reads of tags", plan, etcd.reads())
		}
		count := ""
		cost := func() *marchv1.CountPlanCostResponse {
			t.Helper()
			answer := must(n.CountPlanCost(bg, &marchv1.CountPlanCostRequest{Plan: plan, Count: count}))(t)
			count = answer.GetCount()
			return answer
		}
		if answer := cost(); answer.GetCost() != nil || answer.GetRead() != 0 || answer.GetRefused() != "" {
			t.Errorf("before any tag is read: %v", answer)
		}
		const start, counted, names = 1, 1, 2 // other reads than of pages, until two pages are read
		etcd.open(start + counted + names + 2)
		testcluster.Await(t, "two pages are read", func() bool {
			answer := cost()
			if answer.GetCost() != nil {
				t.Fatalf("too early: %v", answer)
			}
			return answer.GetRead() == 2000 && answer.GetTags() == tags
		})

		// No migration begins before all tags are read.
		gone, leave := context.WithCancel(bg)
		left := make(chan error, 1)
		go func() {
			_, err := n.ApplyMigration(gone, &marchv1.ApplyMigrationRequest{Plan: plan, Count: count})
			left <- err
		}()
		leave()
		if err := <-left; err == nil {
			t.Error("the plan was applied before its costs were known")
		}

		etcd.open(1000)
		testcluster.Await(t, "all tags are read", func() bool { return cost().GetCost() != nil })
		if answer := cost(); answer.GetCost().GetTags() != tags || answer.GetRead() != tags {
			t.Errorf("%v", answer)
		}
		before := etcd.reads()
		m := must(n.ApplyMigration(bg, &marchv1.ApplyMigrationRequest{Plan: plan, Count: count}))(t)
		w.ends(n, m.GetMigration().GetId(), "done")
		if after := etcd.reads(); after != before {
			t.Errorf("%d more reads of tags for costs that were counted a moment ago", after-before)
		}
		w.apply(n, halves(), 0)
		if after := etcd.reads(); after-before < pages {
			t.Errorf("only %d reads of tags for a plan that was not counted", after-before)
		}
	})
}

// TestSearchShowsTheFirstTags: while a console reads all tags for the first time, it shows
// the first page of them and answers no other search.
func TestSearchShowsTheFirstTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		const tags = 2500
		w := newWorld(t, halves())
		w.tags(tags)
		w.try = time.Hour // a read waits for the test
		etcd := &tagGate{Store: w.Mem.Open(), more: make(chan struct{}), first: true}
		n := w.nodeOver(etcd)
		search := func(r *marchv1.SearchTagsRequest) *marchv1.SearchTagsResponse {
			t.Helper()
			answer := must(n.SearchTags(bg, r))(t)
			return answer
		}
		var found *marchv1.SearchTagsResponse
		testcluster.Await(t, "the first tags are there", func() bool {
			found = search(&marchv1.SearchTagsRequest{PageSize: 10, Offset: 20})
			return len(found.GetTags()) > 0
		})
		var names []string
		for k := range tags {
			names = append(names, string(tagOf(k)))
		}
		slices.Sort(names)
		if found.GetAsOf() != nil || len(found.GetTags()) != 10 || found.GetTags()[0].GetTag().GetName() != names[20] {
			t.Errorf("%v", found)
		}
		for _, r := range []*marchv1.SearchTagsRequest{{Sort: marchv1.TagSort_TAG_SORT_RATE}, {Descending: true},
			{Search: "9"}, {Offset: 1000}} {
			if found := search(r); found.GetAsOf() != nil || len(found.GetTags()) > 0 {
				t.Errorf("%v: %v", r, found)
			}
		}
		etcd.open(1000)
		testcluster.Await(t, "all tags are there", func() bool {
			found = search(&marchv1.SearchTagsRequest{PageSize: 10, Offset: 2000})
			return found.GetAsOf() != nil
		})
		if found.GetFound() != tags || len(found.GetTags()) != 10 {
			t.Errorf("%v", found)
		}
	})
}

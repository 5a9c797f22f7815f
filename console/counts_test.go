package console

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// reader reads tags: one each second, until it has read as many as it should.
type reader struct {
	began, cancelled atomic.Int64 // how often
	tags             int64
	err              error // of the end
}

func (r *reader) read(ctx context.Context, n *count) (costs, error) {
	r.began.Add(1)
	n.tags.Store(r.tags)
	for range r.tags {
		select {
		case <-ctx.Done():
			r.cancelled.Add(1)
			return costs{}, ctx.Err()
		case <-time.After(time.Second):
			n.read.Add(1)
		}
	}
	return costs{cost: &marchv1.PlanCost{Tags: r.tags}}, r.err
}

// TestCountGoesOnBetweenCallers: a caller that comes back finds the count further on, and
// then its result, which is kept for a minute. For a caller that does not come back, or
// comes with another plan, the tags are read anew.
func TestCountGoesOnBetweenCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c counts
		r := &reader{tags: 10}
		id := ""
		for i := range 5 {
			n, err := c.get(t.Context(), id, "plan", time.Second/2, r.read)
			if err != nil || n.over() || id != "" && n.id != id {
				t.Fatalf("call %d: %v, %v", i, n, err)
			}
			id = n.id
			time.Sleep(time.Second)
		}
		n, err := c.get(t.Context(), id, "plan", time.Minute, r.read)
		if err != nil || n.id != id || !n.over() || n.costs.cost.GetTags() != 10 || n.read.Load() != 10 {
			t.Fatalf("%+v, %v", n, err)
		}
		time.Sleep(countKept - time.Second)
		if again, err := c.get(t.Context(), id, "plan", 0, r.read); again != n || err != nil {
			t.Errorf("costs that were counted a moment ago: %+v, %v", again, err)
		}
		time.Sleep(2 * time.Second)
		for _, ask := range []struct{ what, id, plan string }{
			{"of long ago", id, "plan"}, {"of another plan", id, "other"}, {"for a new caller", "", "plan"},
		} {
			before := r.began.Load()
			if again, err := c.get(t.Context(), ask.id, ask.plan, time.Minute, r.read); again == n || err != nil ||
				r.began.Load() != before+1 {
				t.Errorf("costs %s: %+v, %v", ask.what, again, err)
			}
		}
		c.stop()
		c.work.Wait()
	})
}

// TestNewCallersShareACount: callers without an id share a count that has just begun. Later
// such a caller gets a count of its own, because tags may have changed.
func TestNewCallersShareACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c counts
		r := &reader{tags: 10}
		first := must(c.get(t.Context(), "", "plan", 0, r.read))(t)
		time.Sleep(countIdle - time.Second)
		if again, err := c.get(t.Context(), "", "plan", 2*time.Second, r.read); again != first || err != nil {
			t.Errorf("got %+v, %v, want %+v", again, err, first)
		}
		if again, err := c.get(t.Context(), "", "plan", 0, r.read); again == first || err != nil {
			t.Errorf("got the count of long ago, %v", err)
		}
		c.stop()
		c.work.Wait()
		if r.began.Load() != 2 {
			t.Errorf("%d counts were begun", r.began.Load())
		}
	})
}

// TestCountOfAnotherConsole: a caller that alternates between consoles begins one count on
// each of them, not one more each time.
func TestCountOfAnotherConsole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var consoles [2]counts
		r := &reader{tags: 10}
		id := ""
		for i := range 100 {
			n := must(consoles[i%2].get(t.Context(), id, "plan", time.Second, r.read))(t)
			if n.over() {
				break
			}
			id = n.id
		}
		if r.began.Load() != 2 {
			t.Errorf("%d counts were begun", r.began.Load())
		}
		for i := range consoles {
			consoles[i].stop()
			consoles[i].work.Wait()
		}
	})
}

// TestCountEndsWithoutCallers: a count ends if no caller waits for it, and goes on while
// one does. The next caller has it begin again.
func TestCountEndsWithoutCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c counts
		r := &reader{tags: 1000}
		gone, leave := context.WithCancel(t.Context())
		time.AfterFunc(10*countIdle, leave)
		n, err := c.get(gone, "", "plan", time.Hour, r.read)
		if !errors.Is(err, context.Canceled) || r.cancelled.Load() != 0 {
			t.Fatalf("%v, cancelled %d times while a caller waited", err, r.cancelled.Load())
		}
		time.Sleep(2 * countIdle)
		synctest.Wait()
		if r.cancelled.Load() != 1 {
			t.Fatalf("cancelled %d times", r.cancelled.Load())
		}
		if n, err = c.get(t.Context(), n.id, "plan", 2000*time.Second, r.read); err != nil ||
			!n.over() || r.began.Load() != 2 {
			t.Errorf("%+v, %v, begun %d times", n, err, r.began.Load())
		}
		c.stop()
		c.work.Wait()
	})
}

// TestCountFails: a caller that comes back gets each failure once. Then the tags are read
// again.
func TestCountFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c counts
		r := &reader{tags: 2, err: allocator.Errorf(allocator.Unavailable, "etcd is away")}
		n, err := c.get(t.Context(), "", "plan", 0, r.read)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if _, err := c.get(t.Context(), n.id, "plan", 0, r.read); !errors.Is(err, r.err) {
			t.Errorf("got %v", err)
		}
		_, err = c.get(t.Context(), n.id, "plan", 0, r.read)
		synctest.Wait()
		if err != nil || r.began.Load() != 2 {
			t.Errorf("got %v, begun %d times", err, r.began.Load())
		}
		c.stop()
		c.work.Wait()
	})
}

// TestCountsAreBounded: no more than a fixed number of plans are counted at once. Finished
// counts give way to new ones. A console that stops counts no more.
func TestCountsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c counts
		quick, slow := &reader{tags: 1}, &reader{tags: 1000}
		n, err := c.get(t.Context(), "", "quick", time.Minute, quick.read)
		if err != nil || !n.over() {
			t.Fatal(err)
		}
		for i := range maxCounts {
			if _, err := c.get(t.Context(), "", fmt.Sprint(i), 0, slow.read); err != nil {
				t.Fatal(i, err)
			}
		}
		if len(c.mu.all) != maxCounts || slices.Contains(c.mu.all, n) {
			t.Errorf("%d counts", len(c.mu.all))
		}
		if _, err := c.get(t.Context(), "", "quick", 0, quick.read); !errors.Is(err, allocator.Unavailable) ||
			quick.began.Load() != 1 {
			t.Errorf("one count too many: %v", err)
		}
		c.stop()
		c.work.Wait()
		if slow.cancelled.Load() != maxCounts {
			t.Errorf("%d counts were cancelled", slow.cancelled.Load())
		}
		if _, err := c.get(t.Context(), "", "quick", 0, quick.read); !errors.Is(err, allocator.Unavailable) ||
			quick.began.Load() != 1 {
			t.Errorf("after the end: %v", err)
		}
	})
}

package room_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// TestHammer has two instances of each of two rooms issue eight tags at once,
// from cold.
func TestHammer(t *testing.T) {
	c := newCluster(t, layout(97, map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 31},
		"b": {Lower: 31, Upper: 97}}))
	var tags []allocator.Tag
	for k := range 8 {
		tags = append(tags, allocator.Tag(fmt.Sprintf("tag-%d", k)))
	}
	c.tag(nil, tags...)
	instances := []*instance{
		c.start("a", "one", nil), c.start("a", "two", nil),
		c.start("b", "one", nil), c.start("b", "two", nil), // two rooms may use the same names
	}
	var all []*issued
	var work sync.WaitGroup
	cold := make(chan struct{})
	for _, i := range instances {
		for _, tag := range tags {
			singles, batches := &issued{TB: t, room: i.In, tag: tag}, &issued{TB: t, room: i.In, tag: tag}
			all = append(all, singles, batches)
			work.Go(func() {
				<-cold
				for range 300 {
					id, err := retried(t, func() (int64, error) { return i.next(string(tag)) })
					if err != nil {
						t.Errorf("next: %v", err)
						return
					}
					singles.addID(id)
				}
			})
			work.Go(func() {
				<-cold
				for k := range 20 {
					r, err := retried(t, func() (*marchv1.NextBatchResponse, error) {
						return i.NextBatch(bg, &marchv1.NextBatchRequest{Tag: string(tag), Count: int64(1 + k*37)})
					})
					if err != nil {
						t.Errorf("batch: %v", err)
						return
					}
					batches.add(r.GetRuns()...)
				}
			})
		}
	}
	close(cold)
	work.Wait()
	c.verify(all...)
}

// coldNext returns an ID of a tag that is cold together with hundreds of others,
// or ends the test.
func (i *instance) coldNext(tag string) int64 {
	i.Helper()
	id, err := retried(i, func() (int64, error) { return i.next(tag) })
	if err != nil {
		i.Fatalf("next %s: %v", tag, err)
	}
	return id
}

// retried repeats a call that is unavailable. Where all processors are busy for long, for
// example with the race detector, etcd takes longer than one attempt may.
func retried[T any](tb testing.TB, call func() (T, error)) (answer T, err error) {
	tb.Helper()
	await(tb, "etcd takes no longer than one attempt may", func() bool {
		answer, err = call()
		return allocator.KindOf(api.FromStatus(err)) != allocator.Unavailable
	})
	return answer, err
}

package web_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster"
)

// BenchmarkPages asks a console of 100,000 tags for pages, as a browser does.
func BenchmarkPages(b *testing.B) {
	const many = 100_000
	w := newWorld(b, 1000, "a", "b")
	at, _ := w.console("")
	var creating errgroup.Group
	creating.SetLimit(64)
	for i := range many {
		creating.Go(func() error {
			_, err := w.Admin.CreateTag(b.Context(), allocator.Tag(fmt.Sprintf("shard-%06d", i)),
				record.DefaultTag(), "ann")
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		b.Fatal(err)
	}
	ids := w.server("a", "host-1")
	w.load(ids, "shard-077777", 1000)
	began := time.Now()
	testcluster.Await(w, "all tags are read", func() bool {
		_, text := get(b, at+"/tags")
		return strings.Contains(text, "100,000 tags")
	})
	b.Logf("all tags were read after %v", time.Since(began))
	for _, path := range []string{
		"/", "/tags", "/tags?page=2000", "/tags?sort=rate&order=down", "/tags?sort=used&page=1000",
		"/tags?search=99&sort=lasts",
		"/tags/shard-077777", "/migrations",
		"/migrations?boundary=1000&room=a&lower=0&upper=250&room=b&lower=250&upper=1000", "/instances", "/audit",
		"/decode?tag=shard-077777&id=1",
	} {
		b.Run(path, func(b *testing.B) {
			var longest time.Duration
			for b.Loop() {
				began := time.Now()
				if answer, text := get(b, at+path); answer.StatusCode != http.StatusOK {
					b.Fatalf("%s\n%s", answer.Status, text)
				}
				longest = max(longest, time.Since(began))
			}
			b.ReportMetric(float64(longest.Microseconds())/1000, "ms-at-most")
		})
	}
}

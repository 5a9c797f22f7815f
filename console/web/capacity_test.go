package web_test

import (
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// The page lists what runs out first: a small tag that is in use before the others. While etcd
// does not answer, the reserves are first.
func (b *browser) capacity(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	small := record.DefaultTag()
	small.Limit = 100_000_000
	must(w.Admin.CreateTag(t.Context(), "small", small, "ann"))(t)
	w.tag("idle")
	ids := w.server("a", "host-1")
	console := w.Console(nil)
	testcluster.Await(t, "the console sees how fast the tag is used", func() bool {
		must(ids.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: "small", Count: 1000}))(t)
		c, err := console.GetCapacity(t.Context(), &marchv1.GetCapacityRequest{})
		return err == nil && c.GetCapacity()[0].GetTag() == "small" && c.GetCapacity()[0].GetFull() != nil
	})
	p := b.open(t, at)
	p.visit("/capacity")
	p.until("the small tag is first, and runs out",
		`document.querySelector("tbody tr").innerText.match(/IDs of tag small\s+in \d+/)`)
	p.until("the reserve does not",
		`[...document.querySelectorAll("tbody tr")].some((r) => /IDs in memory of room a\s+not while etcd answers/.test(r.innerText))`)
	p.says("Bytes in etcd not known yet")
	p.says("Rooms not at the present rate 2")
	w.Mem.Stop()
	p.until("the reserve is first",
		`document.querySelector("tbody tr").innerText.match(/IDs in memory of room a\s+in \d+ (min|s|h)/)`)
	w.Mem.Start()
	p.says("not while etcd answers")
	// The rows change their places as etcd comes back: a pointer could miss the link.
	eval[bool](p, `(() => { document.querySelector('th a[href="/tags/small"]').click(); return true })()`)
	p.until("its page", `location.pathname === "/tags/small"`)
}

// TestCapacityWithoutTags: the page of a cluster that has just begun says what it does not know.
func TestCapacityWithoutTags(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	testcluster.Await(t, "the tags are read", func() bool {
		_, page := get(t, at+"/capacity")
		if !strings.Contains(page, ">Rooms</a>") {
			t.Fatalf("the page has no rooms:\n%s", page)
		}
		return !strings.Contains(page, "Tags are not in this list yet") && strings.Contains(page, ">Tags</a>")
	})
}

package web_test

import (
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster"
)

// awaitTags waits until the console has read the tags.
func awaitTags(t *testing.T, at string) {
	t.Helper()
	testcluster.Await(t, "the tags are read", func() bool {
		_, page := get(t, at+"/tags")
		return strings.Contains(page, "· read ")
	})
}

// The audit shows each change as a difference of fields, is filtered by object, actor and time, and
// links lead to the changes of an object and of an actor.
func (b *browser) audit(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.tag("order", "order-2")
	if _, err := w.Admin.UpdateTag(t.Context(), "order", func(s *record.TagSettings) error {
		s.Limit = 5_000_000
		return nil
	}, "bob from 127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	w.server("a", "host-1")
	p := b.open(t, at)
	p.visit("/audit")
	p.says("limit 9,223,372,036,854,775,807 → 5,000,000")
	if nonce := eval[bool](p, `document.body.innerText.includes("nonce")`); nonce {
		t.Error("the audit shows nonces, which say nothing")
	}
	p.click(button("bob from 127.0.0.1"))
	p.until("only bob's changes",
		`location.search === "?actor=bob" && document.querySelectorAll(".audit tbody tr").length === 1`)
	p.click(button("tags/order"))
	p.says("Latest changes")
	p.until("they are those of this tag", `document.querySelectorAll(".audit tbody tr").length === 2`)
	p.click(button("All changes of this tag"))
	p.until("all of them, and none of order-2",
		`document.querySelectorAll(".audit tbody tr").length === 2 && !document.body.innerText.includes("order-2")`)
	p.click(css(".audit details summary")) // of the creation
	p.says("max_jump nothing → 1,000,000,000,000,000")
	p.visit("/instances")
	p.click(button("Changes"))
	p.until("the changes of the instance",
		`new URLSearchParams(location.search).get("object") === "rooms/a/host-1" && document.querySelector("[name=exact]").checked`)
}

// TestAuditByTime: the filter by time has a lower and an upper bound, and says what is wrong.
func TestAuditByTime(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	entries, _, err := w.Admin.Audits(t.Context(), "", 1)
	if err != nil {
		t.Fatal(err)
	}
	made := func(after time.Duration) string { return entries[0].Time.UTC().Add(after).Format("2006-01-02T15:04") }
	for filter, want := range map[string]bool{
		"since=" + made(-time.Minute): true,
		"since=" + made(time.Hour):    false,
		"until=" + made(time.Hour):    true,
		"until=" + made(-time.Minute): false,
		"since=" + made(-time.Hour) + "&until=" + made(time.Hour) + "&actor=ANN": true,
		"object=tags/ord":          true,
		"object=tags/ord&exact=on": false,
	} {
		if _, page := get(t, at+"/audit?"+filter); strings.Contains(page, `href="/tags/order"`) != want {
			t.Errorf("%s: the change is there: %t\n%s", filter, !want, page)
		}
	}
	if _, page := get(t, at+"/audit?since=noon"); !strings.Contains(page,
		`From (UTC): &#34;noon&#34;; allowed: a time such as`) ||
		!strings.Contains(page, `id="since" name="since" type="datetime-local" value="noon" aria-invalid="true"`) {
		t.Errorf("a wrong time is not refused at its field:\n%s", page)
	}
}

// An entry that no process chained is marked, and only it.
func TestAuditPageShowsUnchained(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	if _, err := w.Open(t).Txn(t.Context(), store.Txn{Then: []store.Op{store.OpPut(
		"/march/default/audit/01ARZ3NDEKTSV4RRFFQ69G5FAV",
		[]byte(`{"format":2,"time":"2016-07-30T23:54:10Z","actor":"ann","action":"old","object":"tags/x"}`))}}); err != nil {
		t.Fatal(err)
	}
	if _, page := get(t, at+"/audit"); strings.Count(page, "unchained") != 1 {
		t.Error(page)
	}
}

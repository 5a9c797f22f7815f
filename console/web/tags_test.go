package web_test

import (
	_ "embed"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// The page searches, sorts and pages 10,000 tags.
func (b *browser) tags(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	many, all, part := 10_000, "10,000", "0999"
	if raceEnabled {
		many, all, part = 1_000, "1,000", "0099"
	}
	busy := fmt.Sprintf("shard-%05d", 7777*many/10_000)
	var creating errgroup.Group
	creating.SetLimit(32)
	for i := range many {
		creating.Go(func() error {
			_, err := w.Admin.CreateTag(t.Context(), allocator.Tag(fmt.Sprintf("shard-%05d", i)), record.DefaultTag(), "ann")
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	ids, _ := w.server("a", "host-1")
	w.load(ids, busy, 1000)
	p := b.open(t, at)
	p.visit("/tags")
	p.says(all + " tags")
	p.until("the first page has the first names", `document.querySelector("tbody th").innerText === "shard-00000" && document.querySelectorAll("tbody tr").length === 50`)
	p.click(button("Next"))
	p.until("the second page", `document.querySelector("tbody th").innerText === "shard-00050" && location.search.includes("page=2")`)
	p.click(button("IDs/s"))
	p.until("the busiest is first", `document.querySelector("tbody th").innerText === "`+busy+`" && document.querySelector("th[aria-sort=descending]").innerText === "IDs/s"`)
	p.fill("#search", part)
	p.keys(kb.Enter)
	p.says("11 of " + all + " tags contain “" + part + "”") // of 10,000 shard-00999 and shard-09990 to 09999
	p.do(chromedp.Reload())
	p.says("11 of " + all + " tags contain “" + part + "”")
	p.click(button(fmt.Sprintf("shard-%05d", many-5)))
	p.says("No room has leased IDs of this tag yet.")
}

// The test creates a tag, changes its settings with and without mistakes, skips it and
// prescales it.
func (b *browser) tag(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	ids, _ := w.server("a", "host-1")
	other, _ := w.server("b", "host-1")
	p := b.open(t, at)
	p.visit("/tags")
	p.says("There is no tag yet.")
	p.click(button("New tag"))
	p.fill("#new-name", "Order")
	p.click(button("Create"))
	p.says(`tag: "Order" begins with "O"`)
	p.fill("#new-name", "order")
	p.fill("#new-start", "1000")
	p.click(button("Create"))
	p.says("The tag was created.")
	for _, room := range []marchv1.IDServiceClient{ids, other} {
		if _, err := room.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: "order", Count: 10}); err != nil {
			t.Fatal(err)
		}
	}
	p.until("marks of both rooms are drawn", `document.querySelectorAll(".dots circle").length === 2`)

	p.fill("#s-limit", "5")
	p.click(button("Save"))
	p.says("limit: 5; allowed: above start (1000)")
	p.until("it is said at the field", `document.querySelector("#s-limit[aria-invalid]") && document.querySelector("#s-limit-hint .wrong") && document.querySelector("#s-limit").value === "5"`)
	p.fill("#s-limit", "2,000,000")
	p.fill("#s-reserve", "20m")
	p.click(button("Save"))
	p.says("The settings were saved")
	tag, err := w.Admin.Tag(t.Context(), "order")
	if s := tag.TagSettings; err != nil || s.Limit != 2_000_000 || s.Reserve != "20m0s" || s.MinStep != 1000 {
		t.Errorf("settings %+v, %v", s, err)
	}

	p.fill("#s-limit", "1005")
	p.click(button("Save"))
	p.says("Lower the limit to 1005?")
	p.says("these rooms would stop issuing at once: a (its next ID is ")
	if tag, err = w.Admin.Tag(t.Context(), "order"); err != nil || tag.Limit != 2_000_000 {
		t.Errorf("before it is confirmed: %+v, %v", tag.TagSettings, err)
	}
	p.click(button("Lower the limit"))
	p.says("The settings were saved")
	tag, err = w.Admin.Tag(t.Context(), "order")
	if s := tag.TagSettings; err != nil || s.Limit != 1005 || s.Reserve != "20m0s" {
		t.Errorf("once it is confirmed: %+v, %v", tag.TagSettings, err)
	}
	p.fill("#s-limit", "2,000,000")
	p.click(button("Save"))
	p.until("the limit is as it was", `document.querySelector("#s-limit").value === "2000000"`)

	p.fill("#skip-to", "3000000")
	p.click(button("Skip…"))
	p.says("Skip to 3,000,000?")
	p.click(button("Skip to 3,000,000"))
	p.says("to: 3000000; allowed: below the tag's limit, 2000000")
	p.fill("#skip-to", "500000")
	p.click(button("Skip…"))
	p.says("The IDs in between are never issued.")
	p.click(button("Skip to 500,000"))
	p.says("Done: rooms lease only IDs from that number on.")
	testcluster.Await(t, "a issues from there", func() bool {
		r, err := ids.Next(t.Context(), &marchv1.NextRequest{Tag: "order"})
		return err == nil && r.GetId() >= 500_000
	})

	p.fill("#pre-step", "50000")
	p.fill("#pre-duration", "soon")
	p.click(button("Prescale…"))
	p.says(`duration: "soon"; allowed: a duration such as`)
	p.fill("#pre-duration", "30m")
	p.click(button("Prescale…"))
	p.says("Prescale to 50,000 for 30m?")
	p.click(css(".confirm button"))
	p.says("Prescaled to 50,000")
	p.until("an instance holds as many", `[...document.querySelectorAll('td[data-l=held]')].some((e) => +e.innerText.replaceAll(",", "") >= 50000)`)

	p.visit("/audit?action=update&object=tags%2Forder")
	p.until("five changes are there", `document.querySelectorAll("tbody tr").length === 5`)
	p.click(css("details summary"))
	p.says(`"prescale": "50000"`)
	p.click(button("tags/order"))
	p.says("Prescaled to 50,000")
}

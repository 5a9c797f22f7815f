package web_test

import (
	_ "embed"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// The page searches, sorts and pages tags.
func (b *browser) tags(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	const many, all, part, busy = 1_000, "1,000", "0099", "shard-00777"
	for i := range many {
		w.tag(allocator.Tag(fmt.Sprintf("shard-%05d", i)))
	}
	ids := w.server("a", "host-1")
	w.load(ids, busy, 1000)
	p := b.open(t, at)
	p.visit("/tags")
	p.says(all + " tags")
	p.until("the first page has the first names",
		`document.querySelector("tbody th").innerText === "shard-00000" && document.querySelectorAll("tbody tr").length === 50`)
	p.click(button("Next"))
	p.until("the second page",
		`document.querySelector("tbody th").innerText === "shard-00050" && location.search.includes("page=2")`)
	p.click(button("Peak IDs/s"))
	p.until("the busiest is first",
		`document.querySelector("tbody th").innerText === "`+busy+
			`" && document.querySelector("th[aria-sort=descending]").innerText === "Peak IDs/s"`)
	p.fill("#search", part)
	p.keys(kb.Enter)
	p.says("11 of " + all + " tags contain “" + part + "”") // shard-00099 and shard-00990 to 00999
	p.do(chromedp.Reload())
	p.says("11 of " + all + " tags contain “" + part + "”")
	p.click(button("All tags"))
	p.click(button("busiest first"))
	p.until("the busiest is first again",
		`document.querySelector("tbody th").innerText === "`+busy+
			`" && document.querySelector(".choices [aria-current]").innerText === "busiest first"`)
	p.click(button("first to run out"))
	p.until("the tag in use runs out first",
		`document.querySelector("tbody th").innerText === "`+busy+
			`" && document.querySelector("th[aria-sort=ascending]").innerText === "Time to the limit"`)
	p.visit("/tags?search=" + part)
	p.click(button(fmt.Sprintf("shard-%05d", many-5)))
	p.says("No room has leased IDs of this tag yet.")
}

// The test creates a tag, changes its settings with and without mistakes, skips it and
// prescales it.
func (b *browser) tag(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	ids := w.server("a", "host-1")
	other := w.server("b", "host-1")
	p := b.open(t, at)
	p.visit("/tags")
	p.says("There is no tag yet.")
	p.click(button("New tag"))
	p.fill("#new-name", "Order")
	p.click(button("Create"))
	p.says(`Name: "Order" begins with "O"`)
	p.fill("#new-name", "order")
	p.fill("#new-start", "1000")
	p.click(button("Create"))
	p.says("The tag was created.")
	for _, room := range []marchv1.IDServiceClient{ids, other} {
		must(room.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: "order", Count: 10}))(t)
	}
	p.until("marks of both rooms are drawn", `document.querySelectorAll(".dots circle").length === 2`)

	p.fill("#s-limit", "5")
	p.click(button("Save settings…"))
	p.says("Limit: 5; allowed: above start (1000)")
	p.until("it is said at the field",
		`document.querySelector("#s-limit[aria-invalid]") && document.querySelector("#s-limit-hint .wrong") && document.querySelector("#s-limit").value === "5"`)
	p.fill("#s-limit", "2,000,000")
	p.fill("#s-reserve", "20m")
	p.click(button("Save settings…"))
	p.says("Limit 9,223,372,036,854,775,807 → 2,000,000 Reserve 10m → 20m")
	p.says("the tag has 1")
	p.says("the instances that hold the tag (2) aim for")
	tag, err := w.Admin.Tag(t.Context(), "order")
	if err != nil || tag.Limit == 2_000_000 {
		t.Errorf("the preview has changed the tag: %+v, %v", tag.TagSettings, err)
	}
	// which the browser gives it a moment later
	p.until("the question has the focus", `document.activeElement.id === "sure"`)
	p.click(button("Save these settings"))
	p.says("The settings were saved")
	tag, err = w.Admin.Tag(t.Context(), "order")
	if s := tag.TagSettings; err != nil || s.Limit != 2_000_000 || s.Reserve != "20m0s" || s.MinStep != 1000 {
		t.Errorf("settings %+v, %v", s, err)
	}
	p.click(button("Save settings…"))
	p.says("Nothing was changed: these are the settings that the tag has")

	p.fill("#s-limit", "1005")
	p.click(button("Save settings…"))
	p.says("Stop a, b with these settings?")
	p.says("These rooms stop issuing at once, because they have leased IDs from the limit on: a (its next ID is ")
	if tag, err = w.Admin.Tag(t.Context(), "order"); err != nil || tag.Limit != 2_000_000 {
		t.Errorf("before it is confirmed: %+v, %v", tag.TagSettings, err)
	}
	// Meanwhile the tag is changed elsewhere: the preview is made anew, and must be confirmed again.
	if _, err := w.Admin.UpdateTag(t.Context(), "order", func(s *record.TagSettings) error {
		s.MaxJump = 5_000_000
		return nil
	}, "bob"); err != nil {
		t.Fatal(err)
	}
	p.click(button("Save, and stop 2 rooms"))
	p.says("Max jump 5,000,000 → 1,000,000,000,000,000")
	p.fill("#s-max_jump", "5000000")
	p.click(button("Save settings…"))
	p.until("the other change stays",
		`!/Max jump\s+5,000,000/.test(document.querySelector("main").innerText) && document.querySelector("#sure")`)
	p.click(button("Save, and stop 2 rooms"))
	p.says("The settings were saved")
	tag, err = w.Admin.Tag(t.Context(), "order")
	if s := tag.TagSettings; err != nil || s.Limit != 1005 || s.Reserve != "20m0s" || s.MaxJump != 5_000_000 {
		t.Errorf("once it is confirmed: %+v, %v", tag.TagSettings, err)
	}
	p.fill("#s-limit", "2,000,000")
	p.click(button("Save settings…"))
	p.click(button("Save these settings"))
	p.until("the limit is as it was",
		`!document.querySelector("#sure") && document.querySelector("#s-limit").value === "2,000,000"`)
	p.says("The settings were saved")

	p.fill("#skip-to", "3000000")
	p.click(button("Skip…"))
	p.says("Skip to 3,000,000?")
	p.click(button("Skip to 3,000,000"))
	p.says("To: 3,000,000; allowed: below the tag's limit, 2,000,000")
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
	p.says(`Duration: "soon"; allowed: a duration such as`)
	p.fill("#pre-duration", "30m")
	p.click(button("Prescale…"))
	p.says("Prescale to 50,000 for 30m?")
	p.click(css(".confirm button"))
	p.says("Prescale 50,000")
	p.until("an instance holds as many",
		`[...document.querySelectorAll('td[data-l=Held]')].some((e) => +e.innerText.replaceAll(",", "") >= 50000)`)

	p.until("its latest changes are there",
		`document.querySelector("#changes") && document.querySelectorAll(".audit tbody tr").length === 5`)
	p.visit("/audit?action=update&object=tags%2Forder")
	p.until("six changes are there", `document.querySelectorAll("tbody tr").length === 6`)
	p.says("prescale nothing → 50,000")
	p.says("limit 1,005 → 2,000,000")
	p.click(button("tags/order"))
	p.says("Prescale 50,000")
}

// Keys alone skip IDs of a tag: from the overview to the question and its answer.
func (b *browser) skipByKeys(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	ids := w.server("a", "host-1")
	p := b.open(t, at)
	p.visit("/")
	p.tabTo("Tags", `e.textContent === "Tags"`)
	p.keys(kb.Enter)
	p.until("the tag is listed", `document.querySelector("#tags-order")`)
	p.tabTo("the tag", `e.matches("#tags-order a")`)
	p.keys(kb.Enter)
	p.until("its page is there", `document.querySelector("#skip-to")`)
	p.tabTo("the number", `e.id === "skip-to"`)
	p.keys("500,000")
	p.tabTo("Skip…", `e.innerText === "Skip…"`)
	p.keys(kb.Enter)
	p.says("Skip to 500,000?")
	p.until("the question has the focus", `document.activeElement.id === "sure"`)
	p.tabTo("Skip to 500,000", `e.innerText === "Skip to 500,000"`)
	p.keys(kb.Enter)
	p.says("Done: rooms lease only IDs from that number on.")
	testcluster.Await(t, "a issues from there", func() bool {
		r, err := ids.Next(t.Context(), &marchv1.NextRequest{Tag: "order"})
		return err == nil && r.GetId() >= 500_000
	})
}

// Numbers are read with the separators that the page writes, and copied without. A search
// and a decode of a tag that does not exist say so.
func (b *browser) small(t *testing.T) {
	w := newWorld(t, 1000, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	p := b.open(t, at)
	p.visit("/tags/order")
	p.fill("#skip-to", "1,0,00,,000")
	p.click(button("Skip…"))
	p.says("Skip to 1,000,000?")
	// which the browser gives it a moment later
	p.until("the question has the focus", `document.activeElement.id === "sure"`)
	p.click(button("Skip to 1,000,000"))
	p.says("Done: rooms lease only IDs from that number on.")
	p.until("the notice is for once", `location.search === ""`)
	copied := eval[string](p, `(() => {
		getSelection().selectAllChildren(document.querySelector(".facts"));
		const e = new ClipboardEvent("copy", {clipboardData: new DataTransfer(), bubbles: true, cancelable: true});
		document.querySelector(".facts").dispatchEvent(e);
		return e.clipboardData.getData("text/plain") })()`)
	if !strings.Contains(copied, "9223372036854775807") {
		t.Errorf("%q was copied, want the number without separators", copied)
	}
	local := eval[string](p,
		`(() => { const e = document.querySelector("time"); e.dispatchEvent(new MouseEvent("mouseover", {bubbles: true})); return e.dateTime + " " + e.title })()`)
	if !strings.Contains(local, "Z ") || !strings.HasSuffix(local, "(local time)") {
		t.Errorf("a time is %q", local)
	}
	p.visit("/tags/order")
	p.fill("#s-max_skew", "x")
	p.click(button("Save settings…"))
	p.says(`Max skew: "x"; allowed: a whole number`)
	p.until("the wrong field is seen and has the focus",
		`((e) => e.id === "s-max_skew" && e.getBoundingClientRect().bottom < innerHeight)(document.activeElement)`)
	p.visit("/tags?search=ORD")
	p.says("1 of 1 tag contain")
	p.visit("/audit?actor=ANN&object=TAGS/")
	p.says("tags/order")
	p.visit("/decode?tag=none&id=1,000")
	p.until("the error is at the tag",
		`document.querySelector("#tag").parentElement.innerText.includes("Tag: there is none of this name")`)
	p.visit("/migrations?boundary=1,000&room=a&lower=0&upper=4%2C00&room=b&lower=500&upper=1,000")
	p.says("The plan: 1 move")
	p.visit("/")
	p.says("Room a has a range, and no instance of it is alive.")
	p.until("the title has the number of problems",
		`document.title.startsWith("(2) Overview") && document.querySelector("link[rel=icon]").href.includes("icon-bad")`)
	const two = `document.title.startsWith("(2) ") && document.querySelector("link[rel=icon]").href.includes("icon-bad") && document.querySelector("#problem-count").dataset.problems === "2"`
	others := []*tab{b.open(t, at), b.open(t, at)}
	for i, path := range []string{"/tags", "/decode"} { // with a stream, and without
		others[i].visit(path)
		others[i].until("each page has the number", two)
	}
	for _, room := range []allocator.Room{"a", "b"} {
		w.server(room, "host-1")
	}
	for _, p := range others {
		p.until("no page has a number",
			`document.title.match(/^[A-Z]/) && document.querySelector("link[rel=icon]").href.includes("icon.svg") && !document.querySelector("#problem-count").dataset.problems`)
	}
	p.says("No problem is known")
	p.until("the title has no number",
		`document.title.startsWith("Overview") && document.querySelector("link[rel=icon]").href.includes("icon.svg")`)
}

// TestColours: rooms have different colours, and patterns only where there are more rooms than colours. A room keeps
// its own on every page, and whichever rooms a plan adds.
func TestColours(t *testing.T) {
	w := newWorld(t, 1000, "a", "b")
	at, _ := w.console("")
	colour := func(rooms ...string) (of map[string]string) {
		t.Helper()
		form := url.Values{"boundary": {"1000"}}
		for i, room := range rooms {
			form.Add("room", room)
			form.Add("lower", strconv.Itoa(50*i))
			form.Add("upper", strconv.Itoa(50*i+50))
		}
		_, page := get(t, at+"/migrations?"+form.Encode())
		of = make(map[string]string)
		for _, m := range regexp.MustCompile(
			`<svg class="stretch (c\d+)"[^>]* data-room="([^"]*)"><title>[^<]*</title><rect[^>]*/>(<rect[^>]*/>)?`).FindAllStringSubmatch(page, -1) {
			of[m[2]] = m[1] + m[3]
		}
		return of
	}
	rooms := []string{"a", "b"}
	before := colour(rooms...)
	for i := range 14 {
		rooms = append(rooms, "eu-"+strconv.Itoa(i))
		now := colour(rooms...)
		if len(now) != len(rooms) {
			t.Fatalf("%d of %d rooms are drawn", len(now), len(rooms))
		}
		seen := make(map[string]string)
		for room, c := range now {
			if was, had := before[room]; had && was != c {
				t.Errorf("with room %s, room %s turns from %s to %s", rooms[len(rooms)-1], room, was, c)
			}
			if seen[c] != "" {
				t.Errorf("rooms %s and %s look the same", room, seen[c])
			}
			seen[c] = room
			if len(now) <= 12 && strings.Contains(c, "<rect") {
				t.Errorf("of %d rooms, room %s has a pattern: %s", len(now), room, c)
			}
		}
		before = now
	}
	_, page := get(t, at+"/")
	for k, room := range rooms[:2] {
		want := `class="stretch c` + strconv.Itoa(k) + `"[^>]* data-room="` + room + `"`
		if !regexp.MustCompile(want).MatchString(page) || !strings.HasPrefix(before[room], "c"+strconv.Itoa(k)) {
			t.Errorf("room %s is %s in the planner, and on the overview not of colour %d", room, before[room], k)
		}
	}
}

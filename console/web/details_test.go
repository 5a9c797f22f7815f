package web_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// brokenNumbers lists the groups of digits that stand on two lines.
const brokenNumbers = `(() => {
	const broken = [], nodes = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
	for (let n; (n = nodes.nextNode());) {
		if (!n.parentElement.getClientRects().length) continue;
		for (const m of n.data.matchAll(/\d{2,}/g)) {
			const range = document.createRange();
			range.setStart(n, m.index);
			range.setEnd(n, m.index + m[0].length);
			if (range.getClientRects().length > 1) broken.push(n.data.trim());
		}
	}
	return broken })()`

// A value follows the knob while it is dragged, also of a boundary of 10^12. The number of rooms to
// look at is a link, and so is a way to a room's changes. A table sorts on a phone, where no number
// breaks inside a group.
func (b *browser) details(t *testing.T) {
	w := newWorld(t, 1_000_000_000_000, "a", "b")
	at, _ := w.console("")
	w.tag("order", "invoice")
	p := b.open(t, at)
	p.visit("/migrations")
	x, y := p.place(css(".handle[data-below=a][data-above=b] .knob"))
	bar := eval[[]float64](p,
		`(() => { const r = document.querySelector(".handle[data-below=a]").parentElement.getBoundingClientRect(); return [r.x, r.width] })()`)
	held := []chromedp.MouseOption{chromedp.ButtonType(input.MouseButtonLeft), chromedp.ClickCount(1)}
	p.do(chromedp.MouseEvent("mousePressed", x, y, held...))
	for _, step := range []struct {
		share float64
		value string
	}{{0.25, "250,000,000,000"}, {0.75, "750,000,000,000"}} {
		p.do(chromedp.MouseEvent("mouseMoved", bar[0]+step.share*bar[1], y, held...))
		p.until("the label has the value at the knob",
			`document.querySelector(".handle[data-below=a] .at").textContent === "`+step.value+`"`)
		p.until("the fields have it, too", value("upper", "a")+` === "`+step.value+`"`)
	}
	if search := eval[string](p, "location.search"); search != "" {
		t.Errorf("a plan is asked for while the knob is held: %s", search)
	}
	p.do(chromedp.MouseEvent("mouseReleased", bar[0]+.75*bar[1], y, held...))
	p.says("The plan: 2 moves")

	p.visit("/")
	p.click(button("2 to look at"))
	p.until("it leads to the problems",
		`location.hash === "#problems" && document.querySelector("#problems").getBoundingClientRect().top < innerHeight`)
	p.click(button("changes"))
	p.until("the changes of the room's instances",
		`location.pathname === "/audit" && new URLSearchParams(location.search).get("object") === "rooms/a/"`)

	awaitTags(t, at)
	p.size(360, 800)
	p.visit("/tags")
	p.until("by name", `document.querySelector("tbody th").innerText === "invoice"`)
	p.click(`[...document.querySelectorAll("thead a")].find((a) => a.innerText === "Tag")`)
	p.until("the other way round",
		`document.querySelector("tbody th").innerText === "order" && document.querySelector("th[aria-sort=descending]").innerText.startsWith("Tag")`)
	for _, path := range []string{"/tags", "/tags/order", "/tags/order?do=skip&to=5000000000000000000&room=a",
		"/audit?object=tags/", "/migrations", "/capacity", "/decode?tag=order&id=5000000000000000001"} {
		p.visit(path)
		if broken := await[[]string](p, "the page's numbers", brokenNumbers); len(broken) > 0 {
			t.Errorf("%s at 360 px: numbers break inside a group of digits: %q", path, broken)
		}
	}
}

// TestKinds: the creation of a tag of kind time shows its own settings, and no settings of a
// counter, which are stored as zeros. Lists call a counter so, as the form and the command do.
func TestKinds(t *testing.T) {
	w := newWorld(t, 100, "a")
	at, _ := w.console("")
	for _, form := range []string{"name=event&kind=time&preset=cosid", "name=order", "name=bill&strict_retract=on"} {
		if answer, page := post(t, at+"/tags", form); answer.StatusCode != http.StatusSeeOther {
			t.Fatalf("%s: %s\n%s", form, answer.Status, page)
		}
	}
	_, event := get(t, at+"/audit?exact=on&object=tags/event")
	if !strings.Contains(event, "time.worker_bits") || strings.Contains(event, "min_step") ||
		strings.Contains(event, "max_jump") {
		t.Errorf("the creation of a tag of kind time:\n%s", event)
	}
	if _, order := get(t, at+"/audit?exact=on&object=tags/order"); !strings.Contains(order, "min_step") {
		t.Errorf("the creation of a counter:\n%s", order)
	}
	_, list := get(t, at+"/tags")
	for tag, want := range map[string]string{"event": "time", "order": "counter",
		"bill": `counter <span class="state next">strict</span>`} {
		_, row, _ := strings.Cut(list, `<tr id="tags-`+tag+`">`)
		if row, _, _ = strings.Cut(row, "</tr>"); !strings.Contains(row, `<td data-l="Kind">`+want+"</td>") {
			t.Errorf("the list does not say that %s is %s:\n%s", tag, want, row)
		}
	}
	if _, page := get(t, at+"/tags/bill"); !strings.Contains(page,
		`<dt>Strict retract</dt><dd>true</dd>`) {
		t.Errorf("the page of a strict tag:\n%s", page)
	}
}

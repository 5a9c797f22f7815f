package web_test

import (
	_ "embed"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// lastSeen holds when the page of instances has a silent one.
const lastSeen = `document.body.innerText.match(/\bover \d+ (s|min) ago/)`

// drag drags an edge in the planner to a share of the boundary with the mouse.
func (p *tab) drag(handle string, share float64) {
	p.Helper()
	x, y := p.place(css(handle + " .knob"))
	bar := eval[[]float64](p, fmt.Sprintf(
		`(() => { const r = %s.parentElement.getBoundingClientRect(); return [r.x, r.width] })()`, css(handle)))
	p.do(chromedp.DragAndDropXY(x, y, bar[0]+share*bar[1], y, 8))
}

func value(name, room string) string {
	return fmt.Sprintf(`document.querySelector('#planform input[name=%s][data-room=%q]').value`, name, room)
}

// A whole migration under load: drag, see the plan, apply, watch, done.
func (b *browser) migration(t *testing.T) {
	w := newWorld(t, 1000, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	for _, room := range []allocator.Room{"a", "b"} {
		for _, name := range []allocator.Instance{"host-1", "host-2"} {
			ids := w.server(room, name)
			w.load(ids, "order", 100)
		}
	}
	p := b.open(t, at)
	p.visit("/migrations")
	p.drag(`.handle[data-below=a][data-above=b]`, 0.25)
	p.until("the fields follow the edge", value("upper", "a")+` === "250" && `+value("lower", "b")+` === "250"`)
	p.says("The plan: 2 moves")
	p.says("Room a shrinks to what old and new have in common")
	p.says("2 instances must report: a/host-1, a/host-2")
	p.until("the address has the plan", `location.search.includes("upper=250")`)
	p.says("IDs in all, at most.") // the costs come later, and move the button
	p.click(css("#apply"))
	p.says("Apply this plan?")
	p.says("2 moves from layout 1 (boundary 1,000) to layout 3 (boundary 1,000). 2 instances must report.")
	p.click(button("Apply: 2 moves"))
	p.until("the migration's page", `location.pathname.startsWith("/migrations/0")`)
	p.says("Done: all moves were made and reported.")
	p.says("Moves made 2 of 2")
	record, err := w.Admin.Ledger.Refresh(t.Context())
	if want := (allocator.Range{Lower: 250, Upper: 1000}); err != nil || record.Layout.Ranges["b"] != want ||
		record.Layout.Version != 3 {
		t.Errorf("layout %+v, %v, want version 3 with b %v", record.Layout, err, want)
	}
	entries, _, err := w.Admin.Audits(t.Context(), "", 100)
	started := ""
	for _, e := range entries {
		if e.Action == "start migration" {
			started = e.Actor
		}
	}
	if err != nil || started != "web from 127.0.0.1" {
		t.Errorf("the actor that started it is %q, %v", started, err)
	}
	p.visit("/")
	p.says("layout 3")
	p.until("rates are drawn",
		`document.querySelector(".spark polyline")?.getAttribute("points").split(" ").length >= 2`)
}

// The page shows the errors of an invalid plan next to its fields, and shows the plan once
// it is valid. The test adds and drains rooms, and scales a boundary.
func (b *browser) planner(t *testing.T) {
	w := newWorld(t, 900, "a", "b", "c")
	at, _ := w.console("")
	p := b.open(t, at)
	p.visit("/migrations")
	p.fill(`input[name=upper][data-room=a]`, "450")
	p.says("Rooms a [0, 450) and b [300, 600) overlap in [300, 450)")
	p.until("both rows are marked",
		`document.querySelector("#row-0-why") && document.querySelector("#row-1-why") && !document.querySelector("#row-2-why")`)
	p.until("there is nothing to apply", `!document.querySelector("#apply")`)
	p.fill(`input[name=lower][data-room=b]`, "x")
	p.says(`Lower: "x"; allowed: a whole number, 0 or more`)
	p.until("that field alone is wrong",
		`document.querySelector("#row-1 input[name=lower][aria-invalid=true]") && !document.querySelector("#row-1 input[name=upper][aria-invalid]")`)
	p.fill(`input[name=lower][data-room=b]`, "450")
	p.says("The plan: 2 moves")
	p.until("it can be applied", css("#apply"))

	// A late answer does not overwrite the fields that were typed meanwhile.
	eval[bool](p, `(() => {
		const fetch = window.fetch;
		window.fetch = async (...args) => {
			const answer = await fetch(...args);
			await new Promise((go) => window.letGo = go);
			window.fetch = fetch;
			return answer;
		};
		return true })()`)
	p.fill(`input[name=lower][data-room=b]`, "400")
	p.until("the answer is there, and held", "window.letGo")
	eval[bool](p, `(() => {
		const field = document.querySelector("#planform input[name=lower][data-room=b]");
		document.activeElement.blur();
		field.value = "420";
		field.dispatchEvent(new Event("input", {bubbles: true}));
		window.letGo();
		return true })()`)
	p.says("Rooms a [0, 450) and b [420, 600) overlap in [420, 450)")
	p.until("what was typed stays", value("lower", "b")+` === "420"`)
	p.fill(`input[name=lower][data-room=b]`, "450")
	p.says("The plan: 2 moves")
	p.click(css(`input[name=drain][value=c]`))
	p.until("c is drained in the plan", `/room c goes/i.test(document.querySelector(".result")?.innerText)`)
	p.fill(`#planform tbody tr:last-child input[name=room]`, "new-room")
	p.until("the new room asks for its range", `document.querySelector('input[name=room][value="new-room"]')`)
	p.fill(`input[name=lower][data-room=new-room]`, "600")
	p.fill(`input[name=upper][data-room=new-room]`, "900")
	p.until("the plan has the new room", `/room new-room appears/i.test(document.querySelector(".result")?.innerText)`)

	p.visit("/migrations")
	p.fill("#boundary", "1800")
	p.click(button("Scale"))
	p.until("ranges are scaled", value("upper", "c")+` === "1,800" && `+value("upper", "a")+` === "600"`)
	p.says("The boundary changes from 900 to 1800")
	p.says("1. Switch")
	p.fill("#boundary", "1000")
	p.click(button("Scale"))
	p.says("does not scale")
	p.do(chromedp.Reload())
	p.says("does not scale") // the address holds the content of the page

	// A plan that was made for an earlier layout is not applied.
	q := url.Values{"boundary": {"900"}, "room": {"a", "b", "c"}, "lower": {"0", "200", "600"},
		"upper": {"200", "600", "900"}, "do": {"apply"}}
	p.visit("/migrations?" + q.Encode())
	p.until("its cost is counted", button("Apply: 2 moves")) // until then, the page plans again
	record := must(w.Admin.Ledger.Refresh(t.Context()))(t)
	other := record.Layout
	other.Ranges = map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 100}, "b": {Lower: 300, Upper: 600},
		"c": {Lower: 600, Upper: 900}}
	must(w.Admin.ChangeLayout(t.Context(), record, other, "bob"))(t)
	p.click(button("Apply: 2 moves"))
	p.says("The plan was made for layout version 1, but bob made version 2 at ")
}

// Pause, resume, going on without an instance, abort.
func (b *browser) steering(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.server("a", "host-1")
	// This instance is registered and never reports.
	silent := must(w.Ledger().Join(t.Context(), ledger.Registration{Room: "a", Name: "host-2", Address: "127.0.0.1:1",
		Build: "v1.0.0", Hold: 10 * time.Minute}))(t)
	_ = silent
	p := b.open(t, at)
	p.visit("/instances")
	p.until("the silent instance was last seen long ago", lastSeen)
	p.visit("/migrations?boundary=100&room=a&lower=0&upper=25&room=b&lower=25&upper=100&do=apply")
	p.says("silent now: a/host-2")
	p.click(button("Apply: 2 moves"))
	p.says("Waiting until a/host-2 reports.")
	p.until("host-1 has reported",
		`/a\/host-1 reported/.test(document.querySelector("#move-1").innerText.replace(/\s+/g, " "))`)
	p.says("1 of 2 instances reported it")
	p.click(css("#pause"))
	p.says("Paused before the next move.")
	p.click(css("#resume"))
	p.says("Waiting until a/host-2 reports.")
	p.click(button("Go on without a/host-2"))
	p.says("it may issue IDs that it holds of residues that its room gave up")
	p.click(button("Go on without"))
	p.says("Done: all moves were made and reported.")
	p.says("Gone on without a/host-2.")

	p.visit("/migrations?boundary=100&room=a&lower=0&upper=10&room=b&lower=10&upper=100&do=apply")
	p.click(button("Apply: 2 moves"))
	p.says("Waiting until a/host-2 reports.")
	p.click(css("#abort"))
	p.says("Abort this migration?")
	p.click(button("Abort and go back"))
	p.says("Aborted: the layout is as it was.")
	record, err := w.Admin.Ledger.Refresh(t.Context())
	if want := (allocator.Range{Lower: 0, Upper: 25}); err != nil || record.Layout.Ranges["a"] != want {
		t.Errorf("after the abort a has %v, %v, want %v", record.Layout.Ranges["a"], err, want)
	}
	p.visit("/migrations")
	p.until("the history has both", `document.querySelectorAll("[id^=m-]").length === 2`)

	p.visit("/instances?room=a")
	p.until("the silent instance was last seen long ago", lastSeen)
	p.click(css("#i-a-host-2 .act a[href*=forget]"))
	p.says("Forget a/host-2?")
	p.click(button("Forget it"))
	p.says("The instance was forgotten.")
	p.until("it is gone", `!document.querySelector("#i-a-host-2") && document.querySelector("#i-a-host-1")`)
}

// fillPlanner checks that a reload keeps a plan that is being typed.
func (p *tab) fillPlanner(b *browser, at string) {
	p.Helper()
	q := b.open(p.TB, at)
	q.visit("/migrations")
	q.fill(`input[name=upper][data-room=a]`, "40")
	q.says("The plan: 1 move")
	q.until("all that was typed is in the address", `new URLSearchParams(location.search).get("upper") === "40"`)
	q.do(chromedp.Reload())
	q.says("The plan: 1 move")
	q.until("the field is as it was", value("upper", "a")+` === "40"`)
}

// Keys alone reach the planner, move an edge, apply and pause.
func (b *browser) keyboard(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	if _, err := w.Ledger().Join(t.Context(), ledger.Registration{Room: "a", Name: "gone", Address: "127.0.0.1:1",
		Hold: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	p := b.open(t, at)
	p.visit("/")
	p.keys(kb.Tab)
	if got := eval[string](p, `document.activeElement.textContent`); got != "Skip to content" {
		t.Errorf("the first stop is %q", got)
	}
	p.tabTo("Migrations", `e.textContent === "Migrations"`)
	p.keys(kb.Enter)
	p.says("Plan a migration")
	p.tabTo("the edge between a and b", `e.matches(".handle[data-below=a][data-above=b]")`)
	for range 5 {
		p.keys(kb.ArrowLeft)
	}
	p.until("the edge moved by five", value("upper", "a")+` === "45"`)
	p.says("The plan: 2 moves")
	p.until("the edge keeps the focus", `document.activeElement.matches(".handle[data-below=a]")`)
	p.tabTo("Apply", `e.id === "apply"`)
	p.keys(kb.Enter)
	p.says("Apply this plan?")
	p.until("the question has the focus, and no button", `document.activeElement.id === "plan"`)
	p.tabTo("Apply", `e.id === "sure"`)
	p.keys(kb.Enter)
	p.says("Waiting until a/gone reports.")
	p.tabTo("Pause", `e.id === "pause"`)
	p.keys(kb.Enter)
	p.says("Paused before the next move.")
	p.says("The migration stops before its next move.")
	p.tabTo("Resume", `e.id === "resume"`)
	p.keys(kb.Enter)
	p.says("The migration goes on.")
	q := b.open(t, at)
	q.visit("/migrations")
	q.says("A migration is under way, and there is one at a time")
	typed := b.open(t, at)
	typed.visit("/migrations?boundary=100&room=a&lower=0&upper=30&room=b&lower=30&upper=100&do=apply")
	typed.says("What you typed is kept. It can be planned again when the migration has ended.")
	if eval[bool](q, `document.querySelector("#planform") !== null`) {
		t.Error("the planner offers a plan during a migration")
	}
	p.tabTo("Pause", `e.id === "pause"`)
	p.keys(kb.Enter)
	p.says("Paused before the next move.")
	p.tabTo("Abort", `e.id === "abort"`)
	p.keys(kb.Enter)
	p.says("Abort this migration?")
	p.until("no dangerous button has the focus", `document.activeElement.id === "sure"`)
	p.tabTo("Abort and go back", `e.innerText === "Abort and go back"`)
	p.keys(kb.Enter)
	p.says("Aborted: the layout is as it was.")
	typed.says("The migration has ended.")
	typed.click(button("Plan it again"))
	typed.says("Apply this plan?")
	typed.click(button("Change the plan"))
	typed.until("what was typed is planned", value("upper",
		"a")+` === "30" && document.body.innerText.includes("The plan: 2 moves")`)
	p.until("it looks aborted", `document.querySelector(".card.aborted .progress.aborted")`)
	p.until("the notice is over",
		`!document.body.innerText.includes("The migration goes back.") && location.search === ""`)
}

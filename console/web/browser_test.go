package web_test

import (
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/testcluster"
)

// TestBrowser visits the pages in a real browser, as an operator does.
func TestBrowser(whole *testing.T) {
	if testing.Short() {
		whole.Skip("starts a browser")
	}
	b := new(browser)
	for name, test := range map[string]func(*testing.T){
		"migration": b.migration, "planner": b.planner, "steering": b.steering, "two": b.two,
		"restart": b.restart, "keyboard": b.keyboard,
		"tags": b.tags, "tag": b.tag, "timeTag": b.timeTag, "rest": b.rest, "empty": b.empty, "looks": b.looks,
		"costs": b.costs, "history": b.history, "silence": b.silence, "small": b.small, "capacity": b.capacity,
		"palette": b.palette, "audit": b.audit, "skipByKeys": b.skipByKeys, "details": b.details,
		"docs": b.docs, "elsewhere": b.elsewhere,
	} {
		whole.Run(name, func(t *testing.T) {
			path := programs.Find(t, "chromium") // here, so that a report counts what did not run
			if b.ctx == nil {
				b.start(t, whole, path)
			}
			t.Parallel() // they wait for most of their time
			test(t)
		})
	}
}

// Two browsers at two consoles see the same. If both apply a plan, the second is refused.
func (b *browser) two(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at1, _ := w.console("")
	at2, _ := w.console("")
	if _, err := w.Ledger().Join(t.Context(), ledger.Registration{Room: "a", Name: "gone", Address: "127.0.0.1:1",
		Hold: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	plan := "/migrations?boundary=100&room=a&lower=0&upper=25&room=b&lower=25&upper=100&do=apply"
	p, q, over := b.open(t, at1), b.open(t, at2), b.open(t, at2)
	over.visit("/")
	p.visit(plan)
	q.visit(plan)
	q.says("Apply: 2 moves") // its cost is counted: until then the page asks again, and shows the migration
	p.click(button("Apply: 2 moves"))
	p.says("Waiting until a/gone reports.")
	q.says("A migration has begun meanwhile") // without a reload
	q.until("it offers no second one",
		`getComputedStyle(document.querySelector("#planner form[method=post]")).display === "none"`)
	eval[bool](q, `(() => { document.querySelector("#planner form[method=post]").requestSubmit(); return true })()`)
	q.says("What you typed is kept")
	q.until("the second is refused",
		`/layout is version 2: plan again|is under way, and there is one at a time/.test(document.body.innerText)`)
	over.says("Migration under way") // without a reload
	over.says("Waiting until a/gone reports.")
	over.click(button("Migration under way"))
	over.says("Waiting until a/gone reports.")
	over.click(button("Go on without"))
	over.says("Go on without a/gone?") // until then, the old page's button is the one to be found
	over.click(button("Go on without"))
	p.says("Done: all moves were made and reported.")
	over.says("Done: all moves were made and reported.")
	moves := `document.querySelector("#moves").closest("section").innerText`
	if one, other := eval[string](p, moves), eval[string](over, moves); one != other {
		t.Errorf("one shows\n%s\nthe other\n%s", one, other)
	}
}

// linkStates notes each state of a page that says whether it is live.
const linkStates = `window.linkStates = []; new MutationObserver(() => {
	const link = document.getElementById("link");
	if (link && link.className !== window.linkStates.at(-1)) window.linkStates.push(link.className);
}).observe(document, {subtree: true, childList: true, attributes: true})`

// A console is killed while a page is open. The page says so, keeps its content, and goes
// on when a console is back.
func (b *browser) restart(t *testing.T) {
	w := over(testcluster.New(t), 100, "a", "b")
	at, kill := w.console("")
	w.tag("order")
	p := b.open(t, at)
	p.visit("/")
	p.says("layout 1")
	p.fillPlanner(b, at)
	typing := b.open(t, at)
	typing.visit("/migrations")
	// A plan that the console cannot make now is asked for again, and the form stays.
	typing.until("one plan will fail", `(() => { const real = window.fetch; window.fetch = (to, options) => {
		if (!String(to?.url ?? to).includes("room=")) return real(to, options);
		window.fetch = real;
		return Promise.resolve(new Response("<p>not now</p>", {status: 503, headers: {"Content-Type": "text/html"}}));
	}; return true; })()`)
	typing.fill(`input[name=upper][data-room=a]`, "45")
	typing.says("The plan: 1 move")
	kill()
	p.says("No answer from this console.")
	typing.says("No answer from this console.")
	typing.fill(`input[name=upper][data-room=a]`, "40")
	p.says("layout 1")
	w.console(strings.TrimPrefix(at, "http://"))
	p.until("the page is live again", `document.querySelector("#link").className === "live"`)
	typing.says("The plan: 1 move") // of what was typed meanwhile
	typing.until("the field is as it was typed", value("upper", "a")+` === "40"`)
	record := must(w.Admin.Ledger.Refresh(t.Context()))(t)
	next := record.Layout
	next.Ranges = map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 10}}
	must(w.Admin.ChangeLayout(t.Context(), record, next, "bob"))(t)
	p.says("layout 2") // without a reload
	must(w.Admin.Ledger.Halt(t.Context(), "bob", "a backup comes back"))(t)
	p.says("Leasing is halted in all rooms by bob: a backup comes back. Since")

	// etcd stops: the page keeps its content and says why it is old. A page that is opened
	// then loads by itself when etcd is back.
	old := b.open(t, at)
	old.visit("/tags")
	w.Etcd.Stop()
	old.says("this is how it stood at")
	p.says("Etcd does not answer this console:")
	p.says("layout 2")
	fresh := b.open(t, at)
	fresh.do(chromedp.Navigate("about:blank"))
	if _, err := chromedp.Call(fresh.ctx, page.AddScriptToEvaluateOnNewDocument,
		page.AddScriptToEvaluateOnNewDocumentParams{Source: linkStates}); err != nil {
		t.Fatal(err)
	}
	fresh.do(chromedp.Navigate(at + "/tags"))
	fresh.says("This page cannot be shown now")
	fresh.until("it tries again", `document.querySelector("#link").className === "trouble"`)
	if states := eval[[]string](fresh, "window.linkStates"); slices.Contains(states, "live") {
		t.Errorf("a page that cannot be shown was called live: %q", states)
	}
	w.Etcd.Start(t)
	fresh.says("1 tag ·")
	p.until("the page is live again", `document.querySelector("#link").className === "live"`)
}

// A console is stopped, and its connections stay open: pages say since when their data is
// old, all the same, and lead nowhere. Before, they stayed green.
func (b *browser) silence(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	console, _ := w.console("")
	relay, at := newRelay(t, console)
	w.tag("order")
	one, other, still := b.open(t, at), b.open(t, at), b.open(t, at)
	one.visit("/tags")
	other.visit("/tags")
	still.visit("/decode?tag=order")
	const lastTick = "window.lastTick"
	for _, p := range []*tab{one, other} {
		eval[bool](p, `(document.addEventListener("tick", (e) => { `+lastTick+
			` = JSON.parse(e.detail.data).as_of }), true)`)
		p.until("a tick has come", lastTick)
	}
	relay.freeze(true)
	for _, p := range []*tab{one, other, still} {
		p.says("No answer from this console.")
		p.until("its buttons are off", `[...document.querySelectorAll("main button")].every((b) => b.disabled)`)
		p.click(button("Instances"))
	}
	for _, p := range []*tab{one, other} {
		want := "No answer from this console. This is how it stood at " + eval[string](p, lastTick) +
			"; the page goes on by itself."
		if said := eval[string](p, `document.querySelector("#link").innerText`); said != want {
			t.Errorf("%q, want %q", said, want)
		}
	}
	relay.freeze(false)
	for _, p := range []*tab{one, other} {
		p.until("it is live again",
			`document.querySelector("#link").className === "live" && [...document.querySelectorAll("main button")].every((b) => !b.disabled)`)
	}
	still.until("it says nothing any more",
		`!document.querySelector("#link").innerText && document.querySelectorAll("main button:disabled").length === 0`)
	if path := eval[string](one, "location.pathname"); path != "/tags" {
		t.Errorf("a click led to %s while the console was away", path)
	}
	one.click(button("Instances"))
	one.says("No instance is registered.")
}

// The page for decoding, and a script in the address of a page.
func (b *browser) rest(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	ids := w.server("b", "host-1")
	r := must(ids.Next(t.Context(), &marchv1.NextRequest{Tag: "order"}))(t)
	p := b.open(t, at)
	p.visit("/decode")
	p.fill("#tag", "order")
	p.fill("#id", fmt.Sprint(r.GetId()))
	p.keys(kb.Enter)
	p.says("Leased by b")
	p.says(fmt.Sprintf("Residue %d", r.GetId()%100))
	p.fill("#id", "-1")
	p.keys(kb.Enter)
	p.says(`ID or text: "-1"; allowed: a whole number, 0 to 9,223,372,036,854,775,807`)
	p.visit("/tags/nothing-here")
	p.says("Tag nothing-here does not exist")

	// Names are shown as text, even if they contain a script.
	p.visit("/audit?actor=" + url.QueryEscape(`"><script>document.title = "owned"</script>`))
	// behind the number of problems
	if title := eval[string](p, "document.title"); !strings.HasSuffix(title, "Audit · March") {
		t.Errorf("the title is %q", title)
	}
}

// An etcd without a cluster, and one room without an instance.
func (b *browser) empty(t *testing.T) {
	w := newWorld(t, 0)
	at, _ := w.console("")
	p := b.open(t, at)
	p.do(chromedp.Navigate(at))
	p.says("march layout init")
	l, err := allocator.EqualLayout(10, []allocator.Room{"a"})
	if err == nil {
		_, err = w.Admin.Init(t.Context(), l, "ann")
	}
	if err != nil {
		t.Fatal(err)
	}
	p.says("issues nothing") // without a reload
	p.visit("/instances")
	p.says("No instance is registered.")
}

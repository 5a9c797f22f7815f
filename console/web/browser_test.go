package web_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// TestBrowser goes through the pages in a real browser, as people do.
func TestBrowser(t *testing.T) {
	b := startBrowser(t)
	for name, test := range map[string]func(*testing.T){
		"migration": b.migration, "planner": b.planner, "steering": b.steering, "two": b.two, "restart": b.restart, "keyboard": b.keyboard,
		"tags": b.tags, "tag": b.tag, "rest": b.rest, "empty": b.empty, "looks": b.looks,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for most of their time
			test(t)
		})
	}
}

// drag moves an edge in the planner to a share of the boundary with the mouse.
func (p *tab) drag(handle string, share float64) {
	p.Helper()
	x, y := p.place(css(handle + " .knob"))
	bar := eval[[]float64](p, fmt.Sprintf(`(() => { const r = %s.parentElement.getBoundingClientRect(); return [r.x, r.width] })()`, css(handle)))
	p.do(chromedp.DragAndDropXY(x, y, bar[0]+share*bar[1], y, 8))
}

func value(name, room string) string {
	return fmt.Sprintf(`document.querySelector('#planform input[name=%s][data-room=%q]').value`, name, room)
}

// The whole path under load: drag, see the plan, apply, watch, done.
func (b *browser) migration(t *testing.T) {
	w := newWorld(t, 1000, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	for _, room := range []allocator.Room{"a", "b"} {
		for _, name := range []allocator.Instance{"host-1", "host-2"} {
			ids, _ := w.server(room, name)
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
	p.click(css("#apply"))
	p.says("Apply this plan?")
	p.says("2 moves from layout 1 (boundary 1,000) to layout 3 (boundary 1,000). 2 instances must report.")
	p.click(button("Apply: 2 moves"))
	p.until("the migration's page", `location.pathname.startsWith("/migrations/0")`)
	p.says("Done: all moves were made and reported.")
	p.says("Moves made 2 of 2")
	record, err := w.admin.Refresh(t.Context())
	if want := (allocator.Range{Lower: 250, Upper: 1000}); err != nil || record.Layout.Ranges["b"] != want || record.Layout.Version != 3 {
		t.Errorf("layout %+v, %v, want version 3 with b %v", record.Layout, err, want)
	}
	entries, err := w.admin.Audits(t.Context(), "", 100)
	started := ""
	for _, e := range entries {
		if e.Action == "start migration" {
			started = e.Actor
		}
	}
	if err != nil || started != "web from 127.0.0.1" {
		t.Errorf("who started it is %q, %v", started, err)
	}
	p.visit("/")
	p.says("layout 3")
	p.until("rates are drawn", `document.querySelector(".spark polyline")?.getAttribute("points").split(" ").length >= 2`)
}

// A plan that breaks constraints is told next to its fields, and comes right at
// once; rooms are added and drained, a boundary scaled.
func (b *browser) planner(t *testing.T) {
	w := newWorld(t, 900, "a", "b", "c")
	at, _ := w.console("")
	p := b.open(t, at)
	p.visit("/migrations")
	p.fill(`input[name=upper][data-room=a]`, "450")
	p.says("rooms a [0, 450) and b [300, 600) overlap in [300, 450)")
	p.until("both rows are marked", `document.querySelector("#row-0.bad") && document.querySelector("#row-1.bad") && !document.querySelector("#row-2.bad")`)
	p.until("there is nothing to apply", `!document.querySelector("#apply")`)
	p.fill(`input[name=lower][data-room=b]`, "x")
	p.says(`lower: "x"; allowed: a whole number, 0 or more`)
	p.fill(`input[name=lower][data-room=b]`, "450")
	p.says("The plan: 2 moves")
	p.until("it can be applied", css("#apply"))

	// An answer that comes late does not take back what was typed meanwhile.
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
	p.says("rooms a [0, 450) and b [420, 600) overlap in [420, 450)")
	p.until("what was typed stays", value("lower", "b")+` === "420"`)
	p.fill(`input[name=lower][data-room=b]`, "450")
	p.says("The plan: 2 moves")
	p.click(css(`input[name=drain][value=c]`))
	p.until("c is drained in the plan", `/room c goes/i.test(document.querySelector(".result")?.innerText)`)
	p.fill(`.newrow input[name=room]`, "new-room")
	p.until("the new room asks for its range", `document.querySelector('input[name=room][value="new-room"]')`)
	p.fill(`input[name=lower][data-room=new-room]`, "600")
	p.fill(`input[name=upper][data-room=new-room]`, "900")
	p.until("the plan has the new room", `/room new-room appears/i.test(document.querySelector(".result")?.innerText)`)

	p.visit("/migrations")
	p.fill("#boundary", "1800")
	p.click(button("Scale"))
	p.until("ranges are scaled", value("upper", "c")+` === "1800" && `+value("upper", "a")+` === "600"`)
	p.says("The boundary changes from 900 to 1800")
	p.says("1. Switch")
	p.fill("#boundary", "1000")
	p.click(button("Scale"))
	p.says("does not scale")
	p.do(chromedp.Reload())
	p.says("does not scale") // what it shows is in its address

	// A plan of a layout that is no longer current is not followed.
	q := url.Values{"boundary": {"900"}, "room": {"a", "b", "c"}, "lower": {"0", "200", "600"}, "upper": {"200", "600", "900"}, "do": {"apply"}}
	p.visit("/migrations?" + q.Encode())
	record, err := w.admin.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := record.Layout
	other.Ranges = map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 100}, "b": {Lower: 300, Upper: 600}, "c": {Lower: 600, Upper: 900}}
	if _, err := w.admin.ChangeLayout(t.Context(), record, other, "bob"); err != nil {
		t.Fatal(err)
	}
	p.click(button("Apply: 2 moves"))
	p.says("the plan was made for layout version 1, but the layout is version 2: plan again")
}

// Pause, resume, going on without an instance, abort.
func (b *browser) steering(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.server("a", "host-1")
	// One that is registered and never reports.
	silent, err := w.ledger().Join(t.Context(), ledger.Registration{Room: "a", Name: "host-2", Address: "127.0.0.1:1", Build: "v1.0.0", Hold: 10 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	_ = silent
	p := b.open(t, at)
	p.visit("/migrations?boundary=100&room=a&lower=0&upper=25&room=b&lower=25&upper=100&do=apply")
	p.says("silent now: a/host-2")
	p.click(button("Apply: 2 moves"))
	p.says("Waiting until a/host-2 reports.")
	p.until("host-1 has reported", `/a\/host-1 reported/.test(document.querySelector("#move-1").innerText.replace(/\s+/g, " "))`)
	p.says("1 of 2 instances reported it")
	p.click(css("#pause"))
	p.says("Paused before the next move.")
	p.click(css("#resume"))
	p.says("Waiting until a/host-2 reports.")
	p.click(button("Go on without a/host-2"))
	p.says("it may go on to issue residues that its room gave up")
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
	record, err := w.admin.Refresh(t.Context())
	if want := (allocator.Range{Lower: 0, Upper: 25}); err != nil || record.Layout.Ranges["a"] != want {
		t.Errorf("after the abort a has %v, %v, want %v", record.Layout.Ranges["a"], err, want)
	}
	p.visit("/migrations")
	p.until("the history has both", `document.querySelectorAll(".history tbody tr").length === 2`)

	p.visit("/instances?room=a")
	p.says("silent since")
	p.click(css("#i-a-host-2 .act a"))
	p.says("Forget a/host-2?")
	p.click(button("Forget it"))
	p.says("The instance was forgotten.")
	p.until("it is gone", `!document.querySelector("#i-a-host-2") && document.querySelector("#i-a-host-1")`)
}

// Two browsers at two consoles see the same, and who comes second is told.
func (b *browser) two(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at1, _ := w.console("")
	at2, _ := w.console("")
	if _, err := w.ledger().Join(t.Context(), ledger.Registration{Room: "a", Name: "gone", Address: "127.0.0.1:1", Hold: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	plan := "/migrations?boundary=100&room=a&lower=0&upper=25&room=b&lower=25&upper=100&do=apply"
	p, q, over := b.open(t, at1), b.open(t, at2), b.open(t, at2)
	over.visit("/")
	p.visit(plan)
	q.visit(plan)
	p.click(button("Apply: 2 moves"))
	p.says("Waiting until a/gone reports.")
	q.click(button("Apply: 2 moves"))
	q.until("the second is refused", `/layout is version 2: plan again|is under way, and there is one at a time/.test(document.body.innerText)`)
	over.says("Migration under way") // nobody reloaded
	over.says("Waiting until a/gone reports.")
	over.click(button("Migration under way"))
	over.says("Waiting until a/gone reports.")
	over.click(button("Go on without"))
	over.click(button("Go on without"))
	p.says("Done: all moves were made and reported.")
	over.says("Done: all moves were made and reported.")
	moves := `document.querySelector("#moves").closest("section").innerText`
	if one, other := eval[string](p, moves), eval[string](over, moves); one != other {
		t.Errorf("one shows\n%s\nthe other\n%s", one, other)
	}
}

// A console that is killed while a page is open: the page says so, keeps what it
// shows, and goes on when there is a console again.
func (b *browser) restart(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, kill := w.console("")
	w.tag("order")
	p := b.open(t, at)
	p.visit("/")
	p.says("layout 1")
	p.fillPlanner(b, at)
	kill()
	p.says("No answer from this console.")
	p.says("layout 1")
	w.console(strings.TrimPrefix(at, "http://"))
	p.until("the page is live again", `document.querySelector("#link").className === "live"`)
	record, err := w.admin.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := record.Layout
	next.Ranges = map[allocator.Room]allocator.Range{"a": {Lower: 0, Upper: 10}}
	if _, err := w.admin.ChangeLayout(t.Context(), record, next, "bob"); err != nil {
		t.Fatal(err)
	}
	p.says("layout 2") // by itself
	if _, err := w.admin.Halt(t.Context(), "bob", "a backup comes back"); err != nil {
		t.Fatal(err)
	}
	p.says("Leasing is halted in all rooms a backup comes back. By bob")

	// etcd goes away: the page keeps what it shows and says why it is old; a page
	// that is opened then comes by itself when etcd is back.
	w.etcd.Stop()
	p.says("this is how it stood at")
	p.says("layout 2")
	fresh := b.open(t, at)
	fresh.do(chromedp.Navigate(at + "/tags"))
	fresh.says("This page cannot be shown now")
	w.etcd.Start(t)
	fresh.says("1 tag ·")
	p.until("the page is live again", `document.querySelector("#link").className === "live"`)
}

// fillPlanner sees that a plan that is being typed is not lost by a reload.
func (p *tab) fillPlanner(b *browser, at string) {
	p.Helper()
	q := b.open(p.TB, at)
	q.visit("/migrations")
	q.fill(`input[name=upper][data-room=a]`, "40")
	q.says("The plan: 1 move")
	q.do(chromedp.Reload())
	q.says("The plan: 1 move")
	q.until("the field is as it was", value("upper", "a")+` === "40"`)
}

// Keys alone: to the planner, move an edge, apply, pause.
func (b *browser) keyboard(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	if _, err := w.ledger().Join(t.Context(), ledger.Registration{Room: "a", Name: "gone", Address: "127.0.0.1:1", Hold: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	p := b.open(t, at)
	p.visit("/")
	// tabTo presses the tab key until what has the focus is wanted.
	tabTo := func(what, condition string) {
		t.Helper()
		for range 60 {
			p.keys(kb.Tab)
			if eval[bool](p, `((e) => !!(`+condition+`))(document.activeElement)`) {
				if !eval[bool](p, `document.activeElement.matches(":focus-visible")`) {
					t.Errorf("%s has the focus, but it is not seen", what)
				}
				return
			}
		}
		t.Fatalf("tab never comes to %s\n%s", what, p.text())
	}
	p.keys(kb.Tab)
	if got := eval[string](p, `document.activeElement.textContent`); got != "Skip to content" {
		t.Errorf("the first stop is %q", got)
	}
	tabTo("Migrations", `e.textContent === "Migrations"`)
	p.keys(kb.Enter)
	p.says("Plan a migration")
	tabTo("the edge between a and b", `e.matches(".handle[data-below=a][data-above=b]")`)
	for range 5 {
		p.keys(kb.ArrowLeft)
	}
	p.until("the edge moved by five", value("upper", "a")+` === "45"`)
	p.says("The plan: 2 moves")
	p.until("the edge keeps the focus", `document.activeElement.matches(".handle[data-below=a]")`)
	tabTo("Apply", `e.id === "apply"`)
	p.keys(kb.Enter)
	p.says("Apply this plan?")
	p.until("the button has the focus", `document.activeElement.innerText.startsWith("Apply: 2 moves")`)
	p.keys(kb.Enter)
	p.says("Waiting until a/gone reports.")
	tabTo("Pause", `e.id === "pause"`)
	p.keys(kb.Enter)
	p.says("Paused before the next move.")
	tabTo("Abort", `e.id === "abort"`)
	p.keys(kb.Enter)
	p.says("Abort this migration?")
	p.until("the button has the focus", `document.activeElement.innerText === "Abort and go back"`)
	p.keys(kb.Enter)
	p.says("Aborted: the layout is as it was.")
}

// 10,000 tags are searched, sorted and paged.
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
			_, err := w.admin.CreateTag(t.Context(), allocator.Tag(fmt.Sprintf("shard-%05d", i)), ledger.DefaultTag(), "ann")
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

// A tag is made, its settings changed with mistakes and without, it is skipped
// and prescaled.
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
	tag, err := w.admin.Tag(t.Context(), "order")
	if s := tag.Settings; err != nil || s.Limit != 2_000_000 || s.Chain.Reserve != 20*time.Minute || s.Chain.MinStep != 1000 {
		t.Errorf("settings %+v, %v", s, err)
	}

	p.fill("#skip-to", "3000000")
	p.click(button("Skip…"))
	p.says("Skip to 3,000,000?")
	p.click(button("Skip to 3,000,000"))
	p.says("to: 3000000; allowed: below the tag's limit, 2000000")
	p.fill("#skip-to", "500000")
	p.click(button("Skip…"))
	p.says("The IDs in between are never issued.")
	p.click(button("Skip to 500,000"))
	p.says("Done: rooms lease only IDs from there on.")
	await(t, "a issues from there", func() bool {
		r, err := ids.Next(t.Context(), &marchv1.NextRequest{Tag: "order"})
		return err == nil && r.GetId() >= 500_000
	})

	p.fill("#pre-step", "50000")
	p.fill("#pre-duration", "soon")
	p.click(button("Prescale…"))
	p.says(`duration: "soon"; allowed: a time with its unit`)
	p.fill("#pre-duration", "30m")
	p.click(button("Prescale…"))
	p.says("Prescale to 50,000 for 30m?")
	p.click(css(".confirm button"))
	p.says("Prescaled to 50,000")
	p.until("an instance holds as many", `[...document.querySelectorAll('td[data-l=held]')].some((e) => +e.innerText.replaceAll(",", "") >= 50000)`)

	p.visit("/audit?action=update&object=tags%2Forder")
	p.until("three changes are there", `document.querySelectorAll("tbody tr").length === 3`)
	p.click(css("details summary"))
	p.says(`"prescale": "50000"`)
	p.click(button("tags/order"))
	p.says("Prescaled to 50,000")
}

// Decode, and what a script of somebody else's may do.
func (b *browser) rest(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	ids, _ := w.server("b", "host-1")
	r, err := ids.Next(t.Context(), &marchv1.NextRequest{Tag: "order"})
	if err != nil {
		t.Fatal(err)
	}
	p := b.open(t, at)
	p.visit("/decode")
	p.fill("#tag", "order")
	p.fill("#id", fmt.Sprint(r.GetId()))
	p.keys(kb.Enter)
	p.says("Issued by b")
	p.says(fmt.Sprintf("Residue %d", r.GetId()%100))
	p.fill("#id", "-1")
	p.keys(kb.Enter)
	p.says(`id: "-1"; allowed: a whole number`)
	p.visit("/tags/nothing-here")
	p.says("tag nothing-here does not exist")

	// Names are text, whatever is in them.
	p.visit("/audit?actor=" + url.QueryEscape(`"><script>document.title = "owned"</script>`))
	if title := eval[string](p, "document.title"); title != "Audit · March" {
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
		_, err = w.admin.Init(t.Context(), l, "ann")
	}
	if err != nil {
		t.Fatal(err)
	}
	p.says("issues nothing") // by itself
	p.visit("/instances")
	p.says("No instance is registered.")
}

//go:embed testdata/axe.min.js
var axe string

// Every page, with long names and many rooms: nothing to scroll sideways from
// narrow to wide, and nothing that axe finds serious, light and dark.
func (b *browser) looks(t *testing.T) {
	if raceEnabled {
		t.Skip("how pages look has no races, and takes long enough without their detector")
	}
	rooms := make([]allocator.Room, 12)
	for i := range rooms {
		rooms[i] = allocator.Room(fmt.Sprintf("room-%02d", i))
	}
	rooms[3] = allocator.Room(strings.Repeat("a-very-long-room-", 3) + "with-63-byte")
	w := newWorld(t, 1_000_000_007, rooms...)
	at, _ := w.console("")
	long := strings.Repeat("a.very_long-tag.name", 3) + "end"
	w.tag("order", long)
	for _, i := range []int{0, 3} {
		ids, _ := w.server(rooms[i], allocator.Instance(strings.Repeat("a-host-of-a-long-name.", 2)+"end"))
		for _, tag := range []string{"order", long} {
			if _, err := ids.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: tag, Count: 1000}); err != nil {
				t.Fatal(err)
			}
		}
	}
	p := b.open(t, at)
	plan := url.Values{"boundary": {"1000000007"}}
	record, err := w.admin.Refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, room := range rooms {
		r := record.Layout.Ranges[room]
		if i == 3 {
			r.Upper -= 1000
		}
		plan.Add("room", string(room))
		plan.Add("lower", fmt.Sprint(r.Lower))
		plan.Add("upper", fmt.Sprint(r.Upper))
	}
	broken := "boundary=10&room=x&lower=a&upper=5"
	p.visit("/migrations?" + plan.Encode() + "&do=apply")
	p.click(button("Apply: 1 move"))
	p.says("Done: all moves were made and reported.")
	migration := eval[string](p, "location.pathname")
	plan["upper"][3] = fmt.Sprint(record.Layout.Ranges[rooms[3]].Upper - 2000)
	pages := []string{
		"/", "/tags", "/tags/" + long, "/tags/" + long + "?do=skip&to=5000000000&room=room-00", "/migrations", "/migrations?" + plan.Encode(),
		"/migrations?" + plan.Encode() + "&do=apply", "/migrations?" + broken, migration, "/instances", "/decode?tag=order&id=1", "/audit", "/tags/none",
	}
	for _, path := range pages {
		p.visit(path)
		for _, width := range []int64{360, 1280, 2560} {
			p.size(width, 900)
			if over := eval[float64](p, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
				wide := eval[string](p, `[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map((e) => e.outerHTML.slice(0, 120)).join("\n")`)
				t.Errorf("%s at %d px: %v px too wide:\n%s", path, width, over, wide)
			}
		}
		p.size(1280, 900)
		eval[bool](p, axe+"; true")
		for _, dark := range []bool{false, true} {
			p.dark(dark)
			for _, found := range p.axe() {
				t.Errorf("%s (dark: %t): %s", path, dark, found)
			}
		}
		p.dark(false)
	}
}

// axe returns what axe-core, which the page has loaded, finds serious in a page, or worse.
func (p *tab) axe() []string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`axe.run(document, {resultTypes: ["violations"]}).then((r) => JSON.stringify({
		passed: r.passes.length,
		wrong: r.violations.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => v.id + ": " + v.help + ": " +
			v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " (" + (n.any[0]?.message ?? "") + ")").join(" | "))}))`, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("axe: %v", err)
	}
	var result struct {
		Passed int
		Wrong  []string
	}
	if err := json.Unmarshal([]byte(text), &result); err != nil || result.Passed < 10 {
		p.Fatalf("axe looked at next to nothing: %v, %s", err, text)
	}
	return result.Wrong
}

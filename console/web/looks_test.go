package web_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/web"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/race"
	"github.com/march-id/march/internal/testcluster"
)

//go:embed testdata/axe.min.js
var axe string

var pictures = flag.String("pictures", "",
	"a directory into which to write a picture of each page in each state, width and scheme")

// state is a console of a cluster in some state, and the pages to look at.
type state struct {
	at    string
	pages []string
}

// everyPage has the pages that need nothing to exist.
var everyPage = []string{"/", "/history", "/capacity", "/tags", "/migrations", "/instances", "/workers",
	"/decode?tag=order&id=1", "/audit", "/find?search=room", "/tags?do=new"}

// Every page fits its width from narrow to wide, and axe finds nothing in it, light and dark: without
// a cluster, in a new one, with long names and many rooms, during a migration, in an outage of etcd. A run that has not
// all variants looks at all pages with long names and many rooms, and at those without a cluster.
func (b *browser) looks(t *testing.T) {
	if race.Enabled {
		t.Skip("how pages look has no races, and takes long enough without their detector")
	}
	t.Cleanup(func() {
		b.seen.mu.Lock()
		defer b.seen.mu.Unlock()
		for scheme, measured := range b.seen.measured {
			if len(measured) < 100 {
				t.Errorf("axe measured the contrast of %d appearances only in scheme %d", len(measured), scheme)
			}
		}
	})
	for name, cluster := range map[string]func(*testing.T) state{
		"nothing": withoutCluster, "new": withoutTags, "rooms": b.withManyRooms, "migration": duringMigration,
		"outage": withoutEtcd, "history": withHistory,
	} {
		t.Run(name, func(t *testing.T) {
			if name != "rooms" && name != "nothing" && *pictures == "" {
				programs.OnlyInAll(t, "of how all pages look in one more state of the cluster")
			}
			t.Parallel()
			s := cluster(t)
			p := b.open(t, s.at)
			for _, path := range s.pages {
				p.look(name, path)
			}
		})
	}
}

// look opens a page, and checks how it looks. It writes pictures of the page if that is asked for.
func (p *tab) look(state, path string) {
	p.Helper()
	p.size(1280, 900)
	p.visit(path)
	p.accessible(path)
	for _, width := range []int64{360, 1280, 2560} {
		p.size(width, 900)
		if over := eval[float64](p, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
			wide := eval[string](p,
				`[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map((e) => e.outerHTML.slice(0, 120)).join("\n")`)
			p.Errorf("%s at %d px: %v px too wide:\n%s", path, width, over, wide)
		}
		if cut := eval[string](p, cutText); cut != "" {
			p.Errorf("%s at %d px: text is cut or in a column of a letter:\n%s", path, width, cut)
		}
		if *pictures == "" || eval[float64](p, "document.documentElement.scrollHeight") >= 16_000 {
			continue // Chromium's textures end there
		}
		page := slug.ReplaceAllString(path, "-")
		for _, dark := range []bool{false, true} {
			p.dark(dark)
			name := fmt.Sprintf("%s_%s_%d_%s.png", state, page[:min(len(page), 70)], width,
				map[bool]string{false: "light", true: "dark"}[dark])
			if err := os.WriteFile(filepath.Join(*pictures, name), p.picture(), 0o644); err != nil {
				p.Fatal(err)
			}
		}
		p.dark(false)
	}
}

var slug = regexp.MustCompile(`[^a-zA-Z0-9]+`)

// cutText lists the elements whose text is cut without dots, or stands in a column of a letter or two.
const cutText = `[...document.querySelectorAll("main *, header *")].filter((e) => {
	const own = [...e.childNodes].filter((n) => n.nodeType === 3 && n.data.trim()), style = getComputedStyle(e);
	const unseen = !e.getClientRects().length || e.closest(".hidden, svg, select, thead");
	if (!own.length || unseen || style.textOverflow === "ellipsis") return false;
	const range = document.createRange();
	range.selectNodeContents(own[0]);
	const box = range.getBoundingClientRect(), length = own[0].data.trim().length;
	const narrow = length > 6 && range.getClientRects().length > 2 && box.width < 4 * parseFloat(style.fontSize);
	return narrow || style.overflowX === "hidden" && e.scrollWidth > e.clientWidth + 1;
}).slice(0, 5).map((e) => e.outerHTML.slice(0, 160)).join("\n")`

func withoutCluster(t *testing.T) state {
	at, _ := newWorld(t, 0).console("")
	return state{at, []string{"/", "/history", "/decode?tag=order&id=1", "/tags/none", "/nothing"}}
}

func withoutTags(t *testing.T) state {
	at, _ := newWorld(t, 100, "a").console("")
	return state{at, everyPage}
}

func withHistory(t *testing.T) state {
	rooms := []string{"room-a", "room-b", "room-c", strings.Repeat("a-very-long-room-", 3) + "with-63-byte"}
	at := servePages(t, web.Config{Console: inProcess(&past{rooms: rooms}),
		Dashboard: "https://grafana.example.com/d/march"})
	return state{at, []string{"/history", "/history?span=24h&numbers=1", "/history?room=room-a", "/tags/order"}}
}

// duringMigration has a migration that waits for a silent instance.
func duringMigration(t *testing.T) state {
	rooms := []allocator.Room{"eu-1", "eu-2", "us-1", "ap-1"}
	w := newWorld(t, 1000, rooms...)
	at, _ := w.console("")
	w.tag("order", "invoice")
	for i, room := range rooms {
		ids := w.server(room, "host-1")
		w.load(ids, "order", int64(20+30*i))
	}
	gone := ledger.Registration{Room: "eu-1", Name: "host-2", Address: "127.0.0.1:1", Hold: 10 * time.Minute}
	must(w.Ledger().Join(t.Context(), gone))(t)
	const plan = "/migrations?boundary=1000&room=eu-1&lower=0&upper=150&room=eu-2&lower=150&upper=500" +
		"&room=us-1&lower=500&upper=750&room=ap-1&lower=750&upper=1000"
	id := w.migrate(at, map[allocator.Room]allocator.Range{"eu-1": {Lower: 0, Upper: 150},
		"eu-2": {Lower: 150, Upper: 500}, "us-1": {Lower: 500, Upper: 750}, "ap-1": {Lower: 750, Upper: 1000}})
	testcluster.Await(w, "the others have reported, and one is silent", func() bool {
		_, page := get(t, at+"/migrations/"+id)
		return strings.Contains(page, "1 of 2 instances reported it") && strings.Contains(page, "silent")
	})
	of := "/migrations/" + id
	return state{at, []string{"/", "/migrations", plan, of, of + "?do=abort", of + "?do=continue&without=eu-1/host-2",
		"/instances", "/instances?room=eu-1", "/tags/order", "/history", "/audit"}}
}

// migrate applies a plan as the form of the page does. It returns the migration's ID.
func (w *world) migrate(at string, ranges map[allocator.Room]allocator.Range) string {
	w.Helper()
	record := must(w.Admin.Ledger.Refresh(w.Context()))(w)
	form := url.Values{"boundary": {fmt.Sprint(record.Layout.Boundary)}, "do": {"apply"},
		"force": {"1"}, "hold": {"0s"}}
	for room, r := range ranges {
		form.Add("room", string(room))
		form.Add("lower", fmt.Sprint(r.Lower))
		form.Add("upper", fmt.Sprint(r.Upper))
	}
	_, page := get(w, at+"/migrations?"+form.Encode())
	plan := regexp.MustCompile(`name="plan" value="([^"]*)"`).FindStringSubmatch(page)
	if plan == nil {
		w.Fatalf("there is no plan to apply:\n%s", page)
	}
	form.Set("plan", html.UnescapeString(plan[1]))
	answer, page := post(w, at+"/migrations", form.Encode())
	id, _, _ := strings.Cut(strings.TrimPrefix(answer.Header.Get("Location"), "/migrations/"), "?")
	if answer.StatusCode != http.StatusSeeOther {
		w.Fatalf("%s\n%s", answer.Status, page)
	}
	return id
}

// withoutEtcd has an outage of etcd: rooms serve from their reserve.
func withoutEtcd(t *testing.T) state {
	rooms := []allocator.Room{"eu-1", "us-1", "ap-1"}
	w := newWorld(t, 1000, rooms...)
	at, _ := w.console("")
	w.tag("order")
	for _, room := range rooms {
		ids := w.server(room, "host-1")
		must(ids.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: "order", Count: 1000}))(t)
	}
	says := func(text string) {
		testcluster.Await(w, "the overview says "+text, func() bool {
			_, page := get(t, at+"/")
			return strings.Contains(page, text)
		})
	}
	says("3 of 3")
	get(t, at+"/migrations")
	w.Mem.Stop()
	says("etcd away")
	return state{at, []string{"/", "/history", "/capacity", "/tags", "/decode?tag=order&id=1"}}
}

func (b *browser) withManyRooms(t *testing.T) state {
	rooms := make([]allocator.Room, 12)
	for i := range rooms {
		rooms[i] = allocator.Room(fmt.Sprintf("room-%02d", i))
	}
	rooms[3] = allocator.Room(strings.Repeat("a-very-long-room-", 3) + "with-63-byte")
	w := newWorld(t, 1_000_000_000_039, rooms...)
	at, _ := w.console("")
	long := strings.Repeat("a.very_long-tag.name", 3) + "end"
	w.tag("order", allocator.Tag(long))
	for _, i := range []int{0, 3} {
		ids := w.server(rooms[i], allocator.Instance(strings.Repeat("a-host-of-a-long-name.", 2)+"end"))
		for _, tag := range []string{"order", long} {
			must(ids.NextBatch(t.Context(), &marchv1.NextBatchRequest{Tag: tag, Count: 1000}))(t)
		}
	}
	record := must(w.Admin.Ledger.Refresh(t.Context()))(t)
	plan := func(less int64) string {
		form := url.Values{"boundary": {"1000000000039"}}
		for i, room := range rooms {
			r := record.Layout.Ranges[room]
			if i == 3 {
				r.Upper -= less
			}
			form.Add("room", string(room))
			form.Add("lower", fmt.Sprint(r.Lower))
			form.Add("upper", fmt.Sprint(r.Upper))
		}
		return "/migrations?" + form.Encode()
	}
	p := b.open(t, at)
	p.visit(plan(1000) + "&do=apply")
	p.click(button("Apply: 1 move"))
	p.says("Done: all moves were made and reported.")
	migration := eval[string](p, "location.pathname")
	return state{at, append(slices.Clone(everyPage), "/history?span=24h&room=room-00&numbers=1", "/tags/"+long,
		"/tags/"+long+"?do=skip&to=5000000000&room=room-00",
		"/audit?since=x", "/tags/"+long+"?do=settings&limit=500&reserve=30m&strict_retract=on", plan(2000),
		plan(2000)+"&do=apply", "/migrations?boundary=10&room=x&lower=a&upper=5", migration, "/tags/none")}
}

// appearances are the appearances of text whose contrast axe has measured, in light and in dark colours, in all pages
// of a browser. To measure is two thirds of axe's work, and what has the same appearance has the same contrast.
type appearances struct {
	mu       sync.Mutex
	measured [2]map[string]bool
}

// appearanceOf returns all that the contrast of an element's text follows from: its own colours and font, whether it is
// a link within a text, and each element around it that has a background, lets one shine through, or lies above others.
const appearanceOf = `((e) => {
	const s = getComputedStyle(e), around = e.parentElement;
	const parts = [e.localName, e.type, s.color, s.fontSize, s.fontWeight, s.textDecorationLine, s.textShadow,
		s.visibility, e.matches(":disabled, [aria-disabled=true]"), getComputedStyle(around).color,
		e.localName === "a" && [...around.childNodes].some((n) => n.nodeType === 3 && n.data.trim())];
	for (let at = e; at; at = at.parentElement) {
		const a = getComputedStyle(at), shows = [a.backgroundColor, a.backgroundImage, a.opacity, a.position, a.filter];
		if (shows.join() !== "rgba(0, 0, 0, 0),none,1,static,none") parts.push(at.localName, ...shows);
	}
	return parts.join(" ") })`

// shownTexts are the elements of a page whose text axe can measure: no single letter, no drawing, and nothing outside
// the page or in one pixel, which is for screen readers. Of a table they are the first twelve rows.
const shownTexts = `[...document.querySelectorAll("body :not(script, style, svg *)")].filter((e) => {
	const r = e.getBoundingClientRect();
	return r.width > 1 && r.right > 0 && r.bottom > -scrollY && e.checkVisibility() &&
		!e.closest("tr:nth-child(n+13)") && (e.matches("input:not([type=checkbox], [type=radio]), select, textarea") ||
			[...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim().length > 1)) })`

// accessible checks that axe finds nothing in what a page shows now: by all rules in light colours, and by the rules
// about colours in dark ones. Contrast is measured of the first three texts of each appearance.
func (p *tab) accessible(what string) {
	p.Helper()
	eval[bool](p, axe+"; true")
	p.axe(what, `{exclude: ["tr:nth-child(n+13)"]}`, `rules: {"color-contrast": {enabled: false}}`, 10)
	for scheme, name := range []string{"light", "dark"} {
		p.dark(name == "dark")
		shown := eval[[]string](p, `[...new Set(`+shownTexts+`.map(`+appearanceOf+`))]`)
		p.seen.mu.Lock()
		fresh := slices.DeleteFunc(shown, func(one string) bool { return p.seen.measured[scheme][one] })
		p.seen.mu.Unlock()
		if len(fresh) == 0 {
			continue
		}
		list, err := json.Marshal(fresh)
		if err != nil {
			p.Fatal(err)
		}
		measured := p.axe(what+" in "+name+" colours", `{include: `+shownTexts+`.filter(((fresh, met = {}) => (e) => {
			const one = `+appearanceOf+`(e);
			met[one] = (met[one] ?? 0) + 1;
			return fresh.has(one) && met[one] <= 3 })(new Set(`+string(list)+`)))}`,
			`runOnly: ["color-contrast", "link-in-text-block"]`, 0)
		p.seen.mu.Lock()
		for _, one := range measured {
			p.seen.measured[scheme][one] = true
		}
		p.seen.mu.Unlock()
	}
	p.dark(false)
}

// axe checks that axe-core finds nothing in a part of a page that has loaded it, and that at least so many of its rules
// had something to look at. It returns the appearances of text whose contrast it measured. The part may have no
// elements, as a live page changes.
func (p *tab) axe(what, part, options string, rules int) (measured []string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`((part) => part.include?.length === 0 ?
		Promise.resolve({passes: [], violations: []}) : axe.run(part, {`+options+`, selectors: false, elementRef: true,
			resultTypes: ["violations", "passes"]}))(`+part+`).then((r) => JSON.stringify({
		passed: r.passes.length,
		measured: (r.passes.find((p) => p.id === "color-contrast")?.nodes ?? []).filter((n) => n.element?.isConnected)
			.map((n) => `+appearanceOf+`(n.element)),
		wrong: r.violations.map((v) => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) =>
			n.html.slice(0, 200) + " (" + (n.any[0]?.message ?? "") + ")").join(" | "))}))`,
		chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("axe: %v", err)
	}
	var result struct {
		Passed          int
		Measured, Wrong []string
	}
	if err := json.Unmarshal([]byte(text), &result); err != nil || result.Passed < rules {
		p.Fatalf("%s: axe looked at next to nothing: %v, %s", what, err, text)
	}
	for _, found := range result.Wrong {
		p.Errorf("%s: %s", what, found)
	}
	return result.Measured
}

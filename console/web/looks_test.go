package web_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

//go:embed testdata/axe.min.js
var axe string

// Every page, with long names and many rooms, fits its width from narrow to wide. axe finds
// nothing in it, light and dark.
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
	w.tag("order", allocator.Tag(long))
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
	record, err := w.Admin.Ledger.Refresh(t.Context())
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
		"/", "/history", "/history?span=24h&room=room-00&numbers=1", "/capacity", "/tags", "/tags/" + long, "/tags/" + long + "?do=skip&to=5000000000&room=room-00", "/migrations", "/migrations?" + plan.Encode(),
		"/migrations?" + plan.Encode() + "&do=apply", "/migrations?" + broken, migration, "/instances", "/workers", "/decode?tag=order&id=1", "/audit", "/audit?since=x", "/find?search=room", "/tags?do=new", "/tags/" + long + "?do=settings&limit=500&reserve=30m&strict_retract=on", "/tags/none",
	}
	for _, path := range pages {
		p.visit(path)
		eval[bool](p, axe+"; true")
		for _, width := range []int64{360, 1280, 2560} {
			p.size(width, 900)
			for _, dark := range []bool{false, true} {
				p.dark(dark)
				for _, found := range p.axe() {
					t.Errorf("%s at %d px (dark: %t): %s", path, width, dark, found)
				}
			}
			p.dark(false)
			if over := eval[float64](p, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
				wide := eval[string](p, `[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map((e) => e.outerHTML.slice(0, 120)).join("\n")`)
				t.Errorf("%s at %d px: %v px too wide:\n%s", path, width, over, wide)
			}
		}
	}
}

// axe returns the findings of axe-core in a page. The page has loaded axe-core.
func (p *tab) axe() []string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 4*patience) // with many other tests at once
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`axe.run(document, {resultTypes: ["violations"]}).then((r) => JSON.stringify({
		passed: r.passes.length,
		wrong: r.violations.map((v) => v.id + ": " + v.help + ": " +
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

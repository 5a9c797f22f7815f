package web_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/internal/programs"
	"github.com/march-id/march/internal/race"
	"github.com/march-id/march/internal/testcluster"
)

// The pictures of docs/. The text of each picture is in testdata, without its numbers. If a page has
// another text now, its picture must be taken anew: go test ./console/web -run TestBrowser/docs -rewrite
func (b *browser) docs(t *testing.T) {
	if race.Enabled {
		t.Skip("how pages look has no races, and takes long enough without their detector")
	}
	if !*rewrite {
		programs.OnlyInAll(t, "of the pictures in docs/")
	}
	rooms := []allocator.Room{"eu-1", "eu-2", "us-1", "ap-1"}
	w := newWorld(t, 1000, rooms...)
	at, _ := w.console("")
	w.tag("order", "invoice", "user")
	for i, room := range rooms {
		for k, name := range []allocator.Instance{"host-1", "host-2"} {
			ids := w.server(room, name)
			w.load(ids, "order", int64(20+30*i+10*k))
			w.load(ids, "invoice", 5)
		}
	}
	if _, err := w.Ledger().Join(t.Context(), ledger.Registration{Room: "eu-1", Name: "host-3", Address: "127.0.0.1:1",
		Hold: 10 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	p := b.open(t, at)
	p.size(1200, 800)
	read := func() string { // how far behind each room is depends on the load, so the text leaves it out
		text := eval[string](p, `(() => {
			const hide = [...document.querySelectorAll(".costs > :is(table, .dim)")];
			hide.forEach((e) => e.hidden = true);
			const text = document.querySelector("main").innerText;
			hide.forEach((e) => e.hidden = false);
			return text })()`)
		for _, replace := range [][2]string{
			{`\d[\d,.]*`, "N"}, {`N (days|h|min|s|ms|µs|k|M)( ago)?\b`, "N"}, {`\bnow\b`, "N"},
			{`[a-f\dN]+-[a-f\dN-]{10,}|\bN[A-Z\dN]{5,}\b`, "ID"},
			{`order|invoice`, "TAG"}, {`\s*\n\s*`, "\n"},
		} {
			text = regexp.MustCompile(replace[0]).ReplaceAllString(text, replace[1])
		}
		return text
	}
	take := func(name string) {
		t.Helper()
		text := read()
		golden := filepath.Join("testdata", name+".txt")
		if *rewrite {
			if err := os.WriteFile(filepath.Join("..", "..", "docs", name+".png"), p.picture(), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want := must(os.ReadFile(golden))(t)
		defer func() {
			if diff := cmp.Diff(string(want), text); diff != "" {
				t.Errorf("%s (-picture +page); take it anew with -rewrite\n%s", name, diff)
			}
		}()
		// On a busy machine an instance may answer late, and the page shows that until it answers.
		testcluster.Await(t, name+" is as its picture", func() bool {
			text = read()
			return text == string(want)
		})
	}
	p.visit("/instances")
	p.until("a silent instance was last seen long ago", lastSeen)
	p.visit("/")
	points := []string{"2"}
	if *rewrite {
		points = []string{"25", "50", "75"} // each as long as a test waits
	}
	for _, n := range points {
		p.until("rates are drawn",
			`[...document.querySelectorAll(".roomcard")].every((c) => c.querySelector("polyline")?.getAttribute("points").split(" ").length >= `+n+` && c.querySelector(".clip"))`)
	}
	take("overview")
	plan := "/migrations?boundary=1000&room=eu-1&lower=0&upper=150&room=eu-2&lower=150&upper=500" +
		"&room=us-1&lower=500&upper=750&room=ap-1&lower=750&upper=1000"
	p.visit(plan)
	p.says("The plan: 2 moves")
	p.says("IDs in all, at most.")
	p.do(chromedp.MouseEvent("mouseMoved", 600, 5))
	take("planner")
	p.visit(plan + "&do=apply")
	p.click(button("Apply: 2 moves"))
	p.says("Waiting until eu-1/host-3 reports.")
	p.until("the others have reported", `document.querySelectorAll("#move-1 .state.reported").length === 2`)
	p.visit(eval[string](p, "location.pathname"))
	take("migration")
}

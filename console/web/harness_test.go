package web_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	clog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"go.uber.org/goleak"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

func TestMain(m *testing.M) {
	// Tests wait for most of their time: more of them than processors run at once.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for an event in the browser. It only ends a test that hangs.
const patience = testcluster.Patience

// world is a cluster with consoles and rooms. Its operator is ann.
type world struct {
	*testcluster.Cluster
	policy string // the file of the guarded console
}

// newWorld makes a cluster in memory with a layout, or a store without a cluster if boundary is 0.
func newWorld(tb testing.TB, boundary int64, rooms ...allocator.Room) *world {
	tb.Helper()
	return over(testcluster.NewFake(tb), boundary, rooms...)
}

// over is newWorld in a store that the caller chooses.
func over(c *testcluster.Cluster, boundary int64, rooms ...allocator.Room) *world {
	c.Helper()
	w := &world{Cluster: c}
	if boundary > 0 {
		l := must(allocator.EqualLayout(boundary, rooms))(c)
		w.Init(l, "ann")
	}
	return w
}

// console starts a console. It returns the address of its pages, and a function that stops
// it. The console listens at the address at, or anywhere if at is empty.
func (w *world) console(at string) (url string, stop func()) {
	w.Helper()
	return w.consoleWith(at, func(*console.Config) {})
}

// consoleWith is console with a configuration that change modifies.
func (w *world) consoleWith(at string, change func(*console.Config)) (url string, stop func()) {
	w.Helper()
	c := w.Console(func(cfg *console.Config) {
		cfg.HTTP = testcluster.Listen(w, at)
		change(cfg)
	})
	return "http://" + c.HTTP, c.Stop
}

// server starts an instance of a room and waits until it is ready.
func (w *world) server(in allocator.Room, name allocator.Instance) marchv1.IDServiceClient {
	w.Helper()
	return w.Room(in, name, func(cfg *room.Config) { cfg.Build = "v1.0.0" })
}

func (w *world) tag(names ...allocator.Tag) {
	w.Helper()
	w.Tag(nil, "ann", names...)
}

// load asks for IDs all the time, n at a time, until the test ends. Any other error fails
// the test.
func (w *world) load(ids marchv1.IDServiceClient, tag string, n int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			if _, err := ids.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: tag, Count: n}); err != nil &&
				ctx.Err() == nil {
				w.Errorf("load on %s: %v", tag, err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	w.Cleanup(func() {
		cancel()
		work.Wait()
	})
}

// browser is a Chromium without a window.
type browser struct {
	ctx  context.Context
	seen appearances
}

// start starts Chromium, until whole ends. Only t, a part of whole, may fail.
func (b *browser) start(t, whole *testing.T, path string) {
	t.Helper()
	ctx, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.UserDataDir(whole.TempDir()), chromedp.NoFirstRun,
		chromedp.NoDefaultBrowserCheck, chromedp.Headless, chromedp.NoSandbox,
		// To draw in small windows, without a second process that imitates a GPU, takes a fifth less of the processors.
		chromedp.DisableGPU, chromedp.Flag("disable-gpu-compositing", true),
		chromedp.Flag("disable-software-rasterizer", true), chromedp.WindowSize(800, 600),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("mute-audio", true),
		chromedp.Flag("disable-extensions", true), chromedp.Flag("force-color-profile", "srgb"),
		chromedp.Flag("font-render-hinting", "none"),
		chromedp.Flag("disable-background-timer-throttling", true),
		chromedp.Flag("disable-backgrounding-occluded-windows", true),
		chromedp.Flag("disable-renderer-backgrounding", true),
		chromedp.WSURLReadTimeout(patience))
	whole.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	whole.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	b.ctx = ctx
	b.seen.measured = [2]map[string]bool{make(map[string]bool), make(map[string]bool)}
}

// tab is an open page, in a window of its own.
type tab struct {
	testing.TB
	ctx   context.Context
	base  string
	seen  *appearances
	mu    sync.Mutex
	wrong []string // the browser's complaints
}

// open opens a tab on a console. Complaints of the browser (errors of scripts or of the
// policy) fail the test.
func (b *browser) open(tb testing.TB, base string) *tab {
	tb.Helper()
	ctx, cancel := chromedp.NewContext(b.ctx)
	p := &tab{TB: tb, ctx: ctx, base: base, seen: &b.seen}
	if err := chromedp.Listen(ctx, func(event any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			p.wrong = append(p.wrong, fmt.Sprintf("%s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
		case *clog.EventEntryAdded:
			if e.Entry.Level == clog.EntryLevelError && e.Entry.Source != clog.EntrySourceNetwork {
				p.wrong = append(p.wrong, e.Entry.Text)
			}
		}
	}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, text := range p.wrong {
			tb.Errorf("the browser complains: %s", text)
		}
	})
	p.size(1280, 900)
	return p
}

func (p *tab) size(width, height int64) {
	p.Helper()
	p.do(chromedp.EmulateViewport(width, height))
}

func (p *tab) dark(on bool) {
	p.Helper()
	scheme := "light"
	if on {
		scheme = "dark"
	}
	must(chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}))(p)
}

// do runs an action within the time that a test has.
func (p *tab) do(what chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, what); err != nil {
		p.Fatalf("%v\n%s", err, p.text())
	}
}

// eval returns the value of an expression in a page.
func eval[T any](p *tab, expression string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return value
}

// text returns the text of the page, for messages.
func (p *tab) text() string {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](
		`location.href + "\n" + document.body.innerText.slice(0, 3000)`))
	return text
}

// visit goes to an address of the console and waits until its stream has begun,
// where it has one (TestStreams).
func (p *tab) visit(path string) {
	p.Helper()
	p.do(chromedp.Navigate(p.base + path))
	p.until("the page is live",
		`!document.querySelector("#link") || ["live", "trouble", "still"].includes(document.querySelector("#link").className)`)
}

// until waits for a condition in the page.
func (p *tab) until(what, condition string) {
	p.Helper()
	await[bool](p, what, "!!("+condition+")")
}

// await waits until an expression in the page has a value that is true, and returns the value.
// The page itself looks again and again, ever more rarely, as a look lays out the whole page: it does not
// need to be asked each time. Of a page that is still being loaded, only the beginning may be there.
func await[T any](p *tab, what, expression string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	look := `(async () => {
		for (let pause = 10; pause < 400; pause *= 1.5) {
			try {
				const value = document.readyState === "complete" && (` + expression + `);
				if (value) return [value];
			} catch {}
			await new Promise((again) => setTimeout(again, pause));
		}
		return [] })()`
	for {
		// While one page gives way to the next, an expression cannot run.
		found, err := chromedp.Run(ctx, chromedp.Evaluate[[]T](look, chromedp.EvalAwaitPromise))
		if err == nil && len(found) == 1 {
			return found[0]
		}
		if ctx.Err() != nil {
			at, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string](`[document.visibilityState, document.readyState,
				document.activeElement?.outerHTML.slice(0, 200), scrollY, innerHeight].join(" ")`))
			p.Fatalf("not in time: %s (%s, %v)\nthe page is %s:\n%s", what, expression, err, at, p.text())
		}
	}
}

// says waits until the page shows a text.
func (p *tab) says(text string) {
	p.Helper()
	p.until("the page says "+text, fmt.Sprintf(`document.body.innerText.replace(/\s+/g, " ").includes(%q)`, text))
}

// place returns the middle of an element, after scrolling to it. It looks for the element and
// for its place at once: between two looks, a new page may have taken the old one's place.
func (p *tab) place(element string) (x, y float64) {
	p.Helper()
	at := await[[]float64](p, "there is "+element, `((e) => {
		if (!e) return null;
		e.scrollIntoView({block: "center", behavior: "instant"});
		const r = e.getBoundingClientRect();
		return [r.x + r.width / 2, r.y + r.height / 2] })(`+element+`)`)
	return at[0], at[1]
}

// css returns the expression for an element by its selector.
func css(selector string) string { return fmt.Sprintf("document.querySelector(%q)", selector) }

func button(text string) string {
	return fmt.Sprintf(
		`[...document.querySelectorAll("button, a, summary")].find((e) => e.innerText.trim().startsWith(%q))`, text)
}

// click clicks with the mouse, again where the page moved the element away from under it.
func (p *tab) click(element string) {
	p.Helper()
	for range 3 {
		x, y := p.place(element)
		await[bool](p, "a look at the click", fmt.Sprintf(`(() => {
			const e = %s;
			delete window.missed;
			document.addEventListener("click", (click) => { window.missed = !e.contains(click.target) },
				{once: true, capture: true});
			return true })()`, element))
		p.do(chromedp.MouseClickXY(x, y))
		if await[string](p, "the click", `window.missed ? "missed" : "hit"`) == "hit" {
			return
		}
	}
}

// fill types into a field, replacing its content.
func (p *tab) fill(selector, text string) {
	p.Helper()
	p.until("there is "+selector, css(selector))
	eval[bool](p, fmt.Sprintf("(() => { const e = %s; e.focus(); e.select(); return true })()", css(selector)))
	p.keys(text)
}

// choose chooses an option of a list.
func (p *tab) choose(selector, option string) {
	p.Helper()
	p.until("there is "+selector, css(selector))
	eval[bool](p, fmt.Sprintf("(() => { const e = %s; e.value = %q; e.dispatchEvent(new Event('change', {bubbles: "+
		"true})); return e.value === %q })()", css(selector), option, option))
}

func (p *tab) keys(text string) {
	p.Helper()
	p.do(chromedp.KeyEvent(text))
}

// tabTo presses the tab key until the element e that has the focus meets the condition.
func (p *tab) tabTo(what, condition string) {
	p.Helper()
	for range 80 {
		p.keys(kb.Tab)
		if eval[bool](p, `((e) => !!(e && (`+condition+`)))(document.activeElement)`) {
			if !eval[bool](p, `document.activeElement.matches(":focus-visible")`) {
				p.Errorf("%s has the focus, but it is not seen", what)
			}
			return
		}
	}
	p.Fatalf("tab never comes to %s\n%s", what, p.text())
}

// picture returns the whole page as a PNG.
func (p *tab) picture() []byte {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	png := must(chromedp.Run(ctx, chromedp.FullScreenshot(100)))(p)
	return png
}

// must returns the value of a call that may not fail: must(call())(t).
func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}

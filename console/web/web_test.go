package web_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// vendored are the files that other projects publish, as the npm registry has them:
// htmx.org 4.0.1 (dist/) and axe-core 4.10.3.
var vendored = map[string]string{
	"static/htmx.min.js":   "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130",
	"static/hx-sse.min.js": "18ef2761356ec1fe0bb6d92612315b37517a7c1e9856b661c5ae81fef239d103",
	"testdata/axe.min.js":  "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb",
}

func TestVendored(t *testing.T) {
	for name, want := range vendored {
		content := must(os.ReadFile(name))(t)
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s is not the file that was vendored: its SHA-256 is %x", name, sum)
		}
	}
}

// client keeps no connections open, because a test would leak them.
var client = http.Client{
	Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// head is an answer without its body.
type head struct {
	Status     string
	StatusCode int
	Header     http.Header
}

func fetch(t testing.TB, r *http.Request) (head, string) {
	t.Helper()
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body := must(io.ReadAll(answer.Body))(t)
	return head{answer.Status, answer.StatusCode, answer.Header}, string(body)
}

// send sends a request of a browser, with a form unless that is nil.
func send(t testing.TB, method, address string, headers map[string]string, form url.Values) (head, string) {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form.Encode())))(t)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	r.Host = headers["Host"]
	return fetch(t, r)
}

func get(t testing.TB, address string) (head, string) {
	t.Helper()
	return send(t, http.MethodGet, address, nil, nil)
}

// post sends a form.
func post(t testing.TB, address, form string) (head, string) {
	t.Helper()
	values := must(url.ParseQuery(form))(t)
	return send(t, http.MethodPost, address, nil, values)
}

// TestFirstPage: the first page is small with all that it loads, as a browser receives it, and
// loads everything from this console.
func TestFirstPage(t *testing.T) {
	rooms := make([]allocator.Room, 12)
	for i := range rooms {
		rooms[i] = allocator.Room("room-" + string(rune('a'+i)))
	}
	w := newWorld(t, 1200, rooms...)
	at, _ := w.console("")
	answer, page := get(t, at+"/")
	if answer.StatusCode != http.StatusOK || strings.Contains(page, "http://") || strings.Contains(page, "https://") {
		t.Errorf("%s, or an address outside:\n%s", answer.Status, page)
	}
	size := len(page)
	loaded := regexp.MustCompile(`(?:src|href)="(/static/[^"]+)"`).FindAllStringSubmatch(page, -1)
	for _, m := range loaded {
		answer, body := send(t, http.MethodGet, at+html.UnescapeString(m[1]),
			map[string]string{"Accept-Encoding": "gzip"}, nil)
		if answer.StatusCode != http.StatusOK || !strings.Contains(answer.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %s, %q", m[1], answer.Status, answer.Header.Get("Cache-Control"))
		}
		size += len(body)
	}
	t.Logf("%d bytes, %d of them the page itself", size, len(page))
	if len(loaded) != 6 || size > 100<<10 {
		t.Errorf("%d files and the page have %d bytes, want 6 and at most 100 KiB", len(loaded), size)
	}
	for name, want := range map[string]string{
		"Content-Security-Policy": "script-src 'self'; style-src 'self'", "X-Content-Type-Options": "nosniff",
		"Cache-Control": "no-store",
	} {
		if got := answer.Header.Get(name); !strings.Contains(got, want) || strings.Contains(got, "unsafe") {
			t.Errorf("%s is %q", name, got)
		}
	}
}

// TestNotFound: an unknown address has a page, but an unknown address of the API has none.
func TestNotFound(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	for path, want := range map[string]string{
		"/nothing": "GET /nothing: this console has no such page",
		"/tags/":   "GET /tags/: this console has no such page",
		"/tags/none": "Tag none does not exist; create it with <code>march tag " +
			"create none</code>",
		"/migrations/01M7ZJKZWRJWBA2S6WT424NRG9": "Migration 01M7ZJKZWRJWBA2S6WT424NRG9 does not exist",
		"/%3Cscript%3E":                          "GET /&lt;script&gt;: this console has no such page",
	} {
		answer, page := get(t, at+path)
		if answer.StatusCode != http.StatusNotFound || !strings.Contains(page, "There is no such page") ||
			!strings.Contains(page, want) ||
			!strings.Contains(answer.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %s, want %q in\n%s", path, answer.Status, want, page)
		}
	}
	if answer, body := get(t, at+"/v1/nothing"); answer.StatusCode != http.StatusNotFound ||
		!strings.HasPrefix(body, "{") {
		t.Errorf("of the API: %s %s", answer.Status, body)
	}
}

// TestForms: a form of the console's own pages makes its change, and the audit names the
// actor.
func TestForms(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	post := func(tag string, headers map[string]string) (head, string) {
		t.Helper()
		return send(t, http.MethodPost, at+"/tags", headers, url.Values{"name": {tag}})
	}
	if answer, _ := post("plain", map[string]string{"Sec-Fetch-Site": "same-origin"}); answer.StatusCode !=
		http.StatusSeeOther || answer.Header.Get("Location") != "/tags/plain?done=created" {
		t.Errorf("%s to %q", answer.Status, answer.Header.Get("Location"))
	}
	if answer, page := post("plain", nil); answer.StatusCode != http.StatusConflict ||
		!strings.Contains(page, "Tag plain exists already") || !strings.Contains(page, `value="plain"`) {
		t.Errorf("%s\n%s", answer.Status, page)
	}
	post("proxied", map[string]string{"X-Forwarded-User": "anné", "X-Forwarded-For": "192.0.2.7, 10.0.0.1"})
	// It is a few bytes too large: a client that still writes after half a second is cut off, and may see no answer.
	if answer, _ := post(strings.Repeat("x", 1<<20), nil); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a form of more than 1 MiB: %s", answer.Status)
	}
	entries, _, err := w.Admin.Audits(t.Context(), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	var who []string
	for _, e := range entries {
		who = append(who, e.Object+" by "+e.Actor)
	}
	if got, want := strings.Join(who, "\n"), "tags/proxied by ann? by web for 192.0.2.7 from 127.0.0.1\ntags/plain by "+
		"web from 127.0.0.1\nlayout by ann"; got != want {
		t.Errorf("the audit has\n%s\nwant\n%s", got, want)
	}
}

// TestBarred: during a recover, the pages that report the halt name the instances that it
// has barred.
func TestBarred(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.server("a", "host-1")
	report, err := recovery.Run(t.Context(), w.Ledger(), recovery.Config{
		Actor: "ann", Apply: true,
		Ask: func(ctx context.Context, s record.SeenInstance, q record.Question,
			use record.UseMarks) (record.Memory, error) {
			m, err := room.AskMarks(ctx, testcluster.Dial(w, s.Address), q, use)
			if m.Barred {
				const says = "a/host-1 (barred)"
				for _, path := range []string{"/", "/instances", "/migrations"} {
					testcluster.Await(w, path+" names the instance", func() bool {
						_, page := get(t, at+path)
						return strings.Contains(page, says)
					})
				}
				testcluster.Await(w, "its row says it", func() bool {
					_, page := get(t, at+"/instances")
					return strings.Contains(page, `<span class="state waiting">barred</span>`)
				})
			}
			return m, err
		},
	})
	if err != nil {
		t.Fatalf("%+v, %v", report, err)
	}
}

// TestStreams: a page has a stream, unless it hardly changes or costs much to search. Such
// a page has one while it cannot be shown.
func TestStreams(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, _ := w.console("")
	w.tag("order")
	var streams []string
	for _, path := range []string{"/", "/capacity", "/tags", "/tags?search=x", "/tags/order", "/migrations",
		"/instances?room=a", "/audit", "/audit?actor=", "/audit?actor=ann", "/audit?action=create",
		"/audit?object=tags%2F", "/audit?since=2026-11-24T10:00", "/find", "/audit?before=01M7ZJKZWRJWBA2S6WT424NRG9",
		"/decode", "/decode?tag=order&id=1", "/decode?tag=order&id=x", "/nothing", "/tags/none",
		"/audit?object=tags%2F&before=x"} {
		_, page := get(t, at+path)
		line := path + " -> "
		if live := regexp.MustCompile(`hx-sse:connect="([^"]*)"`).FindStringSubmatch(page); live != nil {
			line += html.UnescapeString(live[1])
		}
		if link := regexp.MustCompile(`id="link" role="status"( class="still")?`).FindString(page); link != "" {
			line += "; it says so" + strings.TrimPrefix(link, `id="link" role="status"`)
		}
		streams = append(streams, line)
	}
	screen(t, "streams", streams...)
}

// TestStream: a stream sends changes, and nothing that the browser already has. It ends
// before the rest when the console stops.
func TestStream(t *testing.T) {
	w := newWorld(t, 100, "a", "b")
	at, stop := w.console("")
	w.tag("order")
	// follow reads a stream's events until one contains text. It returns the ID of that event.
	follow := func(last, text string) (id string, rest *bufio.Reader, end context.CancelFunc) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		r := must(http.NewRequestWithContext(ctx, http.MethodGet, at+"/live/audit", nil))(t)
		r.Header.Set("Last-Event-ID", last)
		answer, err := client.Do(r) //nolint:bodyclose // end does, also at the end of the test
		if err != nil {
			t.Fatal(err)
		}
		end = func() { cancel(); answer.Body.Close() }
		t.Cleanup(end)
		rest = bufio.NewReader(answer.Body)
		for {
			line, err := rest.ReadString('\n')
			if err != nil {
				t.Fatalf("the stream ended: %v", err)
			}
			if v, ok := strings.CutPrefix(line, "id: "); ok {
				id = strings.TrimSpace(v)
			}
			if strings.Contains(line, text) {
				return id, rest, end
			}
		}
	}
	id, _, end := follow("", "tags/order")
	end()
	if len(id) != 16 {
		t.Errorf("the event's id is %q", id)
	}
	w.tag("invoice")
	next, _, end := follow(id, "tags/invoice")
	end()
	if next == id {
		t.Errorf("two events have the id %q", id)
	}
	// The stream does not repeat events that the browser has: its first event is the next change.
	none, rest, _ := follow(next, "event: tick")
	if none != "" {
		t.Errorf("the stream begins with the event %q", none)
	}
	w.tag("later")
	for line := ""; !strings.HasPrefix(line, "id: "); {
		var err error
		if line, err = rest.ReadString('\n'); err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
	}
	found := false
	for !found {
		line, err := rest.ReadString('\n')
		if err != nil || line == "\n" {
			t.Fatalf("the first event of a stream that goes on does not have the change: %q, %v", line, err)
		}
		found = strings.Contains(line, "tags/later")
	}
	stop() // waits
	if _, err := io.Copy(io.Discard, rest); err != nil && !strings.Contains(err.Error(), "EOF") {
		t.Errorf("the stream broke off: %v", err)
	}
}

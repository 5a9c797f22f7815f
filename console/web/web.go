// Package web has the console's pages, which show and change the cluster in a browser.
//
// The pages are a view and nothing else. They show and change everything through a
// ConsoleServiceClient, so they cannot differ from the command line. They keep no
// state: a page's address says everything that the page shows. So a reload, another
// console or another browser show the same.
//
//  1. Pages work without JavaScript: links, forms, HTML from templates. Each change has
//     a form of its own: a POST, then a redirect to the thing that was changed. A form
//     that is refused comes back as the user filled it in, with the reason next to the
//     field.
//  2. Everything that changes by itself is in one part of the page, its live part. A
//     page's stream, at /live and the page's address, sends that part and then the lines
//     of it that differ, and the browser merges it in (march.js; htmx, hx-sse). An event's
//     id is a digest of the part. So a browser that comes back is not sent a part that it has.
//  3. There is no inline script or style: the policy (see serve.Page) forbids both. The
//     numbers of a drawing are attributes of SVG.
//  4. No field that a user fills in is in a live part: the text that a user types must
//     not change meanwhile.
package web

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"html/template"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

//go:embed templates
var templates embed.FS

// Config are the settings of the pages.
type Config struct {
	// Console answers all reads and changes of the pages.
	Console marchv1.ConsoleServiceClient
	// Stopping is closed when the server begins to stop: it ends the streams.
	Stopping <-chan struct{}
	// Pages and CallerPages bound the pages that browsers keep up to date at once,
	// of all callers and of one. They must be set.
	Pages, CallerPages *serve.Limit
	// Dashboard is the address of the shipped dashboard in a Grafana; empty for none.
	Dashboard string
	// Logger; nil logs nothing.
	Logger hclog.Logger
}

// Handler serves the pages.
type Handler struct {
	console   marchv1.ConsoleServiceClient
	stopping  <-chan struct{}
	log       hclog.Logger
	assets    assets
	menu      []*page
	pages     map[string]*page // by name
	live      live
	problems  kept[int] // of the cluster
	hour      kept[*marchv1.GetHistoryResponse]
	dashboard string // empty for none
}

const (
	// buildWithin bounds how long gathering a page's content may take: the server
	// gives an answer 10 s.
	buildWithin = 8 * time.Second
	// maxForm bounds a form, in bytes: a plan of 64 rooms has some 100 KiB.
	maxForm = 1 << 20
)

// New returns a handler. Its error comes from the embedded files of this package.
func New(cfg Config) (*Handler, error) {
	a, err := newAssets()
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	h := &Handler{console: cfg.Console, stopping: cfg.Stopping, log: cfg.Logger, assets: a,
		pages: make(map[string]*page), dashboard: cfg.Dashboard}
	h.live.init(cfg)
	always := func(url.Values) bool { return true }
	const second = time.Second
	for _, p := range []*page{
		{name: "overview", label: "Overview", path: "/{$}", every: second, build: (*Handler).overview},
		{name: "history", label: "History", path: "/history", every: 5 * second, build: (*Handler).history},
		{name: "capacity", label: "Capacity", title: "What runs out first", path: "/capacity", every: 5 * second,
			lists: true, build: (*Handler).capacity},
		{name: "tags", label: "Tags", path: "/tags", every: 2 * second, ofRooms: true, lists: true,
			build: (*Handler).tags, filter: &filter{Button: "Search", All: "All tags", Fields: []field{{Name: "search",
				Label: "Search tags", Type: "search", Place: "Part of a name", Most: 63, Bare: true}}}},
		{name: "tag", nav: "tags", path: "/tags/{tag}", every: second, ofRooms: true, build: (*Handler).tag},
		{name: "migrations", label: "Migrations", path: "/migrations", every: second, ofRooms: true,
			build: (*Handler).migrations},
		{name: "migration", nav: "migrations", title: "Migration", path: "/migrations/{id}", every: second / 2,
			ofRooms: true, build: (*Handler).migration},
		{name: "instances", label: "Instances", path: "/instances", every: second, ofRooms: true, lists: true,
			build: (*Handler).instances, filter: &filter{Button: "Show", Fields: []field{ofRoom}}},
		{name: "workers", label: "Workers", path: "/workers", every: 2 * second, ofRooms: true, lists: true,
			build: (*Handler).workers, filter: &filter{Button: "Show", Fields: []field{ofRoom,
				{ID: "of-bits", Name: "bits", Label: "Bits", Place: "all widths", Digits: true, Bare: true}}}},
		{name: "decode", label: "Decode", path: "/decode", every: 5 * second, still: always, build: (*Handler).decode,
			filter: &filter{Button: "Decode", Main: true, Fields: []field{{Name: "tag", Label: "Tag", Required: true},
				{Name: "id", Label: "ID or text", Required: true}}}},
		{name: "find", title: "Find", path: "/find", every: 5 * second, still: always, build: (*Handler).find,
			filter: &filter{Button: "Find", Fields: []field{{ID: "find", Name: "search", Type: "search", Bare: true,
				Label: "Find pages, tags, rooms and commands", Place: "A page, tag, room, command or ID", Most: 63}}}},
		{name: "audit", label: "Audit", path: "/audit", every: 2 * second, still: searched, lists: true,
			build: (*Handler).audit, filter: &filter{Button: "Filter", All: "All changes", Class: " narrow",
				Fields: []field{{Name: "actor", Label: "Actor", Place: "contains"},
					{Name: "action", Label: "Action", Place: "contains"},
					{Name: "object", Label: "Object", Place: "begins with, like tags/"},
					{Name: "exact", Label: "exactly this object", Type: "checkbox", Bare: true},
					{Name: "since", Label: "From (UTC)", Type: "datetime-local"},
					{Name: "until", Label: "Before (UTC)", Type: "datetime-local"}}}},
		{name: "none", title: "Not found", lists: true, build: (*Handler).none},
	} {
		of := p.name
		if p.lists {
			of = "list"
		}
		p.text, err = template.New(p.name).Funcs(h.functions()).ParseFS(templates, "templates/frame.html",
			"templates/parts.html", "templates/"+of+".html")
		if err != nil {
			return nil, err
		}
		if h.pages[p.name] = p; p.label != "" {
			p.nav, h.menu = p.name, append(h.menu, p)
		}
	}
	return h, nil
}

type page struct {
	name  string        // also of its template
	label string        // in the menu; empty for a page that is not there
	nav   string        // the name of the menu's entry
	title string        // if it is not the label
	path  string        // empty for the page of unknown addresses
	every time.Duration // how often its stream checks whether it changed
	// still reports whether a page has no stream, because it hardly changes or
	// costs much to make. nil means that it always has one.
	still   func(url.Values) bool
	ofRooms bool    // it shows rooms: build gets the layout, and the rooms' colours
	lists   bool    // build returns a listPage, and the template is that of all pages of lists
	filter  *filter // nil for none
	build   func(*Handler, *call) (body any, err error)
	text    *template.Template
}

// Name, Label and Path are the menu's entry.
func (p *page) Name() string  { return p.name }
func (p *page) Label() string { return p.label }
func (p *page) Path() string  { return strings.TrimSuffix(p.path, "{$}") }

// call is a request as a page or a form sees it.
type call struct {
	*http.Request
	began  time.Time // when the page began to be made
	live   bool      // the request is for the page's live part only
	failed string    // the form that was refused, and why
	err    error
	asked  string // the form whose fields the address has
	layout *marchv1.GetLayoutResponse
	colour palette // of all rooms that ever were in a layout
}

// query returns the parameters of a page's address. A refused form has none.
func (c *call) query() url.Values {
	if c.Method == http.MethodPost {
		return nil
	}
	return c.URL.Query()
}

// Routes adds the pages to a mux.
func (h *Handler) Routes(mux *http.ServeMux) {
	guard := http.NewCrossOriginProtection()
	stream := func(pattern string, answer http.Handler) {
		mux.Handle(pattern, guard.Handler(serve.Page("connect-src 'self'; script-src 'self'; ", answer)))
	}
	handle := func(pattern string, answer http.HandlerFunc) { stream(pattern, compressed(answer)) }
	for _, p := range h.pages {
		if p.path == "" {
			continue
		}
		handle("GET "+p.path, func(w http.ResponseWriter, r *http.Request) { h.show(w, p, &call{Request: r}) })
		stream("GET /live"+p.path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.keep(w, r, p) }))
	}
	for _, f := range forms {
		handle(f.pattern, func(w http.ResponseWriter, r *http.Request) { h.change(w, r, f) })
	}
	handle("GET /static/{file}", h.assets.serve)
	handle("GET /live/problems", h.tellProblems)
	handle("/", func(w http.ResponseWriter, r *http.Request) { h.show(w, h.pages["none"], &call{Request: r}) })
}

// layout returns the current layout, and the rooms that ever were in one.
func (h *Handler) layout(c *call) (*marchv1.GetLayoutResponse, error) {
	return h.console.GetLayout(c.Context(), &marchv1.GetLayoutRequest{})
}

// none is the page of unknown addresses.
func (*Handler) none(c *call) (any, error) {
	return nil, allocator.Errorf(allocator.NotFound, "%s %s: this console has no such page", c.Method, c.URL.Path)
}

// actor returns a context that names the actor of changes for the audit. Behind a proxy
// the actor is the user that the proxy names.
func actor(r *http.Request) context.Context {
	who := "web"
	if user := r.Header.Get("X-Forwarded-User"); user != "" {
		who = user + " by web"
	}
	if client, _, _ := strings.Cut(r.Header.Get("X-Forwarded-For"), ","); client != "" {
		who += " for " + strings.TrimSpace(client)
	}
	who = strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, who)
	ctx := metadata.NewOutgoingContext(r.Context(), metadata.Pairs(api.ActorHeader, who))
	if address, err := net.ResolveTCPAddr("tcp", r.RemoteAddr); err == nil {
		ctx = peer.NewContext(ctx, &peer.Peer{Addr: address})
	}
	return ctx
}

type frame struct {
	Title, Nav string
	Menu       []*page
	Live       string // the address of its stream; empty for none
	Back       string // its own address, also after a form; with what was typed, if the form is a plan
	Body       any
	Filter     *filter // nil for none
	Err        error   // why there is no Body
	Missing    bool    // Err is NotFound
	Refused    bool    // Err is Denied
	Outage     bool    // Err is Unavailable, so etcd does not answer
	Notice     notice
	Problems   int    // of the cluster; 0 if the caller may not see them
	Refresh    string // the address that a browser without scripts goes on to; empty for none
	User       string // whom the login names; empty if there was none
	Denied     string // why the policy refused a form; empty if it did not

	call *call
}

func (h *Handler) show(w http.ResponseWriter, p *page, c *call) {
	text, status := h.render(p, c)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

func (h *Handler) render(p *page, c *call) ([]byte, int) {
	f, err := h.frame(p, c)
	status := http.StatusOK
	if err = cmp.Or(err, c.err); err != nil {
		status = serve.StatusOf(err)
	}
	var text bytes.Buffer
	if err := p.text.ExecuteTemplate(&text, "frame", f); err != nil {
		h.log.Error("page not rendered", "page", p.name, "error", err)
		return []byte("this page could not be drawn: " + err.Error()), http.StatusInternalServerError
	}
	return text.Bytes(), status
}

// frame gathers the content of a page. The frame contains its error, too.
func (h *Handler) frame(p *page, c *call) (f *frame, err error) {
	ctx, cancel := context.WithTimeout(c.Context(), buildWithin)
	defer cancel()
	address := *c.URL
	if c.Method == http.MethodPost { // a refused form: show its page again
		address = url.URL{Path: p.shownAt(c)}
		if p.name == "migrations" {
			address.RawQuery = typed(c.Form).Encode()
		}
	}
	f = &frame{call: c, Menu: h.menu, User: access.LoggedIn(ctx), Nav: p.nav,
		Title: cmp.Or(p.title, p.label), Live: "/live" + address.RequestURI(), Back: address.RequestURI(),
		Notice: noticeOf(c.URL.Query().Get("done"))}
	if tag := c.PathValue("tag"); tag != "" {
		f.Title = "Tag " + tag
	}
	if p.path == "" {
		f.Live = ""
	}
	if allocator.KindOf(c.err) == allocator.Denied {
		f.Denied = c.err.Error()
	}
	var counting sync.WaitGroup
	if p.path != "" && p.name != "overview" { // which counts by itself
		counting.Go(func() { f.Problems = h.countProblems(ctx) }) // beside the page's own reads
	}
	shown := &call{Request: c.WithContext(ctx), began: time.Now(), live: c.live, failed: c.failed, err: c.err}
	var body any
	if p.ofRooms {
		shown.layout, err = h.layout(shown)
		shown.colour = colours(shown.layout.GetEver()...)
	}
	if err == nil {
		body, err = p.build(h, shown)
	}
	counting.Wait()
	if err != nil {
		ofOne := p.path == "" || c.PathValue("tag")+c.PathValue("id") != ""
		f.Err, f.Missing, f.Outage = err, ofOne && allocator.KindOf(err) == allocator.NotFound,
			allocator.KindOf(err) == allocator.Unavailable
		if f.Refused = allocator.KindOf(err) == allocator.Denied; f.Missing || f.Refused { // it has nothing to wait for
			f.Live = ""
		}
		return f, err
	}
	h.live.made(p, time.Now())
	f.Body, f.Filter = body, p.filled(shown)
	switch b := body.(type) {
	case *overviewView:
		f.Problems = len(b.GetProblems())
		h.problems.set(f.Problems)
	case *migrationsView:
		f.Refresh = b.refresh()
	case *listPage:
		b.Page, b.Filtered = p.name, f.Filter != nil && f.Filter.Given
	}
	if p.still != nil && p.still(c.URL.Query()) {
		f.Live = ""
	}
	return f, nil
}

// shownAt returns the path of the page that a request shows, also if it is a form.
func (p *page) shownAt(c *call) string {
	if c.Method != http.MethodPost || c.URL.Path == p.path {
		return c.URL.Path
	}
	return path.Dir(c.URL.Path)
}

// May reports whether the caller may make a call of the console, by its short name: for the
// page's tag if it has one, or for any tag.
func (f *frame) May(name string) bool {
	if tag := f.call.PathValue("tag"); tag != "" {
		return f.call.may(methodOf(name), tag)
	}
	return f.call.mayAny(name)
}

func methodOf(name string) string {
	return "/" + marchv1.ConsoleService_ServiceDesc.ServiceName + "/" + name
}

// mayAny reports whether the policy lets the caller make a call of the console, by its short
// name, for any tag or room.
func (c *call) mayAny(name string) bool {
	s := access.From(c.Context())
	return s == nil || s.May(methodOf(name))
}

// may reports whether the policy lets the caller make a call for a tag and rooms. Pages do
// not offer what it refuses; the console refuses it anyway.
func (c *call) may(method, tag string, rooms ...string) bool {
	return may(c.Context(), method, tag, rooms...)
}

func may(ctx context.Context, method, tag string, rooms ...string) bool {
	s := access.From(ctx)
	return s == nil || s.Allows(method, tag, rooms...)
}

package web_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console/web"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
)

// past is a console with a fixed history: of three rooms, with an outage and a migration.
type past struct {
	marchv1.UnimplementedConsoleServiceServer
	rooms []string
}

func (p *past) GetLayout(context.Context, *marchv1.GetLayoutRequest) (*marchv1.GetLayoutResponse, error) {
	return &marchv1.GetLayoutResponse{Ever: p.rooms}, nil
}

func (p *past) GetHistory(_ context.Context, r *marchv1.GetHistoryRequest) (*marchv1.GetHistoryResponse, error) {
	n := int(r.GetMinutes() / r.GetStep())
	first := time.Date(2030, 1, 2, 3, 0, 0, 0, time.UTC)
	at := func(point int) *timestamppb.Timestamp {
		return timestamppb.New(first.Add(time.Duration(point) * time.Duration(r.GetStep()) * time.Minute))
	}
	answer := &marchv1.GetHistoryResponse{
		First: timestamppb.New(first), Step: r.GetStep(), Silent: []string{"c/host-2"},
		Migrations: []*marchv1.HistoryMigration{{Id: "01K0000000000000000000000A",
			Began: at(n / 2), Ended: at(n/2 + 4)}},
	}
	for k, room := range p.rooms {
		s := &marchv1.HistorySeries{}
		for i := range n {
			rate, away := float32(1000*(k+1)+(i*37+k*100)%400), float32(0)
			if k == 0 && i >= 20 && i < 24 { // an outage
				rate, away = 0, 60
			}
			if k == 2 && i < 10 { // its instance had not started
				rate = -1
			}
			s.Rates, s.Reserves, s.EtcdLatencies = append(s.Rates, rate), append(s.Reserves, 600-away*float32(i-19)*2),
				append(s.EtcdLatencies, 0.002+float32(i%5)/1000)
			s.Failed, s.EtcdAway = append(s.Failed, away*3), append(s.EtcdAway, away)
		}
		tag := &marchv1.HistorySeries{Tag: "order", Rates: s.GetRates(),
			Reserves: s.GetReserves(), Failed: s.GetFailed()}
		none, lone := make([]float32, n), slices.Repeat([]float32{-1}, n)
		lone[n-1] = 7
		first := slices.Repeat([]float32{-1}, n)
		first[n-1] = 0
		tags := []*marchv1.HistorySeries{tag, {Tag: "fresh", Rates: first}, {Tag: "parcel", Rates: none},
			{Tag: "refund", Rates: none, Failed: []float32{3}}, {Tag: "lone", Rates: lone}}
		answer.Rooms = append(answer.Rooms, &marchv1.RoomHistory{Room: room, All: s, Tags: tags})
		answer.Tags = tags
	}
	return answer, nil
}

// GetTag returns a tag with a period, which has not begun.
func (p *past) GetTag(_ context.Context, r *marchv1.GetTagRequest) (*marchv1.GetTagResponse, error) {
	start, limit := int64(1), int64(allocator.MaxID)
	return &marchv1.GetTagResponse{Tag: &marchv1.Tag{
		Name: r.GetName(), Start: &start, Limit: &limit, Created: timestamppb.New(time.Unix(1.9e9, 0)),
		Reserve: durationpb.New(time.Minute),
		Period: &marchv1.Period{Unit: marchv1.PeriodUnit_PERIOD_UNIT_DAY, Digits: 9, TimeZone: "UTC",
			Current: "2030-01-02", First: 20300102000000001, End: 20300103000000000},
	}}, nil
}

func (p *past) ListAudit(context.Context, *marchv1.ListAuditRequest) (*marchv1.ListAuditResponse, error) {
	return &marchv1.ListAuditResponse{}, nil
}

// pastPages serves the pages of a fixed history.
func pastPages(t *testing.T, rooms ...string) string {
	t.Helper()
	return servePages(t, web.Config{Console: inProcess(&past{rooms: rooms})})
}

// servePages serves pages until the test ends, ten at once, and returns where.
func servePages(t *testing.T, cfg web.Config) string {
	t.Helper()
	var limits *serve.Metrics
	stopping := make(chan struct{})
	cfg.Stopping, cfg.Pages, cfg.CallerPages = stopping, limits.Limit(web.MaxPages, 10),
		limits.Limit(web.MaxCallerPages, 10)
	pages := must(web.New(cfg))(t)
	mux := http.NewServeMux()
	pages.Routes(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(stopping) })
	return server.URL
}

// TestHistoryPages: without scripts, the pages have the charts, what they mark, and every number in a table. A tag that
// an instance has just begun to count is no tag with a rate of 0; one that fails is shown. A console that knows the
// dashboard leads to its last 7 and 30 days, of the room that is shown. The page of a tag has its rate of the last hour
// by room, or says which tags have one; a tag with a period that nothing was leased of begins with the period's first
// ID.
func TestHistoryPages(t *testing.T) {
	at := pastPages(t, "a", "b", "c")
	long := servePages(t, web.Config{Console: inProcess(&past{rooms: []string{"a", "b"}}),
		Dashboard: "https://grafana.example.com/g/d/march?orgId=2"})
	for name, address := range map[string]string{
		"history": at + "/history", "history_room": at + "/history?span=24h&room=a&numbers=1",
		"history_dashboard": long + "/history?room=b", "history_tag": at + "/tags/order",
		"history_rare": at + "/tags/rare", "history_fresh": at + "/tags/fresh",
	} {
		_, page := get(t, address)
		screen(t, name, page)
	}
	for address, want := range map[string]string{
		"/history":              `class="band outage" x="200.0" width="40.0"`,
		"/history?room=c":       `class="band migration" x="300.0" width="40.0"`,
		"/history?room=a":       `points="236.0,1.4 240.0,1.4"`,
		"/history?room=b":       "03:21\nb: ",
		"/history?span=7d":      `Span: &#34;7d&#34;; allowed: 1h, 24h; a dashboard of Prometheus has more (--dashboard)`,
		"/history?room=nowhere": "&#34;nowhere&#34; has no range and no instance",
	} {
		if _, page := get(t, at+address); !strings.Contains(page, want) {
			t.Errorf("%s does not have %q:\n%s", address, want, page)
		}
	}
}

func TestCheckDashboard(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "https://grafana.example.com/d/march": true, "http://127.0.0.1:3000/d/march?orgId=1": true,
		"grafana.example.com/d/march": false, "javascript:alert(1)": false, "https://": false,
		"https://ann:secret@grafana.example.com/": false, "http://[::1": false,
	} {
		if err := web.CheckDashboard(address); (err == nil) != ok || err != nil &&
			allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// The history in a browser: keyboard and pointer reach its numbers.
func (b *browser) history(t *testing.T) {
	p := b.open(t, pastPages(t, "room-a", "room-b", "room-c"))
	p.visit("/history")
	eval[bool](p,
		`(() => { [...document.querySelectorAll("a")].find((a) => a.innerText === "All numbers as tables").focus(); return true })()`)
	p.keys("\r")
	p.says("Without the numbers")
	p.says("From (UTC)")
	p.until("the page has its scripts, which hear of the focus",
		`document.querySelector("#link").className`)
	readout := css("#plot-rates") + `.parentElement.querySelector(".readout").innerText`
	eval[bool](p, `(() => { document.querySelector("#plot-rates").focus(); return true })()`)
	p.until("the chart tells its latest point", readout+`.startsWith("03:59 · room-a: 1,183 · room-b: ")`)
	p.keys(kb.ArrowLeft)
	p.keys(kb.ArrowLeft)
	p.until("two points before", readout+`.startsWith("03:57 · room-a: ")`)
	p.until("a screen reader hears it",
		`document.querySelector("#plot-rates").getAttribute("aria-valuetext").startsWith("03:57\nroom-a: ")`)
	p.keys(kb.Home)
	p.until("the first one", readout+`.startsWith("03:00 · ")`)
	x, y := p.place(css("#plot-rates"))
	p.do(chromedp.MouseEvent("mouseMoved", x, y))
	p.until("the one under the pointer", `/^03:(29|30) · room-a: /.test(`+readout+`)`)
	eval[bool](p, `document.dispatchEvent(new CustomEvent("htmx:sse:after:message"))`)
	p.until("it stays when the page is updated", `/^03:(29|30) · room-a: /.test(`+readout+`)`)
	p.click(button("room-a"))
	p.says("Busiest tags of room-a")
}

// inProcess is a client of a console without a gate.
func inProcess(c marchv1.ConsoleServiceServer) marchv1.ConsoleServiceClient {
	return marchv1.NewConsoleServiceClient((*access.Gate)(nil).Conn(func(s grpc.ServiceRegistrar) {
		marchv1.RegisterConsoleServiceServer(s, c)
	}))
}

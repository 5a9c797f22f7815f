package serve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func TestNext(t *testing.T) {
	s := serveRoom(t)
	for _, tt := range []struct{ request, want string }{
		{"POST /v1/tags/order/next", `{"id":"1"}`},
		{"POST /v1/tags/order/next {}", `{"id":"2"}`},
		{"POST /v1/tags/order/next?count=5", `{"runs":[{"first":"3","count":"5"}]}`},
		{"POST /v1/tags/runs/next?count=1&contiguous=true", `{"runs":[{"first":"8","count":"1"}]}`},
		{"POST /v1/tags/runs/next?count=1&contiguous=false",
			`{"runs":[{"first":"9","count":"1"},{"first":"9223372036854775807","count":"1"}]}`},
		{`POST /v1/tags/order/next {"count":"5"}`, `{"runs":[{"first":"10","count":"5"}]}`},
		{`POST /v1/tags/runs/next {"tag":"runs","count":1,"contiguous":true}`,
			`{"runs":[{"first":"15","count":"1"}]}`},
		{"POST /v1/tags/last/next", `{"id":"9223372036854775807"}`},
		{`POST /v1/tags/order/lease {"count":"7"}`,
			`{"segment":{"version":"0","boundary":"0","range":null,"first":"9223372036854775806","count":"7"},"ttl":null,"serves":null,"limit":"0","time":null,"format":"","keyCheck":""}`},
		{"GET /v1/tags/order/ids/9223372036854775807",
			`{"origin":null,"version":"0","block":"0","residue":"9223372036854775807","room":"","rooms":[],"maybeLost":false,"unreadable":[],"time":null,"passed":false,"period":""}`},
	} {
		w := s.do(tt.request)
		if w.Code != 200 || w.Body.String() != tt.want+"\n" {
			t.Errorf("%s: got %d %s, want %s", tt.request, w.Code, w.Body, tt.want)
		}
		if got := w.Header(); got.Get("Cache-Control") != "no-store" || got.Get("Content-Type") != "application/json" {
			t.Errorf("%s: headers %v", tt.request, got)
		}
	}
}

// An unforeseen error is logged, by the hot route and by the gateway, and then not again for a
// while. Errors that callers cause are not logged.
func TestLogsUnforeseen(t *testing.T) {
	for _, lost := range []string{"POST /v1/tags/lost/next", `POST /v1/tags/lost/next {"count":2}`,
		`POST /v1/tags/lost/lease {"count":1}`} {
		s := serveRoom(t)
		s.do("POST /v1/tags/unknown/next")
		s.do("POST /v1/tags/-/next")
		s.do(`POST /v1/tags/order/lease {"count":0}`)
		if s.log.Len() > 0 {
			t.Errorf("errors of callers were logged: %s", s.log)
		}
		for range 3 {
			if w := s.do(lost); w.Code != 500 {
				t.Errorf("%s: got %d %s", lost, w.Code, w.Body)
			}
		}
		if got := s.log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "request failed") ||
			!strings.Contains(got, "nobody foresaw this") {
			t.Errorf("%s: logged %q", lost, got)
		}
	}
}

// A lease's proofs are no part of a URL, which logs have. The query is taken for one version more, with a warning.
func TestLeaseOfQuery(t *testing.T) {
	s := serveRoom(t)
	const proof = "a-random-text-of-the-caller"
	var want *marchv1.LeaseRequest
	for _, request := range []string{
		"POST /v1/tags/order/lease?count=7&window.nonce=n&window.held.worker=3&window.age=2.5s" +
			"&window.held.nonce=" + proof,
		`POST /v1/tags/order/lease {"count":"7","window":{"nonce":"n","age":"2.5s","held":{"worker":3,"nonce":"` +
			proof + `"}}}`,
	} {
		s.log.Reset()
		if w := s.do(request); w.Code != 200 {
			t.Errorf("%s: %d %s", request, w.Code, w.Body)
		}
		got := s.ids.lease.Load()
		if want == nil {
			want = got
		}
		if !proto.Equal(got, want) || got.GetWindow().GetHeld().GetNonce() != proof {
			t.Errorf("%s: got %v, want %v", request, got, want)
		}
		if warned := strings.Contains(s.log.String(), "came in its URL"); warned != strings.Contains(request, "?") ||
			strings.Contains(s.log.String(), proof) {
			t.Errorf("%s: logged %q", request, s.log)
		}
	}
}

// What is not of a request's resource comes in its body, too. The query is taken for one version more, with a warning.
func TestFieldsBesideTheResource(t *testing.T) {
	s := serveRoom(t)
	want := &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", Limit: new(int64(5000))}, Confirm: true,
		IfRevision: 7}
	var warned []bool
	for _, request := range []string{
		`PATCH /v1/tags/order {"limit":"5000","confirm":true,"ifRevision":"7"}`,
		`PATCH /v1/tags/order {"limit":"5000","confirm":true,"if_revision":7}`,
		`PATCH /v1/tags/order?confirm=true {"limit":"5000","ifRevision":"7"}`,
		`PATCH /v1/tags/order?confirm=true&if_revision=7 {"limit":"5000"}`,
	} {
		s.log.Reset()
		s.room.update = nil
		if w := s.do(request); w.Code != 200 || !proto.Equal(s.room.update, want) {
			t.Errorf("%s: %d %s: %v", request, w.Code, w.Body, s.room.update)
		}
		if strings.Contains(s.log.String(), "came in its URL") {
			warned = append(warned, strings.Contains(request, "?"))
		}
	}
	if !slices.Equal(warned, []bool{true}) { // once in a while
		t.Errorf("warned: %v", warned)
	}
	for request, why := range map[string]string{
		`PATCH /v1/tags/order {"confirm":"yes"}`:                                         "confirm: ",
		`PATCH /v1/tags/order {"confirm":null}`:                                          "confirm: ",
		`PATCH /v1/tags/order {"ifRevision":"007"}`:                                      "ifRevision: ",
		`PATCH /v1/tags/order?confirm=true {"confirm":true}`:                             "confirm: given twice",
		`PATCH /v1/tags/order?if_revision=1 {"ifRevision":"1"}`:                          "ifRevision: given twice",
		`PATCH /v1/tags/order {"ifRevision":"1","if_revision":"1"}`:                      "ifRevision: given twice",
		`PATCH /v1/tags/order {"ifRevision":"1","minstep":"1"}`:                          "minstep",
		`PATCH /v1/tags/order {"limit":"1","limit":"2","confirm":true}`:                  "limit: given twice",
		`PATCH /v1/tags/order {"limit":"1","confirm":false,"confirm":true}`:              "confirm: given twice",
		`PATCH /v1/tags/order {"limit":"1","dryRun":true,"dryRun":false}`:                "dryRun: given twice",
		`PATCH /v1/tags/order {"limit":"1","min_step":"5","minStep":"6","confirm":true}`: "min",
		`PATCH /v1/tags/order {"dryRun":true,"name":"other","limit":"5"}`:                "leave it out of the body",
	} {
		s.room.update = nil
		if w := s.do(request); w.Code != 400 || !strings.Contains(w.Body.String(), why) || s.room.update != nil {
			t.Errorf("%s: %d %s", request, w.Code, w.Body)
		}
	}
}

// answer is the body of an error.
type answer struct {
	Code, Reason, Message string
	Metadata              map[string]string
}

func TestRefuses(t *testing.T) {
	s := serveRoom(t)
	const invalid = "INVALID_ARGUMENT invalid"
	long := strings.Repeat("x", 5000)
	for _, tt := range []struct {
		request string
		headers []string
		status  int
		code    string // and reason
		says    string
	}{
		// Methods: no ID without a POST.
		{"GET /v1/tags/order/next", nil, 405, "UNIMPLEMENTED ", "no GET"},
		{"GET /v1/tags/order/next?count=5", nil, 405, "UNIMPLEMENTED ", "allowed: POST"},
		{"HEAD /v1/tags/order/next", nil, 405, "UNIMPLEMENTED ", "allowed: POST"},
		{"GET /v1/tags/order/lease?count=5", nil, 405, "UNIMPLEMENTED ", "no GET"},
		{"PUT /v1/tags/order/next", nil, 405, "UNIMPLEMENTED ", "PUT"},
		{"OPTIONS /v1/tags/order/next", nil, 405, "UNIMPLEMENTED ", "OPTIONS"},
		{"POST /v1/chains", nil, 405, "UNIMPLEMENTED ", "allowed: GET, HEAD"},
		{"POST /v1/chains", []string{"X-HTTP-Method-Override: GET", "Content-Type: application/x-www-form-urlencoded"},
			405, "UNIMPLEMENTED ", "POST"},
		{"GET /v1/tags/order/next", []string{"X-HTTP-Method-Override: POST"}, 405, "UNIMPLEMENTED ", "GET"},
		// Paths.
		{"POST /v1/", nil, 404, "NOT_FOUND ", "/v1/openapi.json"},
		{"POST /v1/tags/order/next/", nil, 404, "NOT_FOUND ", "/v1/tags/order/next/"},
		{"POST /v1/tags/order", nil, 405, "UNIMPLEMENTED ", "PATCH"},
		{"PATCH /v1/tags/", nil, 404, "NOT_FOUND ", "no such path"},
		{"POST /v1/tags/order:next", nil, 404, "NOT_FOUND ", "no such path"},
		{"POST /v1/tags/order:", nil, 404, "NOT_FOUND ", "no such path"},
		{"POST /v1/tags/:skip {}", nil, 404, "NOT_FOUND ", "no such path"},
		{"POST /v1/tags/order%3Askip {}", nil, 405, "UNIMPLEMENTED ", "PATCH"},
		{"POST /v1/" + long, nil, 404, "NOT_FOUND ", "no such path"},
		{"POST /v1/tags/Order/next", nil, 400, invalid, `"Order"`},
		{"POST /v1/tags/" + long + "/next", nil, 400, invalid, "5000 bytes"},
		{"POST /v1/tags/a%2Fb/next", nil, 400, invalid, `"a/b"`},
		{"POST /v1/tags/%2e%2e/next", nil, 400, invalid, `".."`},
		{"POST /v1/tags/%ff/next", nil, 400, invalid, `\xff`},
		{"POST /v1/tags/%00/next", nil, 400, invalid, `\x00`},
		{"GET /v1/tags/a%2Fb/ids/1", nil, 400, invalid, `"a/b"`},
		{"GET /v1/tags/a%252Fb/ids/1", nil, 400, invalid, `a%2Fb`},
		{"GET /v1/tags/%ff/ids/1", nil, 400, invalid, `\xff`},
		// Numbers: one way to write them.
		{"POST /v1/tags/order/next?count=", nil, 400, invalid, `count: ""; allowed: a decimal number`},
		{"POST /v1/tags/order/next?count=0", nil, 400, invalid, "count: 0; allowed: 1 to 100000"},
		{"POST /v1/tags/order/next?count=-1", nil, 400, invalid, "count: -1"},
		{"POST /v1/tags/order/next?count=100001", nil, 400, invalid, "count: 100001"},
		{"POST /v1/tags/order/next?count=99999999999999999999", nil, 400, invalid, `"99999999999999999999"`},
		{"POST /v1/tags/order/next?count=" + long, nil, 400, invalid, `"xxx`},
		{"POST /v1/tags/order/next?count=0x10", nil, 400, invalid, `"0x10"`},
		{"POST /v1/tags/order/next?count=010", nil, 400, invalid, `"010"`},
		{"POST /v1/tags/order/next?count=1e3", nil, 400, invalid, `"1e3"`},
		{"POST /v1/tags/order/next?count=%2B1", nil, 400, invalid, `"+1"`},
		{"POST /v1/tags/order/lease?count=010", nil, 400, invalid, `count: "010"`},
		{"POST /v1/tags/order/lease", nil, 400, invalid, "count: 0"},
		{"POST /v1/tags/order/lease?tag=other", nil, 400, invalid, `unknown parameter "tag"; allowed: count, window.age`},
		{`POST /v1/tags/order/lease?count=1 {"count":"1"}`, nil, 400, invalid, "allowed: a body alone"},
		{"GET /v1/tags/order/ids/010", nil, 400, invalid, `id: "010"`},
		{"GET /v1/tags/order/ids/0x1F", nil, 400, invalid, `id: "0x1F"`},
		{"GET /v1/tags/order/ids/1%30", nil, 400, invalid, `id: "1%30"`},
		{"GET /v1/tags/order/ids/9223372036854775808", nil, 400, invalid, "64 bits"},
		{"GET /v1/chains?pageSize=2147483648", nil, 400, invalid, "32 bits"},
		// Queries.
		{"POST /v1/tags/order/next?count=1&count=1", nil, 400, invalid, "count: given twice"},
		{"POST /v1/tags/order/next?n=1", nil, 400, invalid, `unknown parameter "n"; allowed: contiguous, count, texts`},
		{"POST /v1/tags/order/next?contiguous=true", nil, 400, invalid, "count: none; allowed: 1 to 100000"},
		{"POST /v1/tags/order/next?count=1&contiguous=yes", nil, 400, invalid,
			`contiguous: "yes"; allowed: true or false`},
		{"POST /v1/tags/order/next?count=%zz", nil, 400, invalid, "query: invalid URL escape"},
		{"POST /v1/tags/order/next?a;b", nil, 400, invalid, "query: invalid semicolon"},
		{"GET /v1/chains?size=1", nil, 400, invalid, `unknown parameter "size"; allowed: pageSize, pageToken`},
		{"GET /v1/chains?pageSize=1&page_size=1", nil, 400, invalid, "pageSize: given twice"},
		{"GET /v1/chains?pageSize%5Bx%5D=1", nil, 400, invalid, "unknown parameter"},
		{"GET /v1/chains/order?tag=other", nil, 400, invalid, `unknown parameter "tag"; allowed: no parameter`},
		// Bodies.
		{"POST /v1/tags/order/next count=5", []string{"Content-Type: application/x-www-form-urlencoded"}, 415,
			invalid, "application/json"},
		{"POST /v1/tags/order/next {}", []string{"Content-Type: text/plain"}, 415, invalid, `"text/plain"`},
		{"POST /v1/tags/order/next {}", []string{"Content-Type: application/json; charset=latin1"},
			415, invalid, "UTF-8"},
		{"POST /v1/tags/order/next {}", []string{"Content-Type: application/json", "Content-Type: text/plain"}, 415,
			invalid, "application/json, text/plain"},
		{"POST /v1/tags/order/next {}", []string{"Content-Encoding: gzip"}, 415, invalid, `"gzip"; allowed: none`},
		{`POST /v1/tags/order/next {"n":5}`, nil, 400, invalid, "count: none; allowed: 1 to 100000"},
		{`POST /v1/tags/order/next {"count":5,"n":1}`, nil, 400, invalid, `body: (line 1:12): unknown field "n"`},
		{`POST /v1/tags/order/next {"count":0}`, nil, 400, invalid, "count: 0; allowed: 1 to 100000"},
		{`POST /v1/tags/order/next {"count":1,"tag":"other"}`, nil, 400, invalid, `"order" in the path`},
		{`POST /v1/tags/order/next?count=1 {"count":1}`, nil, 400, invalid, "allowed: a body alone"},
		{"POST /v1/tags/order/next [1]", nil, 400, invalid, "not a JSON object"},
		{"POST /v1/tags/order/next null", nil, 400, invalid, "not a JSON object"},
		{"POST /v1/tags/order/next {} {}", nil, 400, invalid, "invalid character"},
		{"POST /v1/tags/order/next {", nil, 400, invalid, "unexpected end"},
		{"POST /v1/tags/order/next " + strings.Repeat("[", 900), nil, 400, invalid, "no JSON"},
		{"POST /v1/tags/order/next " + strings.Repeat(" ", maxBody+1), nil, 413, invalid, "allowed: 1000 bytes"},
		{"PATCH /v1/tags/order " + strings.Repeat(" ", maxBody+1), nil, 413, invalid, "allowed: 1000 bytes"},
		{"PATCH /v1/tags/order []", nil, 400, invalid, "not a JSON object"},
		{`PATCH /v1/tags/order {"minStep":"1","minStep":"2"}`, nil, 400, invalid, "body: (line 1:16): duplicate field"},
		{`PATCH /v1/tags/order {"nothing":1}`, nil, 400, invalid, `body: (line 1:2): unknown field "nothing"`},
		{`PATCH /v1/tags/order {"minStep":1.5}`, nil, 400, invalid, "body: (line 1:12): invalid value for int64"},
		{"PATCH /v1/tags/order {\"failure\":\"\xff\"}", nil, 400, invalid, "body:"},
		{`PATCH /v1/tags/order {"name":"other"}`, nil, 400, invalid, `name: "other" in the body, "order" in the path`},
		{`POST /v1/tags/order:skip {"name":"other","to":"5"}`, nil, 400, invalid, `name: "other" in the body`},
		{`GET /v1/chains {"pageSize":1}`, nil, 400, invalid, `unknown field "pageSize"`},
		// Headers.
		{"PATCH /v1/tags/order {}", []string{"March-Actor: \xff"}, 400, invalid, "printable ASCII"},
		{"PATCH /v1/tags/order {}", []string{"March-Actor: ann", "March-Actor: bob"}, 400, invalid, "given twice"},
		{"GET /v1/chains", []string{"Grpc-Timeout: soon"}, 400, invalid, "timeout"},
		// Other origins.
		{"POST /v1/tags/order/next", []string{"Origin: https://elsewhere.example"}, 403,
			"PERMISSION_DENIED ", "another origin"},
		{"POST /v1/tags/order/next", []string{"Sec-Fetch-Site: cross-site"}, 403,
			"PERMISSION_DENIED ", "another origin"},
		{"PATCH /v1/tags/order {}", []string{"Sec-Fetch-Site: same-site"}, 403, "PERMISSION_DENIED ", "another origin"},
		// Errors of the services.
		{"POST /v1/tags/unknown/next", nil, 404, "NOT_FOUND not_found", "unknown"},
		{"POST /v1/tags/unknown/next?count=3", nil, 404, "NOT_FOUND not_found", "unknown"},
		{"POST /v1/tags/limit/next", nil, 429, "RESOURCE_EXHAUSTED exhausted", "20"},
		{"POST /v1/tags/no-range/next", nil, 503, "UNAVAILABLE no_range", "layout version 2"},
		{"POST /v1/tags/away/next", nil, 503, "UNAVAILABLE unavailable", "away"},
		{"GET /v1/chains/order", nil, 503, "UNAVAILABLE ", "from elsewhere"},
		{"POST /v1/tags/order:prescale {}", nil, 501, "UNIMPLEMENTED ", "PrescaleTag"},
		{"POST /v1/tags/panic/next", nil, 500, "INTERNAL internal", "log"},
		{"GET /v1/chains/panic", nil, 500, "INTERNAL internal", "log"},
	} {
		name := tt.request[:min(len(tt.request), 80)]
		before := s.ids.last.Load() + s.ids.leased.Load()
		w := s.do(tt.request, tt.headers...)
		var got answer
		decoder := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&got); err != nil {
			t.Errorf("%s: %v: %s", name, err, w.Body)
			continue
		}
		if w.Code != tt.status || got.Code+" "+got.Reason != tt.code || !strings.Contains(got.Message, tt.says) {
			t.Errorf("%s: got %d %s, want %d %s %q", name, w.Code, w.Body, tt.status, tt.code, tt.says)
		}
		if n := w.Body.Len(); n > 3000 {
			t.Errorf("%s: an answer of %d bytes", name, n)
		}
		h := w.Header()
		if h.Get("Cache-Control") != "no-store" || h.Get("Content-Type") != "application/json" ||
			h.Get("X-Content-Type-Options") != "nosniff" ||
			(h.Get("Allow") != "") != (w.Code == 405) || (h.Get("Retry-After") != "") != (w.Code == 503) {
			t.Errorf("%s: headers %v", name, h)
		}
		for header := range h {
			if strings.HasPrefix(header, "Access-Control-") {
				t.Errorf("%s: CORS: %s", name, header)
			}
		}
		if after := s.ids.last.Load() + s.ids.leased.Load(); after != before {
			t.Errorf("%s: the request took IDs: %d, then %d", name, before, after)
		}
	}
	if got := strings.Count(s.log.String(), "at the disco"); got != 2 {
		t.Errorf("2 panics were logged %d times: %s", got, s.log)
	}
	if got := s.do("POST /v1/tags/away/next").Body.String(); !strings.Contains(got,
		`"metadata":{"since":"1970-01-01T00:00:00Z","tag":"away"}`) {
		t.Errorf("away: %s", got)
	}
}

// TestPatterns: handlers around the mux see the route that a request took.
func TestPatterns(t *testing.T) {
	s := serveRoom(t)
	for request, want := range map[string]string{
		"POST /v1/tags/order/next":         "POST /v1/tags/{tag}/next",
		"POST /v1/tags/order/lease":        "POST /v1/tags/{tag}/lease",
		"POST /v1/tags/order/lease?x=1":    "POST /v1/tags/{tag}/lease",
		"GET /v1/tags/order/ids/3":         "GET /v1/tags/{tag}/ids/{id}",
		"HEAD /v1/chains":                  "GET /v1/chains",
		"POST /v1/tags/order:skip {}":      "POST /v1/tags/{name}:skip",
		"GET /v1/chains/panic":             "GET /v1/chains/{tag}",
		"GET /v1/openapi.json":             "GET /v1/openapi.json",
		"GET /v1/tags/order/lease":         "/v1/",
		"INVENTED /v1/chains":              "/v1/",
		"GET /v1/whatever/a/caller/thinks": "/v1/",
	} {
		method, target, _ := strings.Cut(request, " ")
		target, body, _ := strings.Cut(target, " ")
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		if s.ServeHTTP(httptest.NewRecorder(), r); r.Pattern != want {
			t.Errorf("%s: pattern %q, want %q", request, r.Pattern, want)
		}
	}
}

// TestRedirects: net/http cleans paths by a redirect that keeps the method.
func TestRedirects(t *testing.T) {
	w := serveRoom(t).do("POST /v1//tags/order/next")
	if got := w.Header().Get("Location"); w.Code != http.StatusTemporaryRedirect || got != "/v1/tags/order/next" {
		t.Errorf("got %d to %q", w.Code, got)
	}
}

// TestGatewayCalls checks the context and the message that a service gets: the caller, the
// deadline and the fields.
func TestGatewayCalls(t *testing.T) {
	s := serveRoom(t)
	w := s.do(`PATCH /v1/tags/order {"minStep":"5","max_step":7,"name":"order"}`, "March-Actor: ann", "X-Secret: x",
		"Grpc-Metadata-March-Actor: mallory",
		"Content-Type: application/json; charset=UTF-8")
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if got := s.room.update.GetTag(); got.GetName() != "order" || got.GetMinStep() != 5 ||
		got.GetMaxStep() != 7 || got.Start != nil {
		t.Errorf("the message: %v", got)
	}
	md, _ := metadata.FromIncomingContext(s.room.ctx)
	if diff := cmp.Diff([]string{"ann"}, md.Get(api.ActorHeader)); diff != "" || md.Get("x-secret") != nil {
		t.Errorf("metadata %v", md)
	}
	if until, ok := s.room.ctx.Deadline(); !ok || time.Until(until) > 10*time.Second {
		t.Errorf("deadline %v", until)
	}
	if w := s.do("GET /v1/chains?page_size=3&pageToken=a%26b"); w.Code != 200 || s.room.list.GetPageSize() != 3 ||
		s.room.list.GetPageToken() != "a&b" {
		t.Errorf("got %v %s", s.room.list, w.Body)
	}
	if w := s.do("HEAD /v1/chains"); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
}

// TestTimes: a call that does not end is ended, with an answer.
func TestTimes(t *testing.T) {
	for _, request := range []string{"POST /v1/tags/slow/next", "POST /v1/tags/slow/next?count=5",
		"GET /v1/chains/slow"} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			w := serveRoom(t).do(request)
			if took := time.Since(began); took < 5*time.Second || took >= 10*time.Second {
				t.Errorf("%s: ended after %v", request, took)
			}
			if w.Code != http.StatusGatewayTimeout || !strings.Contains(w.Body.String(), "DEADLINE_EXCEEDED") {
				t.Errorf("%s: %d %s", request, w.Code, w.Body)
			}
		})
	}
	// If a client goes away, its call ends.
	s := serveRoom(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/tags/slow/next", nil).WithContext(ctx))
	if w.Code != 499 {
		t.Errorf("a client that went away: %d %s", w.Code, w.Body)
	}
}

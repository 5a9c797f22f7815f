package room_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster"
)

// request sends "POST /path body" and returns the answer's status and body.
func (i *instance) request(line string) string {
	i.Helper()
	method, rest, _ := strings.Cut(line, " ")
	path, body, _ := strings.Cut(rest, " ")
	r, err := http.NewRequestWithContext(bg, method, "http://"+i.HTTP+path, strings.NewReader(body))
	if err != nil {
		i.Fatal(err)
	}
	w, err := testcluster.Client().Do(r)
	if err != nil {
		i.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		i.Error(err)
	}
	return fmt.Sprintf("%d %s", w.StatusCode, text)
}

// TestHTTP asks a room over HTTP for the same answers as over gRPC.
func TestHTTP(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		c.tag(func(s *record.TagSettings) { s.Limit = 3 }, "small")
		a := c.start("a", "a1", nil)
		for _, tt := range []struct{ request, want string }{
			{"POST /v1/tags/order/next", `200 {"id":"1"}`},
			{"POST /v1/tags/order/next?count=50",
				`200 {"runs":[{"first":"2","count":"48"},{"first":"100","count":"2"}]}`},
			{`POST /v1/tags/order/lease {"count":"3"}`,
				`200 {"segment":{"version":"1","boundary":"100","range":{"lower":"0","upper":"50"},"first":"102","count":"3"}`},
			{"GET /v1/tags/order/ids/3", `200 {"origin":{"room":"a",`},
			{"GET /v1/chains/order", `200 {"chain":{"tag":"order","room":"a","instance":"a1","issued":"54",`},
			{"GET /v1/chains", `200 {"chains":[{"tag":"order",`},
			{`PATCH /v1/tags/order {"minStep":"7"}`,
				`200 {"tag":{"name":"order","start":"1","limit":"9223372036854775807","minStep":"7"`},
			{`POST /v1/tags/order:skip {"to":"777"}`, `"skips":{"a":"777"}`}, // this room alone
			{`POST /v1/tags/order:prescale {"step":"5","duration":"60s"}`, `"prescale":"5"`},
			{"POST /v1/tags/small/next?count=2", `200 {"runs":[{"first":"1","count":"2"}]}`},
			{"POST /v1/tags/small/next",
				`429 {"code":"RESOURCE_EXHAUSTED","reason":"exhausted","message":"lease of tag small`},
			{"POST /v1/tags/unknown/next", `404 {"code":"NOT_FOUND","reason":"not_found","message":"tag unknown`},
			{"POST /v1/tags/order/next?count=100001",
				`400 {"code":"INVALID_ARGUMENT","reason":"invalid","message":"count: 100001; allowed: 1 to 100000"}`},
			{"GET /v1/tags/order/next", `405 {"code":"UNIMPLEMENTED","message":"GET is not for`},
			{"GET /v1/openapi.json", `200 {`},
		} {
			if got := a.request(tt.request); !strings.Contains(got, tt.want) {
				t.Errorf("%s: got %s, want %s", tt.request, got, tt.want)
			}
		}
		entries, _, err := c.Admin.Audits(bg, "", 1)
		if err != nil || len(entries) != 1 || entries[0].Actor != "unknown from 127.0.0.1" {
			t.Errorf("audit: %v, %v", entries, err)
		}
	})
}

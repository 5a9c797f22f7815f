package serve_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzRequest sends a room any request that net/http accepts. IDs are issued only by a POST that
// succeeds, and exactly as many as it returns. An error has the form of march.v1.Error.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"POST /v1/tags/order/next HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/order/next?count=5 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/order/next?count=5&count=6 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/order/next?count=100000 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/order/next?count=9223372036854775808 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/order/next?count=%31 HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/order/next?%63ount=1;a HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/order/next HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		"POST /v1/tags/order/next HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{\"count\":",
		"POST /v1/tags/order/next HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"POST /v1/tags/order/next HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n{}",
		"POST /v1/tags/order/next HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
		"POST /v1/tags/order/next HTTP/1.1\r\nHost: x\r\nOrigin: http://y\r\n\r\n",
		"POST /v1/tags/%6frder/next HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/a%2Fb%00/next HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/../order//next HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST http://x/v1/tags/order/next HTTP/1.0\r\n\r\n",
		"GET /v1/tags/order/next HTTP/1.1\r\nHost: x\r\nX-HTTP-Method-Override: POST\r\n\r\n",
		"HEAD /v1/tags/order/next HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT /v1/tags/order/next HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/tags/order/lease?count=7 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/tags/order/lease?count=7 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/tags/order/ids/007 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/tags/order/ids/7 HTTP/1.1\r\nHost: x\r\nGrpc-Timeout: 1n\r\n\r\n",
		"PATCH /v1/tags/order HTTP/1.1\r\nHost: x\r\nMarch-Actor: \xff\r\nContent-Length: " +
			"15\r\n\r\n{\"minStep\":\"1\"}",
		"POST /v1/tags/order:skip HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{\"to\":1e3}",
		"GET /v1/chains?page_size=1&pageToken=%ff HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	s := serveRoom(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		// the services have these tags for other tests
		if err != nil || strings.Contains(r.URL.Path, "slow") || strings.Contains(r.URL.Path, "panic") {
			return
		}
		r.RemoteAddr = "192.0.2.1:1234"
		method, before, leasedBefore := r.Method, s.ids.last.Load(), s.ids.leased.Load()
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		logged := s.log.String() // fields of a lease in the URL are warned of
		s.log.Reset()
		if w.Code == http.StatusInternalServerError || strings.Contains(logged, "[ERROR]") {
			t.Fatalf("%d %s %s", w.Code, w.Body, logged)
		}
		leased := s.ids.leased.Load() - leasedBefore
		issued := s.ids.last.Load() - before + leased
		if w.Code != http.StatusOK && issued != 0 {
			t.Errorf("%d, but %d IDs were issued", w.Code, issued)
		}
		if issued != 0 && method != http.MethodPost {
			t.Errorf("a %s issued IDs", method)
		}
		if w.Header().Get("Content-Type") != "application/json" {
			if w.Code/100 == 2 || issued != 0 {
				t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
			}
			return // net/http's own: outside /v1/, or a redirect to a clean path
		}
		if w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("headers %v", w.Header())
		}
		if w.Code != http.StatusOK {
			var got answer
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Code == "" ||
				got.Message == "" || w.Body.Len() > 20_000 {
				t.Errorf("%d %s %v", w.Code, w.Body, err)
			}
			return
		}
		if got := leased + count(t, w.Body); got != issued && !strings.Contains(r.URL.Path, "last") &&
			!strings.Contains(r.URL.Path, "runs") {
			t.Errorf("%d IDs were issued, %d answered", issued, got)
		}
	})
}

// count returns how many IDs an answer of the hot route has.
func count(t *testing.T, body io.Reader) (n int64) {
	t.Helper()
	var got struct {
		ID   string
		Runs []struct {
			Count int64 `json:",string"`
		}
	}
	if err := json.NewDecoder(body).Decode(&got); err != nil {
		t.Error(err)
	}
	if got.ID != "" {
		n = 1
	}
	for _, run := range got.Runs {
		n += run.Count
	}
	return n
}

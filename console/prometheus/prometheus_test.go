package prometheus_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/console/history"
	"github.com/march-id/march/console/prometheus"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// span is two days in points of an hour.
func span() history.Span {
	return prometheus.SpanOf(time.Now(), 2*24*60, 60)
}

func newClient(t *testing.T, cfg prometheus.Config) *prometheus.Client {
	t.Helper()
	c, err := prometheus.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestValidate(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const http = "http://prometheus:9090"
	for _, test := range []struct {
		cfg  prometheus.Config
		want string // of the error; empty for none
	}{
		{prometheus.Config{}, ""},
		{prometheus.Config{URL: http}, ""},
		{prometheus.Config{URL: "https://example.com/prom/", TokenFile: token}, ""},
		{prometheus.Config{URL: "http://[::1]:9090", TokenFile: token}, ""},
		{prometheus.Config{URL: "http://localhost:9090", TokenFile: token}, ""},
		{prometheus.Config{URL: "prometheus:9090"},
			`prometheus: "prometheus:9090"; allowed: an address such as http://prometheus:9090`},
		{prometheus.Config{URL: "http://"}, "allowed: an address such as"},
		{prometheus.Config{URL: http + "?a=b"}, "allowed: an address such as"},
		{prometheus.Config{URL: "http://me:secret@prometheus:9090"}, `"http://me:xxxxx@prometheus:9090"; allowed:`},
		{prometheus.Config{URL: "http://me:secret@pro metheus:9090"}, `"an address that cannot be parsed"`},
		{prometheus.Config{TokenFile: token}, "prometheus-token-file: "},
		{prometheus.Config{CA: "ca.pem"}, `prometheus-ca: "ca.pem", without a Prometheus; give --prometheus URL`},
		{prometheus.Config{Cluster: "prod"}, `prometheus-cluster: "prod", without a Prometheus`},
		{prometheus.Config{URL: http, TokenFile: token},
			"to which the token would go without TLS; allowed: https, or an address of this machine"},
		{prometheus.Config{URL: "https://example.com", TokenFile: token + "2"}, "prometheus-token-file: open "},
	} {
		err := test.cfg.Validate()
		if test.want == "" && err != nil || test.want != "" && (allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v; want %q", test.cfg, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: the error has the password: %v", test.cfg, err)
		}
	}
	if c, err := prometheus.New(prometheus.Config{}, nil); c != nil || err != nil {
		t.Errorf("without an address: %v, %v", c, err)
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct {
		back, step int32
		want       string
	}{
		{7 * 24 * 60, 120, ""}, {30 * 24 * 60, 360, ""}, {1500, 60, ""},
		{1440, 60, "minutes: 1440; allowed of a Prometheus: 1441 to 43200"},
		{43201, 60, "minutes: 43201"},
		{10080, 15, "step: 15; allowed beyond 24 hours: 60 to 1440, and a divisor of minutes (10080)"},
		{10080, 0, "step: 0"}, {10080, 61, "step: 61"}, {43200, 2880, "step: 2880"},
		{43200, 60, "step: 60; allowed for 43200 minutes: 216 or more, so that there are 200 points at most"},
	} {
		err := prometheus.Check(test.back, test.step)
		if test.want == "" && err != nil || test.want != "" && (allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), test.want)) {
			t.Errorf("%d minutes in steps of %d: %v; want %q", test.back, test.step, err, test.want)
		}
	}
	now := time.Date(2030, 1, 9, 15, 30, 1, 0, time.UTC)
	s := prometheus.SpanOf(now, 7*24*60, 120)
	if want := time.Date(2030, 1, 2, 14, 0, 0, 0, time.UTC); !s.First.Equal(want) || s.Points != 84 || s.Step != 120 {
		t.Errorf("points %+v, want from %v on", s, want)
	}
}

// Each error of a Prometheus says what is wrong and what to do, and has the kind Unavailable.
func TestErrors(t *testing.T) {
	answers := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, test := range map[string]struct {
		serve http.HandlerFunc
		want  []string
	}{
		"refuses": {answers(401, "who are you"), []string{"refuses this console (401 Unauthorized)",
			"--prometheus-token-file"}},
		"forbids": {answers(403, ""), []string{"(403 Forbidden)"}},
		"cannot": {answers(422,
			`{"status":"error","errorType":"execution","error":"query processing would load too many samples"}`),
			[]string{"(execution): query processing would load too many samples",
				"the last 24 hours need no Prometheus"}},
		"long reason": {answers(400, `{"status":"error","error":"`+strings.Repeat("é", 1000)+`"}`),
			[]string{"(error): ééé"}},
		"another page": {answers(200, "<html>hello</html>"),
			[]string{"not as a Prometheus does (200 OK)", "the address below which /api/v1/query_range is"}},
		"no such page": {answers(404, "404 page not found"), []string{"(404 Not Found)"}},
		"a login": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/login", http.StatusFound)
		}, []string{"(302 Found)"}},
		"a scalar": {answers(200, `{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`),
			[]string{"not as a Prometheus does"}},
		"no number": {answers(200,
			`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"x"]]}]}}`),
			[]string{"not as a Prometheus does"}},
		"too large": {answers(200, strings.Repeat(" ", 8<<20+1)), []string{"more than 8 MiB; lower --metrics-tags"}},
		"hangs up": {func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}, []string{"does not answer: EOF; check that it runs"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.serve)
			defer server.Close()
			_, err := newClient(t, prometheus.Config{URL: server.URL}).History(t.Context(), span())
			if allocator.KindOf(err) != allocator.Unavailable ||
				!strings.Contains(err.Error(), "prometheus: "+server.URL) && name != "too large" {
				t.Errorf("%v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("%v does not have %q", err, want)
				}
			}
			if len(fmt.Sprint(err)) > 600 || strings.Contains(fmt.Sprint(err), "query=") {
				t.Errorf("the error is long: %v", err)
			}
		})
	}
	t.Run("is not there", func(t *testing.T) {
		server := httptest.NewServer(answers(200, ""))
		server.Close()
		_, err := newClient(t, prometheus.Config{URL: server.URL}).History(t.Context(), span())
		if allocator.KindOf(err) != allocator.Unavailable ||
			!strings.Contains(err.Error(), "connection refused; check that it runs, and that this console reaches it") {
			t.Error(err)
		}
	})
	t.Run("is slow", func(t *testing.T) {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}))
		defer server.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := newClient(t, prometheus.Config{URL: server.URL}).History(ctx, span())
		if allocator.KindOf(err) != allocator.Unavailable ||
			!strings.Contains(err.Error(), "did not answer within 6s") {
			t.Error(err)
		}
	})
}

// A token is sent, over a TLS whose CA is a file. A redirect is not followed with it, and an
// answer is kept for some time.
func TestToken(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.Path != "/prom/api/v1/query_range" ||
			r.URL.Query().Get("timeout") != "6s" {
			t.Errorf("asked %s with %q", r.URL, r.Header)
		}
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := prometheus.Config{URL: server.URL + "/prom/", TokenFile: write("token", []byte("secret\n"))}
	_, err := newClient(t, cfg).History(t.Context(), span())
	if unknown := (x509.UnknownAuthorityError{}); err == nil ||
		!strings.Contains(err.Error(), unknown.Error()) || asked.Load() > 0 {
		t.Errorf("without the CA: %v, asked %d times", err, asked.Load())
	}
	cfg.CA = write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	c, s := newClient(t, cfg), span()
	for range 2 {
		if told, err := c.History(t.Context(), s); err != nil || len(told) != 0 {
			t.Fatalf("%v, %v", told, err)
		}
	}
	if n := asked.Load(); n != 7 {
		t.Errorf("asked %d times for one history; want 7 queries, and none for the history again", n)
	}
	if _, err := c.History(t.Context(), history.Span{First: s.First, Step: 120, Points: 24}); err != nil ||
		asked.Load() != 14 {
		t.Errorf("another history: %v, asked %d times", err, asked.Load())
	}
	if err := os.Remove(cfg.TokenFile); err != nil {
		t.Fatal(err)
	}
	if _, err := c.History(t.Context(), history.Span{First: s.First, Step: 60, Points: 24}); allocator.KindOf(err) !=
		allocator.Unavailable || !strings.Contains(err.Error(), "prometheus-token-file: open ") {
		t.Errorf("without the token: %v", err)
	}
}

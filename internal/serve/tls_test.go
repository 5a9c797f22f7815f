package serve_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcerts"
	"github.com/march-id/march/internal/testcluster"
)

// tlsFolder has a CA, and a certificate for 127.0.0.1 with its settings.
type tlsFolder struct {
	ca  *testcerts.CA
	cfg tlsfiles.Config
}

func newTLSFolder(t *testing.T) *tlsFolder {
	t.Helper()
	f := &tlsFolder{ca: testcerts.New(t)}
	own := f.renew()
	f.cfg = tlsfiles.Config{Flags: "tls", CA: f.ca.Root, ClientCA: f.ca.Root, Cert: own.Cert, Key: own.Key}
	return f
}

// renew replaces the certificate.
func (f *tlsFolder) renew() certs.Pair {
	return f.ca.Write("own", certs.Leaf{Hosts: []string{"127.0.0.1", "caller.example"}})
}

func (f *tlsFolder) open(t *testing.T, change func(*tlsfiles.Config)) *tlsfiles.Files {
	t.Helper()
	cfg := f.cfg
	if change != nil {
		change(&cfg)
	}
	return testcerts.Open(t, cfg)
}

func (r *running) over(t *testing.T, files *tlsfiles.Files) marchv1.IDServiceClient {
	t.Helper()
	conn := must(grpc.NewClient(r.grpc, grpc.WithTransportCredentials(files.Credentials())))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return marchv1.NewIDServiceClient(conn)
}

// bare is a client's settings without a certificate of its own.
func bare(cfg *tlsfiles.Config) { cfg.Cert, cfg.Key, cfg.ClientCA = "", "", "" }

// A server with a certificate speaks TLS 1.3 alone, over gRPC and HTTP.
func TestTLS(t *testing.T) {
	f := newTLSFolder(t)
	files := f.open(t, nil)
	r := startWith(t, func(cfg *serve.Config) { cfg.TLS = files })
	if err := r.next("fast"); status.Code(err) != codes.Unavailable {
		t.Errorf("a call without TLS: %v", err)
	}
	client := f.open(t, bare)
	if _, err := r.over(t, client).Next(bg, &marchv1.NextRequest{Tag: "fast"}); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusOK,
		"/none": http.StatusNotFound} {
		if code, _ := get(t, client.Client("127.0.0.1"), r.http, path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	old := client.Client("127.0.0.1")
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if code, err := get(t, old, r.http, "/livez"); code != 0 || !strings.Contains(err, "protocol version") {
		t.Errorf("TLS 1.2: %d, %s", code, err)
	}
}

func get(t *testing.T, cfg *tls.Config, address, path string) (code int, failed string) {
	t.Helper()
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: cfg}}
	answer, err := c.Get("https://" + address + path)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, ""
}

// Where clients must have a certificate, only health checks over HTTP do without.
func TestTLSClientsRequired(t *testing.T) {
	f := newTLSFolder(t)
	files := f.open(t, func(cfg *tlsfiles.Config) { cfg.RequireClient = true })
	r := startWith(t, func(cfg *serve.Config) { cfg.TLS = files })
	for _, c := range []struct {
		client *tlsfiles.Files
		code   codes.Code
		other  int
	}{{f.open(t, bare), codes.Unavailable, http.StatusUnauthorized}, {f.open(t, nil), codes.OK, http.StatusNotFound}} {
		if _, err := r.over(t, c.client).Next(bg, &marchv1.NextRequest{Tag: "fast"}); status.Code(err) != c.code {
			t.Errorf("gRPC: %v, want %v", err, c.code)
		}
		for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusOK, "/none": c.other} {
			if code, err := get(t, c.client.Client("127.0.0.1"), r.http, path); code != want {
				t.Errorf("%s: %d (%s), want %d", path, code, err, want)
			}
		}
	}
}

// With addresses for operators, callers find there none of what operators have.
func TestAdmin(t *testing.T) {
	admin := testcluster.Listen(t, "")
	adminHTTP := testcluster.Listen(t, "")
	r := startWith(t, func(cfg *serve.Config) {
		cfg.Metrics = serve.NewMetrics("test", nil)
		cfg.Routes = func(mux *http.ServeMux) { mux.HandleFunc("/ids", func(http.ResponseWriter, *http.Request) {}) }
		cfg.Admin = serve.Admin{
			GRPC: admin, HTTP: adminHTTP,
			Register: func(s grpc.ServiceRegistrar) {
				marchv1.RegisterRoomServiceServer(s, marchv1.UnimplementedRoomServiceServer{})
			},
			Routes: func(mux *http.ServeMux) {
				mux.HandleFunc("/operators", func(http.ResponseWriter, *http.Request) {})
			},
		}
	})
	operators := testcluster.Dial(t, admin.Addr().String())
	const unknown = "unknown service"
	for name, conn := range map[string]*grpc.ClientConn{"callers": r.conn, "operators": operators} {
		_, ids := marchv1.NewIDServiceClient(conn).Next(bg, &marchv1.NextRequest{Tag: "fast"})
		_, room := marchv1.NewRoomServiceClient(conn).GetInstance(bg, &marchv1.GetInstanceRequest{})
		if _, err := healthpb.NewHealthClient(conn).Check(bg, &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("%s: health: %v", name, err)
		}
		if isOperator := name == "operators"; (ids == nil) == isOperator ||
			strings.Contains(status.Convert(room).Message(), unknown) == isOperator {
			t.Errorf("%s: Next: %v, GetInstance: %v", name, ids, room)
		}
	}
	for path, want := range map[string][2]int{"/livez": {200, 200}, "/readyz": {200, 200}, "/metrics": {404, 200},
		"/ids": {200, 404}, "/operators": {404, 200}} {
		for i, address := range []string{r.http, adminHTTP.Addr().String()} {
			answer, err := http.Get("http://" + address + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
			if answer.StatusCode != want[i] {
				t.Errorf("%s at %d: %d, want %d", path, i, answer.StatusCode, want[i])
			}
		}
	}
}

// A certificate that is renewed again and again under load fails no call: not on connections
// that are open, and not on those that begin meanwhile. Both sides also read the files while
// only the key was replaced.
func TestTLSRenewedUnderLoad(t *testing.T) {
	f := newTLSFolder(t)
	server, client := f.open(t, nil), f.open(t, nil)
	r := startWith(t, func(cfg *serve.Config) { cfg.TLS = server })
	ctx, stop := context.WithCancel(bg)
	defer stop()
	var calls, failed atomic.Int64
	var work sync.WaitGroup
	call := func(lasts int) {
		for ctx.Err() == nil {
			conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(client.Credentials()))
			if err != nil {
				t.Error(err)
				return
			}
			ids := marchv1.NewIDServiceClient(conn)
			for range lasts {
				if ctx.Err() != nil {
					break
				}
				if _, err := ids.Next(bg, &marchv1.NextRequest{Tag: "fast"}); err != nil {
					t.Errorf("call %d: %v", calls.Load(), err)
					failed.Add(1)
				}
				calls.Add(1)
			}
			_ = conn.Close()
		}
	}
	for range 4 {
		work.Go(func() { call(1 << 30) })
		work.Go(func() { call(10) })
	}
	work.Go(func() { // it finds halves of a renewal, too
		for ctx.Err() == nil {
			_, _ = server.Reload(), client.Reload()
		}
	})
	for range 30 {
		before := calls.Load()
		f.renew()
		eventually(t, "calls go on", func() bool { return calls.Load() >= before+200 || failed.Load() > 0 })
	}
	stop()
	work.Wait()
	if err := server.Reload(); err != nil {
		t.Error(err)
	}
}

// A metric tells whether the files of the certificate cannot be used.
func TestTLSBrokenMetric(t *testing.T) {
	f := newTLSFolder(t)
	files, m := f.open(t, nil), serve.NewMetrics("test", nil)
	r := startWith(t, func(cfg *serve.Config) { cfg.TLS, cfg.Metrics = files, m })
	if _, err := r.over(t, files).Next(bg, &marchv1.NextRequest{Tag: "fast"}); err != nil { // it has begun
		t.Error(err)
	}
	want := func(value string) {
		t.Helper()
		text := "# HELP march_certificate_broken 1 if the files of the server's certificate cannot be used, " +
			"so that the last good ones are in force.\n" +
			"# TYPE march_certificate_broken gauge\nmarch_certificate_broken " + value + "\n"
		if err := testutil.GatherAndCompare(m.Gatherer(), strings.NewReader(text),
			"march_certificate_broken"); err != nil {
			t.Error(err)
		}
	}
	want("0")
	if err := os.WriteFile(f.cfg.Cert, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = files.Reload()
	want("1")
	f.renew()
	_ = files.Reload()
	want("0")
}

package serve_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// An address of which a connection gave up too many calls is barred for a second: then calls on new connections are
// refused. What the address had open goes on. Probes, clients with a certificate, and those that say that they can
// prove who they are, are served on new connections, too. So are HTTP and the doors, whose clients cannot give up calls
// in this way: what an address does over one protocol takes nothing from its clients over another.
func TestBarHitsNewConnectionsOnly(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) { // in which all connections are of one address
		const most = 20
		f := newTLSFolder(t)
		files, anyone, proven := f.open(t, nil), f.open(t, bare), f.open(t, nil)
		door := testcluster.Listen(t, "")
		r := startWith(t, func(cfg *serve.Config) {
			cfg.TLS, cfg.Limits = files, serve.DefaultLimits()
			cfg.Limits.Resets = most
			cfg.Routes = func(mux *http.ServeMux) {
				mux.HandleFunc("POST /v1/tags/order/next", func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, "1")
				})
			}
			cfg.Doors = []serve.Door{{Listener: door, Run: greet}}
		})
		dial := func(files *tlsfiles.Files) *grpc.ClientConn {
			return testcluster.Dial(t, r.grpc, grpc.WithTransportCredentials(files.Credentials()))
		}
		next := func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := marchv1.NewIDServiceClient(conn).Next(ctx, &marchv1.NextRequest{Tag: "fast"})
			return err
		}
		before := dial(anyone)
		if err := next(bg, before); err != nil {
			t.Fatal(err)
		}
		stream := must(marchv1.NewIDServiceClient(before).Stream(bg))(t)
		answered := func() {
			t.Helper()
			err := stream.Send(&marchv1.NextRequest{Tag: "fast"})
			if err == nil {
				_, err = stream.Recv()
			}
			if err != nil {
				t.Errorf("a stream that was open before: %v", err)
			}
		}
		answered()
		time.Sleep(time.Millisecond) // connections count as new by their time
		// The address has asked two calls, and may give up as many more.
		attacker := marchv1.NewIDServiceClient(dial(anyone))
		for range most + 3 {
			ctx, cancel := context.WithCancel(bg)
			must(attacker.Stream(ctx))(t)
			synctest.Wait() // until the server has the call
			cancel()
			synctest.Wait()
		}
		barred := time.Now()
		if err := next(bg, dial(anyone)); status.Code(err) != codes.ResourceExhausted ||
			!strings.Contains(err.Error(), "calls given up lately by this address") {
			t.Errorf("a call on a new connection: %v", err)
		}
		answered()
		for range 20 { // more than a barred connection may make
			if err := next(bg, before); err != nil {
				t.Errorf("a connection that was open before: %v", err)
			}
		}
		proves := dial(proven)
		says, token := dial(anyone), metadata.AppendToOutgoingContext(bg, "authorization", "Bearer t")
		probe := healthpb.NewHealthClient(dial(anyone))
		for range 20 {
			if err := next(bg, proves); err != nil {
				t.Errorf("a client with a certificate: %v", err)
			}
			if err := next(token, says); err != nil {
				t.Errorf("a client with a token: %v", err)
			}
			if _, err := probe.Check(bg, &healthpb.HealthCheckRequest{}); err != nil {
				t.Errorf("a probe over gRPC: %v", err)
			}
		}
		client := testcluster.Client()
		if transport, is := client.Transport.(*http.Transport); is {
			transport.TLSClientConfig = anyone.Client("")
		}
		for range 20 {
			for path, method := range map[string]string{"/readyz": http.MethodGet, "/livez": http.MethodGet,
				"/v1/tags/order/next": http.MethodPost} {
				request, err := http.NewRequestWithContext(bg, method, "https://"+r.http+path, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				answer, err := client.Do(request)
				if err != nil {
					t.Fatalf("%s over HTTP: %v", path, err)
				}
				if body, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
					t.Errorf("%s over HTTP: %d %s", path, answer.StatusCode, body)
				}
				_ = answer.Body.Close()
			}
			conn := must(testcluster.DialContext(bg, door.Addr().String()))(t)
			if greeting, err := io.ReadAll(conn); err != nil || string(greeting) != "hello" {
				t.Errorf("a client of a door: %q, %v", greeting, err)
			}
			_ = conn.Close()
		}
		if passed := time.Since(barred); passed >= time.Second {
			t.Fatalf("the bar ended before all was tried: %v", passed)
		}
		time.Sleep(time.Until(barred.Add(time.Second)))
		if err := next(bg, dial(anyone)); err != nil {
			t.Errorf("a second after the bar: %v", err)
		}
		_ = stream.CloseSend()
		time.Sleep(10 * time.Second) // TLS' last word, which no one reads, gives up after 5
	})
}

// greet serves a door whose clients get a word.
func greet(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil //nolint:nilerr // the listener was closed
		}
		_, _ = io.WriteString(conn, "hello")
		_ = conn.Close()
	}
}

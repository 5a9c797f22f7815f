package serve_test

import (
	"context"
	"io"
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
// prove who they are, are served on new connections, too.
func TestBarHitsNewConnectionsOnly(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) { // in which all connections are of one address
		const most = 20
		f := newTLSFolder(t)
		files, anyone, proven := f.open(t, nil), f.open(t, bare), f.open(t, nil)
		r := startWith(t, func(cfg *serve.Config) {
			cfg.TLS, cfg.Limits = files, serve.DefaultLimits()
			cfg.Limits.Resets = most
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
		stream, err := marchv1.NewIDServiceClient(before).Stream(bg)
		if err != nil {
			t.Fatal(err)
		}
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
			if _, err := attacker.Stream(ctx); err != nil {
				t.Fatal(err)
			}
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
		answer, err := client.Get("https://" + r.http + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
			t.Errorf("a probe over HTTP: %d %s", answer.StatusCode, body)
		}
		_ = answer.Body.Close()
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

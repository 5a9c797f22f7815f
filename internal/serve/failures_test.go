package serve_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/metadata"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
)

// An unforeseen failure of a call is logged, with its trace. A failure that the caller can handle
// is not. Repeated failures are one line.
func TestFailures(t *testing.T) {
	var log bytes.Buffer
	r := startWith(t, func(cfg *serve.Config) { cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
	const trace = "0af7651916cd43dd8448eb211c80319c"
	traced := metadata.AppendToOutgoingContext(bg, "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	for _, tag := range []string{"bad", "lost", "lost", "bad", "lost"} {
		if _, err := r.client.Next(traced, &marchv1.NextRequest{Tag: tag}); err == nil {
			t.Errorf("%s: no error", tag)
		}
	}
	_ = r.conn.Close()
	r.stop()
	r.end(t)
	got := log.String()
	if strings.Count(got, "\n") != 1 || !strings.Contains(got, "call failed") ||
		!strings.Contains(got, "trace_id="+trace) ||
		!strings.Contains(got, "method=/march.v1.IDService/Next") || !strings.Contains(got, "a bug") {
		t.Errorf("logged:\n%s", got)
	}
}

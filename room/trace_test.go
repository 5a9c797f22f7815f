package room_test

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// receiver is an OTLP receiver that keeps the spans it gets.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*otlp.Span
}

func (r *receiver) Export(_ context.Context,
	request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) got() []*otlp.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// traces starts a receiver and returns a provider that sends spans to it.
func traces(t *testing.T, ratio float64) (*receiver, *sdktrace.TracerProvider) {
	t.Helper()
	r, server := &receiver{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	provider, err := serve.NewTraces(bg, serve.TracesConfig{URL: "http://" + testcluster.Serve(t, server),
		Ratio: ratio, Service: "march-room", Instance: "a/a1", Build: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		_ = provider.Shutdown(ctx)
	})
	return r, provider
}

// path returns a span's name after the names of its parents.
func path(spans []*otlp.Span, s *otlp.Span) string {
	for _, parent := range spans {
		if slices.Equal(parent.GetSpanId(), s.GetParentSpanId()) {
			return path(spans, parent) + " > " + s.GetName()
		}
	}
	return s.GetName()
}

// The first call of a tag waits for etcd: its trace, which the caller began, goes through
// room and ledger to etcd's own call. Later calls are answered from memory and have no
// span. Heartbeats have none either.
func TestTraces(t *testing.T) {
	received, provider := traces(t, 1)
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order")
	c.tracer = provider
	a := c.start("a", "a1", nil)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	traced := metadata.AppendToOutgoingContext(bg, "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	for range 20 {
		if _, err := a.Next(traced, &marchv1.NextRequest{Tag: "order"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := marchv1.NewRoomServiceClient(a.Conn).GetChain(bg, &marchv1.GetChainRequest{Tag: "order"}); err != nil {
		t.Fatal(err)
	}
	a.Cancel()
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := provider.ForceFlush(bg); err != nil {
		t.Fatal(err)
	}
	spans := received.got()
	var own, others []string
	for _, s := range spans {
		if hex.EncodeToString(s.GetTraceId()) == trace {
			own = append(own, path(spans, s))
		} else {
			others = append(others, path(spans, s))
		}
	}
	slices.Sort(own)
	slices.Sort(others)
	// On a slow machine the tag is read again, as the watch tells of its creation late, and the chain leases again.
	own, others = slices.Compact(own), slices.Compact(others)
	want := []string{"room.load", "room.load > ledger.Source", "room.load > ledger.Source > etcdserverpb.KV/Txn"}
	if !slices.Equal(own, want) {
		t.Errorf("the call's trace: %q, want %q", own, want)
	}
	want = []string{
		"march.v1.RoomService/GetChain",
		"room.refill", "room.refill > ledger.Lease", "room.refill > ledger.Lease > etcdserverpb.KV/Txn",
	}
	if !slices.Equal(others, want) {
		t.Errorf("other traces: %q, want %q", others, want)
	}
	for _, s := range spans {
		if s.GetName() == "ledger.Lease" && !strings.Contains(s.String(), "order") {
			t.Errorf("no tag in %v", s)
		}
	}
}

// The first call of a time tag takes a worker, in the caller's trace. A renewal, and what
// gives the worker back, have traces of their own.
func TestTracesOfWorkers(t *testing.T) {
	received, provider := traces(t, 1)
	c := newCluster(t, testcluster.Halves())
	c.tag(timed(cosid), "event")
	c.tracer = provider
	a := c.start("a", "a1", nil)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	traced := metadata.AppendToOutgoingContext(bg, "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	if _, err := a.Next(traced, &marchv1.NextRequest{Tag: "event"}); err != nil {
		t.Fatal(err)
	}
	paths := func() (own, others []string) {
		if err := provider.ForceFlush(bg); err != nil {
			t.Fatal(err)
		}
		spans := received.got()
		for _, s := range spans {
			to := &others
			if hex.EncodeToString(s.GetTraceId()) == trace {
				to = &own
			}
			*to = append(*to, path(spans, s))
			if strings.HasPrefix(s.GetName(), "worker.") && !strings.Contains(s.String(), "march.worker_bits") {
				t.Errorf("no bits in %v", s)
			}
		}
		return own, others
	}
	const txn = "etcdserverpb.KV/Txn"
	if own, _ := paths(); !slices.Contains(own, "room.load > worker.Take > "+txn) {
		t.Errorf("the call's trace: %q", own)
	}
	a.await("a renewal", func() bool { // the first window is three seconds long
		_, others := paths()
		return slices.Contains(others, "worker.Renew > "+txn)
	})
	a.Cancel()
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, others := paths(); !slices.Contains(others, "worker.GiveBack > "+txn) {
		t.Errorf("other traces: %q", others)
	}
}

// A room sends nothing of a trace that the caller decided not to keep. It sends no spans
// at all if the ratio is 0.
func TestTracesUnsampled(t *testing.T) {
	received, provider := traces(t, 0)
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order")
	c.tracer = provider
	a := c.start("a", "a1", nil)
	dropped := metadata.AppendToOutgoingContext(bg, "traceparent",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
	if _, err := a.Next(dropped, &marchv1.NextRequest{Tag: "order"}); err != nil {
		t.Fatal(err)
	}
	if err := provider.ForceFlush(bg); err != nil {
		t.Fatal(err)
	}
	if spans := received.got(); len(spans) != 0 {
		t.Errorf("got %v", spans)
	}
}

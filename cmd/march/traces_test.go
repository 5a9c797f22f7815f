package main

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/internal/testcluster"
)

// spans is an OTLP receiver that keeps the names of the spans it gets.
type spans struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names []string
}

func (s *spans) Export(_ context.Context,
	request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.names = append(s.names, span.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// With --traces a server sends its spans to the receiver, at its end at the latest. A receiver
// that is away causes no trouble.
func TestTraces(t *testing.T) {
	t.Parallel()
	received, server := &spans{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, received)
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	d := devCluster{base: base}
	etcd := ledgertest.StartEtcd(t).Endpoint
	for _, receiver := range []string{testcluster.Serve(t, server), "127.0.0.1:1"} {
		p := begin(t, "", nil, "console", "--etcd", etcd, "--grpc", d.address(0), "--http", "", "--traces",
			"http://"+receiver).ready(t)
		if _, stderr, code := march(t, "tag", "list", "--console", d.address(0)); code != exitFailed { // no cluster yet
			t.Errorf("exit code %d: %s", code, stderr)
		}
		if code, err := p.stop(patience(t), syscall.SIGTERM); code != exitOK || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
	}
	received.mu.Lock()
	defer received.mu.Unlock()
	slices.Sort(received.names)
	if want := []string{"etcdserverpb.KV/Txn", "march.v1.ConsoleService/ListTags"}; !slices.Equal(
		slices.Compact(received.names), want) {
		t.Errorf("got %q, want %q", received.names, want)
	}
}

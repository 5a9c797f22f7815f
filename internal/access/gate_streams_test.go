package access_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

// answering issues IDs, and answers each request of a stream.
type answering struct {
	marchv1.UnimplementedIDServiceServer
}

func (answering) Stream(stream marchv1.IDService_StreamServer) error {
	ended := make(chan error, 1)
	go func() { ended <- answerAll(stream) }()
	select {
	case err := <-ended:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

func answerAll(stream marchv1.IDService_StreamServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(&marchv1.NextResponse{Id: 1}); err != nil {
			return err
		}
	}
}

func (answering) Next(ctx context.Context, _ *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	if access.From(ctx).Name() != "token:issuer" {
		return nil, errors.New("another subject")
	}
	return &marchv1.NextResponse{Id: 1}, nil
}

// An open stream loses a right with its next message, and cannot go on to a tag outside its
// pattern.
func TestStreams(t *testing.T) {
	w := newWorld(t)
	address := w.serve(func(s grpc.ServiceRegistrar) {
		marchv1.RegisterIDServiceServer(s, answering{})
	}, w.intercepted()...)
	client := marchv1.NewIDServiceClient(w.dial(address, nil))
	open := func() marchv1.IDService_StreamClient {
		ctx, cancel := context.WithCancel(bearer(w.tokens["issuer"]))
		t.Cleanup(cancel)
		stream := must(client.Stream(ctx))(t)
		return stream
	}
	next := func(s marchv1.IDService_StreamClient, tag string) error {
		_ = s.Send(&marchv1.NextRequest{Tag: tag})
		_, err := s.Recv()
		return err
	}
	s := open()
	for _, tag := range []string{"order", "", "shop-1", ""} {
		if err := next(s, tag); err != nil {
			t.Fatalf("%q: %v", tag, err)
		}
	}
	if err := next(s, "other"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another tag: %v", err)
	}
	s = open()
	if err := next(s, "order"); err != nil {
		t.Fatal(err)
	}
	w.write("policy.yaml", strings.ReplaceAll(rules, "tags: [order, shop-*]",
		"tags: [shop-*], quotas: {ids_per_second: 5, streams: 1}"))
	w.reload()
	if err := next(s, ""); status.Code(err) != codes.PermissionDenied {
		t.Errorf("after the policy changed: %v", err)
	}
	s = open()
	if err := next(s, "shop-1"); err != nil {
		t.Fatal(err)
	}
	err := next(open(), "shop-1")
	if status.Code(err) != codes.ResourceExhausted || api.RetryAfter(err) <= 0 {
		t.Errorf("a stream above the quota: %v, wait %v", err, api.RetryAfter(err))
	}
	err = nil
	n := 0
	for ; err == nil; n++ {
		err = next(s, "shop-1")
	}
	if status.Code(err) != codes.ResourceExhausted || api.RetryAfter(err) <= 0 || n < 5 {
		t.Errorf("after %d IDs: %v, wait %v", n, err, api.RetryAfter(err))
	}
}

// An idle stream ends when its caller loses the right to it, and others go on.
func TestIdleStreams(t *testing.T) {
	w := newWorld(t)
	address := w.serve(func(s grpc.ServiceRegistrar) {
		marchv1.RegisterIDServiceServer(s, answering{})
	}, w.intercepted()...)
	client := marchv1.NewIDServiceClient(w.dial(address, nil))
	try := func(token string, tags ...string) (marchv1.IDService_StreamClient, error) {
		ctx, cancel := context.WithTimeout(bearer(token), time.Minute)
		t.Cleanup(cancel)
		stream, err := client.Stream(ctx)
		if err != nil {
			return nil, err
		}
		for _, tag := range tags {
			if err := stream.Send(&marchv1.NextRequest{Tag: tag}); err != nil {
				return nil, err
			}
			if _, err := stream.Recv(); err != nil {
				return nil, err
			}
		}
		return stream, nil
	}
	open := func(token string, tags ...string) marchv1.IDService_StreamClient {
		t.Helper()
		return must(try(token, tags...))(t)
	}
	ended := func(what string, s marchv1.IDService_StreamClient, want codes.Code) {
		t.Helper()
		if _, err := s.Recv(); status.Code(err) != want {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	goesOn := func(what string, s marchv1.IDService_StreamClient) {
		t.Helper()
		if err := s.Send(&marchv1.NextRequest{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := s.Recv(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	var expiring marchv1.IDService_StreamClient
	_, ends := w.shortLived(func(token string) bool {
		var err error
		expiring, err = try(token, "order")
		return err == nil
	})
	order, shop, last, none := open(w.tokens["issuer"], "order"), open(w.tokens["issuer"], "shop-1"),
		open(w.tokens["issuer"], "order", "shop-1"), open(w.tokens["issuer"])
	root, away := open(w.tokens["root"], "order"), open(w.issuer.token(w.issuer.claims("alice")), "order")
	w.gate.EndLost(bg)
	for _, s := range []marchv1.IDService_StreamClient{order, shop, last} {
		goesOn("nothing changed", s)
	}
	time.Sleep(time.Until(ends))
	w.gate.EndLost(bg)
	ended("an expired token", expiring, codes.Unauthenticated)

	w.issuer.Close()
	w.write("policy.yaml", strings.ReplaceAll(rules, "tags: [order, shop-*]", "tags: [shop-*]"))
	w.reload()
	w.gate.EndLost(bg)
	ended("a tag that was taken away", order, codes.PermissionDenied)
	ended("a tag that was taken away, with the issuer away", away, codes.PermissionDenied)
	goesOn("another tag", shop)
	goesOn("the last tag", last)
	goesOn("another subject", root)
	w.write("tokens", "# none")
	w.reload()
	w.gate.EndLost(bg)
	for what, s := range map[string]marchv1.IDService_StreamClient{"shop": shop, "last": last,
		"none": none, "root": root} {
		ended("a token that was taken out: "+what, s, codes.Unauthenticated)
	}
}

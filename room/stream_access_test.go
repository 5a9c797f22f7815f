package room_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// A stream that sends nothing loses its right within 10 s, and other streams go on.
func TestIdleStreamLosesRight(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		lines, tokens := tokensOf(t, "shop", "other")
		const rules = "grants:\n  - {subjects: [\"token:other\", \"token:shop\"], roles: issuer, tags: order, " +
			"quotas: {streams: 1}}\n"
		gate, write := changing(t, nil, rules, lines)
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.Access = gate })
		next := func(s marchv1.IDService_StreamClient) error {
			if err := s.Send(&marchv1.NextRequest{Tag: "order"}); err != nil {
				return err
			}
			_, err := s.Recv()
			return err
		}
		open := func(name string) marchv1.IDService_StreamClient {
			t.Helper()
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(bg, "authorization",
				"Bearer "+tokens[name]), time.Minute)
			t.Cleanup(cancel)
			s, err := marchv1.NewIDServiceClient(a.Conn).Stream(ctx)
			if err == nil {
				err = next(s)
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return s
		}
		idle, other := open("shop"), open("other")
		write(strings.ReplaceAll(rules, `, "token:shop"`, ""))
		began := time.Now()
		_, err := idle.Recv()
		if took := time.Since(began); status.Code(err) != codes.PermissionDenied || took > 10*time.Second {
			t.Errorf("the idle stream: %v after %v; want PERMISSION_DENIED within 10 s", err, took)
		}
		if err := next(other); err != nil {
			t.Errorf("the other stream: %v", err)
		}
		// It counts in no quota any more.
		write(rules)
		time.Sleep(10 * time.Second) // by then the gate has read them again
		if err := next(open("shop")); err != nil {
			t.Error(err)
		}
	})
}

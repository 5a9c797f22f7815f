package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// An apply writes nothing once the cluster is not the one whose difference was shown.
func TestApplyMeanwhile(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(context.Context, marchv1.ConsoleServiceClient) error{
		"a setting that the file changes": func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			_, err := s.UpdateTag(ctx, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order",
				Reserve: durationpb.New(20 * time.Minute)}})
			return err
		},
		"what a difference does not show": func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			_, err := s.PrescaleTag(ctx, &marchv1.PrescaleTagRequest{Name: "order", Step: 5000,
				Duration: durationpb.New(time.Hour)})
			return err
		},
		"a tag that the file creates": func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			_, err := s.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: "item"}})
			return err
		},
		"a tag that is pruned": func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			_, err := s.PrescaleTag(ctx, &marchv1.PrescaleTagRequest{Name: "gone", Step: 5000,
				Duration: durationpb.New(time.Hour)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testcluster.New(t)
			c.Init(testcluster.Halves(), "test")
			c.Tag(func(s *record.TagSettings) { s.Reserve = record.DurationOf(30 * time.Minute) }, "test", "order")
			c.Tag(nil, "test", "gone")
			server := c.Console(nil)
			a, cmd := apply(t, strings.TrimPrefix(server.Conn.Target(), "passthrough:///"),
				"tags:\n  order: {}\n  item: {min_step: 10}\n")
			a.prune = true
			var err error
			if a.Diff, err = a.diff(cmd); err != nil || len(a.Diff.Tags) != 3 {
				t.Fatalf("%+v, %v", a.Diff, err)
			}
			if err := change(t.Context(), server); err != nil {
				t.Fatal(err)
			}
			if err := a.apply(cmd); allocator.KindOf(err) != allocator.Conflict {
				t.Errorf("apply: %v, want Conflict", err)
			}
			order, err := server.GetTag(t.Context(), &marchv1.GetTagRequest{Name: "order"})
			if err != nil || order.GetTag().GetReserve().AsDuration() == 10*time.Minute {
				t.Errorf("order was written: %v, %v", order, err)
			}
			if _, err := server.GetTag(t.Context(), &marchv1.GetTagRequest{Name: "gone"}); err != nil {
				t.Errorf("gone was deleted: %v", err)
			}
		})
	}
}

// Without a moment between the check and the writes, each write checks its own tag.
func TestApplyWritesWhatItCompared(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "test")
	c.Tag(nil, "test", "order")
	server := c.Console(nil)
	stored, err := server.GetTag(t.Context(), &marchv1.GetTagRequest{Name: "order"})
	if err != nil || stored.GetTag().GetRevision() == 0 {
		t.Fatalf("%v, %v", stored, err)
	}
	at := stored.GetTag().GetRevision()
	limit := &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", MaxStep: proto.Int64(5000)}, IfRevision: at}
	changed, err := server.UpdateTag(t.Context(), limit)
	if err != nil || changed.GetTag().GetRevision() <= at {
		t.Fatalf("%v, %v", changed, err)
	}
	if _, err := server.UpdateTag(t.Context(), limit); status.Code(err) != codes.Aborted ||
		!strings.Contains(err.Error(), "read it again") {
		t.Errorf("update of what was changed: %v", err)
	}
	if _, err := server.DeleteTag(t.Context(), &marchv1.DeleteTagRequest{Name: "order", IfRevision: at}); status.Code(
		err) != codes.Aborted {
		t.Errorf("delete of what was changed: %v", err)
	}
	if _, err := server.DeleteTag(t.Context(), &marchv1.DeleteTagRequest{Name: "order",
		IfRevision: changed.GetTag().GetRevision()}); err != nil {
		t.Errorf("delete of what is there: %v", err)
	}
}

// The layout moves only from the one that was shown.
func TestApplyOtherLayout(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "test")
	server := c.Console(nil)
	half := testcluster.Halves()
	a, cmd := apply(t, strings.TrimPrefix(server.Conn.Target(), "passthrough:///"),
		"layout:\n  boundary: 2000\n  rooms:\n    a: {lower: 0, upper: 1000}\n    b: {lower: 1000, upper: 2000}\n")
	var err error
	if a.Diff, err = a.diff(cmd); err != nil || a.Diff.Layout == nil {
		t.Fatalf("%+v, %v", a.Diff, err)
	}
	if err := a.planLayout(cmd); err != nil {
		t.Fatal(err)
	}
	half.Ranges["b"] = allocator.Range{Lower: half.Ranges["b"].Lower, Upper: half.Ranges["b"].Upper - 1}
	c.Change(half, "test")
	if err := a.apply(cmd); allocator.KindOf(err) != allocator.Conflict {
		t.Errorf("apply: %v, want Conflict", err)
	}
}

// apply returns an apply of a file.
func apply(t *testing.T, console, file string) (*applying, *cobra.Command) {
	t.Helper()
	parsed, err := parseManifest("cluster.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	out := new(bytes.Buffer)
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	return &applying{
		c: &common{output: "text", stdout: out, stderr: out}, file: parsed,
		t: &target{what: "console", address: console, timeout: 10 * time.Second},
	}, cmd
}

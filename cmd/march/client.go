package main

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
)

// target is a server that a command calls.
type target struct {
	what    string // "console" or "room": also the flag
	address string
	timeout time.Duration
}

const (
	defaultConsole = "127.0.0.1:7001" // where march dev has it
	defaultRoom    = "127.0.0.1:7010"
)

func (t *target) flags(cmd *cobra.Command, what, address string) {
	t.what = what
	flags := cmd.PersistentFlags()
	flags.StringVar(&t.address, what, address, "the "+what+"'s gRPC address, HOST:PORT")
	flags.DurationVar(&t.timeout, "timeout", 5*time.Second, "how long to wait for an answer")
}

// call connects and calls use with a context that ends after the timeout.
func (t *target) call(ctx context.Context, use func(context.Context, *grpc.ClientConn) error) error {
	if !strings.Contains(t.address, ":") {
		return usageError{allocator.Errorf(allocator.Invalid, "%s: %q; allowed: HOST:PORT", t.what, t.address)}
	}
	if t.timeout <= 0 {
		return usageError{allocator.Errorf(allocator.Invalid, "timeout: %v; allowed: above 0", t.timeout)}
	}
	conn, err := grpc.NewClient(t.address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(api.UnaryClientInterceptor), grpc.WithStreamInterceptor(api.StreamClientInterceptor))
	if err != nil {
		return usageError{allocator.Errorf(allocator.Invalid, "%s: %q: %w", t.what, t.address, err)}
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, console.ActorHeader, whoami()), t.timeout)
	defer cancel()
	err = use(ctx, conn)
	if err != nil && allocator.KindOf(err) == allocator.Unavailable && conn.GetState().String() != "READY" {
		return allocator.Errorf(allocator.Unavailable, "no answer from the %s at %s (--%s): %w", t.what, t.address, t.what, err)
	}
	return err
}

// whoami returns user@host, for the audit.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// console calls a console.
func (t *target) console(ctx context.Context, use func(context.Context, marchv1.ConsoleServiceClient) error) error {
	return t.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return use(ctx, marchv1.NewConsoleServiceClient(conn))
	})
}

// ids calls a room.
func (t *target) ids(ctx context.Context, use func(context.Context, marchv1.IDServiceClient) error) error {
	return t.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return use(ctx, marchv1.NewIDServiceClient(conn))
	})
}

// outputFlag gives cmd and its children -o.
func (c *common) outputFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVarP(&c.output, "output", "o", "text", "text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// checkOutput checks -o before anything is done.
func (c *common) checkOutput() error {
	if c.output != "text" && c.output != "json" {
		return usageError{allocator.Errorf(allocator.Invalid, "output: %q; allowed: text, json", c.output)}
	}
	return nil
}

// print writes a message as JSON, or what text writes.
func (c *common) print(m proto.Message, text func(w *tabwriter.Writer)) error {
	if c.output == "json" {
		b, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.stdout, "%s\n", compact(b))
		return err
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

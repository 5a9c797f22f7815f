package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/words"
)

func newDoctor(c *common) *cobra.Command {
	t := c.target()
	var shards int64
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the cluster, its hosts and etcd, and say what to do",
		Long: `Check the cluster, its hosts and etcd, and say what to do: the problems that
'march status' and the pages list; etcd's version, size, history and latency, as
the console and each instance see it; the processes' clocks and versions; the
disks of the journals; and the tags that are near their limit. It asks the
console, and each instance at the address at which the others reach it.

Exit codes: 0 nothing is wrong, 1 something is (a warning, too), 2 wrong usage,
5 the console does not answer. A check whose server did not answer is "unknown", and
does not count. With -o json each finding has check, level (ok, unknown, warning, failed),
what, remedy and command.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			facts, err := collect(cmd.Context(), t, &marchv1.DiagnoseRequest{})
			if err != nil {
				return err
			}
			if facts.Shards = shards; shards < 0 {
				return usageError{allocator.Errorf(allocator.Invalid,
					"shards: %d; allowed: 1 or more, 0 for none", shards)}
			}
			found := examine(facts)
			err = c.print(map[string]any{"findings": found}, func(w *tabwriter.Writer) {
				for _, f := range found {
					folded(w, fmt.Sprintf("%-8s %-16s ", f.Level, f.Check), printable(f.What))
					if f.Remedy != "" {
						folded(w, strings.Repeat(" ", 26), printable(f.Remedy))
					}
					if f.Command != "" {
						_, _ = fmt.Fprintf(w, "%26s`%s`\n", "", printable(f.Command))
					}
				}
			})
			if err != nil {
				return err
			}
			if n := wrongOf(found); n > 0 {
				return finding{allocator.Errorf(allocator.Refused, "%s found", words.Counted(n, "problem"))}
			}
			return nil
		},
	}
	cmd.Flags().Int64Var(&shards, "shards", 0, shardsHelp)
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

// collect asks a console and all instances. Each may take as long as the timeout says.
func collect(ctx context.Context, t *target, ask *marchv1.DiagnoseRequest) (facts doctorFacts, err error) {
	given, err := t.credentials()
	if err != nil {
		return facts, usageError{err}
	}
	link := *t
	link.timeout = 2*t.timeout + 2*time.Second // the console, then the instances; and etcd may be slow
	err = link.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		facts, err = collectFacts(ctx, conn, ask, t.timeout, func(address, room,
			name string) (*grpc.ClientConn, error) {
			return api.Dial(address, append(given.InstanceOptions(room, name), grpc.WithContextDialer(t.connect))...)
		})
		return err
	})
	return facts, err
}

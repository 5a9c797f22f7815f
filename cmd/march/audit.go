package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func newAudit(c *common) *cobra.Command {
	t := &target{}
	cmd := group("audit", "Show changes and their actors", newAuditList(c, t))
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func newAuditList(c *common, t *target) *cobra.Command {
	var most int
	r := &marchv1.ListAuditRequest{PageSize: 1000}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List changes, the newest first; -o json has the values before and after",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 0 {
				return usageError{allocator.Errorf(allocator.Invalid, "most: %d; allowed: 1 or more, 0 for all", most)}
			}
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				all := &marchv1.ListAuditResponse{}
				for token := ""; most == 0 || len(all.GetEntries()) < most; {
					r.PageToken = token
					page, err := s.ListAudit(ctx, r)
					if err != nil {
						return err
					}
					all.Entries = append(all.Entries, page.GetEntries()...)
					all.Unreadable = passedOver(all.GetUnreadable(), page)
					if token = page.GetNextPageToken(); token == "" {
						break
					}
				}
				if most > 0 {
					all.Entries = all.GetEntries()[:min(most, len(all.GetEntries()))]
				}
				return c.print(all, func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintln(w, "TIME\tACTOR\tACTION\tOBJECT")
					for _, e := range all.GetEntries() {
						_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.GetTime().AsTime().Format(time.RFC3339), e.GetActor(), e.GetAction(), e.GetObject())
					}
				})
			})
		},
	}
	cmd.Flags().StringVar(&r.Actor, "by", "", "only changes by actors whose name contains this")
	cmd.Flags().StringVar(&r.Action, "did", "", "only changes whose action contains this, such as update")
	cmd.Flags().StringVar(&r.Object, "to", "", "only changes of objects that begin with this, such as tags/order")
	cmd.Flags().IntVarP(&most, "most", "n", 100, "how many at most; 0 for all")
	return cmd
}

package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func newCluster(c *common) *cobra.Command {
	t := &target{}
	cmd := group("cluster", "Show and change the settings of the whole cluster", newClusterShow(c, t), newClusterUpdate(c, t))
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func newClusterShow(c *common, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the settings of the whole cluster",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.GetCluster(ctx, &marchv1.GetClusterRequest{})
				if err != nil {
					return err
				}
				return c.print(answer, func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintf(w, "cluster\t%s\njournal\t%s\n", answer.GetUuid(), api.Word(answer.GetCluster().GetJournal()))
				})
			})
		},
	}
}

func newClusterUpdate(c *common, t *target) *cobra.Command {
	var journal string
	cmd := &cobra.Command{
		Use:   "update",
		Short: "Change settings of the whole cluster; settings that are not named stay",
		Long: `Change settings of the whole cluster; those that are not named stay. Rooms
take them up at once.

--journal required: an instance that starts without its journal leases nothing
until an operator has confirmed its marks (` + "`march instance confirm`" + `). Without that
an etcd whose members' data was rolled back goes unseen by an instance that has no
memory of what came after. Instances that run go on.`,
		Example: `  march cluster update --journal required`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings := &marchv1.Cluster{}
			if cmd.Flags().Changed("journal") {
				var err error
				if settings.Journal, err = api.ParseWord[marchv1.JournalMode]("journal", journal); err != nil {
					return usageError{err}
				}
			}
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.UpdateCluster(ctx, &marchv1.UpdateClusterRequest{Cluster: settings})
				if err != nil {
					return err
				}
				return c.print(answer.GetCluster(), func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintf(w, "journal\t%s\n", api.Word(answer.GetCluster().GetJournal()))
				})
			})
		},
	}
	cmd.Flags().StringVar(&journal, "journal", "optional", "whether instances need their journals: required or optional")
	return cmd
}

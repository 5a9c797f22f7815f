package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	marchv1 "github.com/march-id/march/api/march/v1"
)

func newInstance(c *common) *cobra.Command {
	t := &target{}
	cmd := group("instance", "Show the instances of rooms, forget and confirm them", newInstanceList(c, t), newInstanceForget(c, t), newInstanceConfirm(c, t))
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func newInstanceList(c *common, t *target) *cobra.Command {
	var room string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the registered instances, alive or silent",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.ListInstances(ctx, &marchv1.ListInstancesRequest{Room: room, Status: true})
				if err != nil {
					return err
				}
				return c.print(answer, func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintln(w, "ROOM\tINSTANCE\tADDRESS\tLAYOUT\tSTATE\tLAST SEEN\tSTARTED\tBUILD")
					for _, i := range answer.GetInstances() {
						state, seen := "alive", "-"
						if d := i.GetSilentFor(); d != nil {
							state = "silent for at least " + d.AsDuration().Truncate(time.Second).String()
						}
						if t := i.GetLastSeen(); t != nil {
							seen = t.AsTime().Format(time.RFC3339)
						}
						if i.GetUnconfirmed() {
							state += ", unconfirmed"
						}
						if i.GetStatus().GetBarred() != nil {
							state += ", barred"
						}
						if i.GetStatus().GetNotReady() != "" {
							state += ", not ready"
						}
						if i.GetUnreadable() != "" {
							_, _ = fmt.Fprintf(w, "%s\t%s\t-\t-\tunreadable\t-\t-\t-\n", i.GetRoom(), i.GetName())
							continue
						}
						_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", i.GetRoom(), i.GetName(), i.GetAddress(),
							i.GetVersion(), state, seen, i.GetStarted().AsTime().Format(time.RFC3339), i.GetBuild())
					}
					stoppedText(w, answer.GetProblems(), answer.GetHalt(), answer.GetProblem())
				})
			})
		},
	}
	cmd.Flags().StringVar(&room, "of", "", "only this room's")
	return cmd
}

func newInstanceForget(c *common, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "forget ROOM INSTANCE",
		Short: "Remove the registration of an instance that is gone for good",
		Long: `Remove the registration of an instance that is gone for good, so that
migrations do not wait for it. If it still runs, it drops its IDs within seconds
of reaching etcd, and registers anew.`,
		Example: `  march instance forget a host-7`,
		Args:    exactly("a room", "an instance"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.ForgetInstance(ctx, &marchv1.ForgetInstanceRequest{Room: args[0], Name: args[1]})
				if err != nil {
					return err
				}
				return c.print(answer, func(w *tabwriter.Writer) { _, _ = fmt.Fprintf(w, "instance %s/%s forgotten\n", args[0], args[1]) })
			})
		},
	}
}

func newInstanceConfirm(c *common, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "confirm ROOM INSTANCE",
		Short: "Allow an instance that started without its journal to lease",
		Long: `Allow an instance that started without its journal to lease, if the cluster
requires journals (` + "`march cluster update --journal required`" + `). You confirm that etcd
did not go back in time since the last ID was leased, or that ` + "`march recover`" + ` was
run since. The instance begins to lease within seconds.`,
		Example: `  march instance confirm a host-7`,
		Args:    exactly("a room", "an instance"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.ConfirmInstance(ctx, &marchv1.ConfirmInstanceRequest{Room: args[0], Name: args[1]})
				if err != nil {
					return err
				}
				return c.print(answer, func(w *tabwriter.Writer) { _, _ = fmt.Fprintf(w, "instance %s/%s confirmed\n", args[0], args[1]) })
			})
		},
	}
}

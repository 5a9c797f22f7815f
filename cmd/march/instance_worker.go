package main

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func newInstance(c *common) *cobra.Command {
	t := c.target()
	cmd := group("instance", "Show the instances of rooms, forget and confirm them", newInstanceList(c, t),
		newInstanceForget(c, t), newInstanceConfirm(c, t))
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
			return callAndPrint(cmd, c, t, marchv1.ConsoleServiceClient.ListInstances,
				&marchv1.ListInstancesRequest{Room: room, Status: true},
				func(w *tabwriter.Writer, answer *marchv1.ListInstancesResponse) {
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
						_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", i.GetRoom(),
							i.GetName(), i.GetAddress(),
							i.GetVersion(), state, seen, i.GetStarted().AsTime().Format(time.RFC3339), i.GetBuild())
					}
					stoppedText(w, answer.GetProblems(), answer.GetHalt(), answer.GetProblem())
				})
		},
	}
	cmd.Flags().StringVar(&room, "of", "", "only this room's")
	return cmd
}

func newInstanceForget(c *common, t *target) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget ROOM INSTANCE",
		Short: "Remove the registration of an instance that is gone for good",
		Long: `Remove the registration of an instance that is gone for good, so that
migrations do not wait for it. If it still runs, it drops its IDs within seconds
of reaching etcd, and registers anew: of an instance that is alive it asks first.`,
		Example: `  march instance forget a host-7`,
		Args:    exactly("a room", "an instance"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd, c, t, marchv1.ConsoleServiceClient.ForgetInstance,
				&marchv1.ForgetInstanceRequest{Room: args[0], Name: args[1]},
				func(w *tabwriter.Writer, _ *marchv1.ForgetInstanceResponse) {
					_, _ = fmt.Fprintf(w, "instance %s/%s forgotten\n", args[0], args[1])
				})
		},
	}
	return destroys(c, cmd, func(args []string) (asked string, err error) {
		err = callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
			answer, err := s.ListInstances(ctx, &marchv1.ListInstancesRequest{Room: args[0]})
			if slices.ContainsFunc(answer.GetInstances(), func(i *marchv1.Instance) bool {
				return i.GetName() == args[1] && i.GetUnreadable() == "" && i.GetSilentFor() == nil
			}) {
				asked = fmt.Sprintf("Instance %s/%s is alive, and drops the IDs that it holds. Forget it?",
					args[0], args[1])
			}
			return err
		})
		return asked, err
	})
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
			return callAndPrint(cmd, c, t, marchv1.ConsoleServiceClient.ConfirmInstance,
				&marchv1.ConfirmInstanceRequest{Room: args[0], Name: args[1]},
				func(w *tabwriter.Writer, _ *marchv1.ConfirmInstanceResponse) {
					_, _ = fmt.Fprintf(w, "instance %s/%s confirmed\n", args[0], args[1])
				})
		},
	}
}

func newWorker(c *common) *cobra.Command {
	t := c.target()
	cmd := group("worker", "Show the workers of time-ordered IDs", newWorkerList(c, t))
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func newWorkerList(c *common, t *target) *cobra.Command {
	r := &marchv1.ListWorkersRequest{PageSize: 1000}
	var bits int32
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List all workers taken so far, their owners and windows",
		Long: `List the workers of time-ordered IDs that were ever taken: the instance that has each
of them or had it last, and the window of time for which it may use the worker. A pinned
worker keeps its number over restarts. One for a caller is in use in a caller's process.
Below the list are the slices: the workers that each room may take.`,
		Example: `  march worker list
  march worker list --bits 10 --room a`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("bits") {
				r.Bits = &bits
			}
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				all := &marchv1.ListWorkersResponse{}
				for {
					page, err := s.ListWorkers(ctx, r)
					if err != nil {
						return err
					}
					all.Workers = append(all.Workers, page.GetWorkers()...)
					all.Slices = append(all.Slices, page.GetSlices()...)
					all.Unreadable = passedOver(all.GetUnreadable(), page)
					if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
						break
					}
				}
				return c.print(all, func(w *tabwriter.Writer) { workersText(w, all) })
			})
		},
	}
	cmd.Flags().Int32Var(&bits, "bits", 0, "only workers of this width: the middle number of the tag's --bits")
	cmd.Flags().StringVar(&r.Room, "room", "", "only workers that this room has, or had last")
	return cmd
}

func workersText(w *tabwriter.Writer, all *marchv1.ListWorkersResponse) {
	_, _ = fmt.Fprintln(w, "BITS\tNUMBER\tROOM\tINSTANCE\tPINNED\tCALLER\tFROM\tUNTIL\tLEFT\tSTATE")
	for _, i := range all.GetWorkers() {
		left, state := "-", api.Word(i.GetState())
		if i.GetLeft() != nil {
			left = i.GetLeft().AsDuration().Truncate(time.Second).String()
		}
		if i.GetState() == marchv1.WorkerState_WORKER_STATE_ENDED {
			state += ", free again at " + i.GetFree().AsTime().Format(timeid.Format)
		}
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.GetBits(), i.GetNumber(),
			i.GetRoom(), i.GetInstance(),
			yesOr(i.GetPinned()), yesOr(i.GetCaller()), i.GetFrom().AsTime().Format(timeid.Format),
			i.GetUntil().AsTime().Format(timeid.Format), left, state)
	}
	slicesText(w, all.GetSlices())
}

// slicesText writes the rooms' slices, and how many of their workers are in use.
func slicesText(w *tabwriter.Writer, slices []*marchv1.WorkerSlice) {
	if len(slices) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "\nBITS\tROOM\tSLICE\tWORKERS\tIN USE\tEVER TAKEN")
	for _, s := range slices {
		_, _ = fmt.Fprintf(w, "%d\t%s\t[%d, %d)\t%d\t%d\t%d\n", s.GetBits(), s.GetRoom(), s.GetLower(), s.GetUpper(),
			s.GetUpper()-s.GetLower(), s.GetLive(), s.GetTaken())
	}
}

func yesOr(is bool) string {
	if is {
		return "yes"
	}
	return "-"
}

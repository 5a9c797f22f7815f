package main

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

func newInstance(c *common) *cobra.Command {
	t := c.target()
	type console = marchv1.ConsoleServiceClient
	cmd := group("instance", "Show the instances of rooms, forget and confirm them",
		newCall(c, t, callRow{use: "list", short: "List the registered instances, alive or silent", flags: []rowFlag{
			{"room", "of", "", "only this room's"},
		}}, &marchv1.ListInstancesRequest{Status: true}, console.ListInstances, whole, instancesText),
		destroys(c, newCall(c, t, callRow{
			use: "forget ROOM INSTANCE", short: "Remove the registration of an instance that is gone for good",
			long: `Remove the registration of an instance that is gone for good, so that
migrations do not wait for it. If it still runs, it drops its IDs within seconds
of reaching etcd, and registers anew: of an instance that is alive it asks first.`,
			example: `  march instance forget a host-7`, done: "instance %s/%s forgotten",
		}, &marchv1.ForgetInstanceRequest{}, console.ForgetInstance, whole, nil), func(ctx context.Context,
			args []string) (asked string, err error) {
			err = callConsole(ctx, t, func(ctx context.Context, s console) error {
				answer, err := s.ListInstances(ctx, &marchv1.ListInstancesRequest{Room: args[0]})
				if slices.ContainsFunc(answer.GetInstances(), func(i *marchv1.Instance) bool {
					return i.GetName() == args[1] && i.GetUnreadable() == "" && i.GetSilentFor() == nil
				}) {
					asked = filled("Instance %s/%s is alive, and drops the IDs that it holds. Forget it?", args)
				}
				return err
			})
			return asked, err
		}),
		newCall(c, t, callRow{
			use: "confirm ROOM INSTANCE", short: "Allow an instance that started without its journal to lease",
			long: `Allow an instance that started without its journal to lease, if the cluster
requires journals (` + "`march cluster update --journal required`" + `). You confirm that etcd
did not go back in time since the last ID was leased, or that ` + "`march recover`" + ` was
run since. The instance begins to lease within seconds.`,
			example: `  march instance confirm a host-7`, done: "instance %s/%s confirmed",
		}, &marchv1.ConfirmInstanceRequest{}, console.ConfirmInstance, whole, nil))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func instancesText(w *tabwriter.Writer, answer *marchv1.ListInstancesResponse) {
	table(w, "ROOM\tINSTANCE\tADDRESS\tLAYOUT\tSTATE\tLAST SEEN\tSTARTED\tBUILD", answer.GetInstances(),
		func(i *marchv1.Instance) []any {
			if i.GetUnreadable() != "" {
				return []any{i.GetRoom(), i.GetName(), "", "", "unreadable", "", "", ""}
			}
			state := "alive"
			if d := i.GetSilentFor(); d != nil {
				state = "silent for at least " + d.AsDuration().Truncate(time.Second).String()
			}
			if i.GetUnknown() {
				state = "unknown"
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
			return []any{i.GetRoom(), i.GetName(), i.GetAddress(), i.GetVersion(), state, i.GetLastSeen(),
				i.GetStarted(), i.GetBuild()}
		})
	problemsText(w, answer.GetProblems())
}

func newWorker(c *common) *cobra.Command {
	t := c.target()
	cmd := group("worker", "Show the workers of time-ordered IDs", newCall(c, t, callRow{
		use: "list", short: "List all workers taken so far, their owners and windows",
		long: `List the workers of time-ordered IDs that were ever taken: the instance that has each
of them or had it last, and the window of time for which it may use the worker. A pinned
worker keeps its number over restarts. One for a caller is in use in a caller's process.
Below the list are the slices: the workers that each room may take.`,
		example: `  march worker list
  march worker list --bits 10 --room a`,
		flags: []rowFlag{
			{"bits", "bits", "", "only workers of this width: the middle number of the tag's --bits"},
			{"room", "room", "", "only workers that this room has, or had last"},
		},
	}, &marchv1.ListWorkersRequest{}, allPages(marchv1.ConsoleServiceClient.ListWorkers, nil), whole, workersText))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func workersText(w *tabwriter.Writer, answer *marchv1.ListWorkersResponse) {
	list(w, setting.Workers, answer.GetWorkers())
	slicesText(w, answer.GetSlices())
}

// slicesText writes the rooms' slices, and how many of their workers are in use.
func slicesText(w *tabwriter.Writer, slices []*marchv1.WorkerSlice) {
	if len(slices) > 0 {
		_, _ = fmt.Fprintln(w)
		list(w, setting.Slices, slices)
	}
}

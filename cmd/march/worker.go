package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func newWorker(c *common) *cobra.Command {
	t := &target{}
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
		Short: "List the workers that were ever taken, their owners and windows",
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
	cmd.Flags().Int32Var(&bits, "bits", 0, "only workers of this width, as --bits of the tag has it in the middle")
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
		_, _ = fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.GetBits(), i.GetNumber(), i.GetRoom(), i.GetInstance(),
			yesOr(i.GetPinned()), yesOr(i.GetCaller()), i.GetFrom().AsTime().Format(timeid.Format), i.GetUntil().AsTime().Format(timeid.Format), left, state)
	}
	slicesText(w, all.GetSlices())
}

// slicesText writes which workers rooms may take, and how many of them are in use.
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

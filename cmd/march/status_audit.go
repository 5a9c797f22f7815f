package main

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// measureAfter is how long a console needs to measure rates after a request.
const measureAfter = 1500 * time.Millisecond

func newStatus(c *common) *cobra.Command {
	t := c.target()
	var full bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of every room, the migration under way, and all problems",
		Long: `Show what every room does now, the migration that is under way, and all
problems: since when, until when, the next step, and the command. With
--capacity, show instead what runs out at the present rate, the soonest first,
and then the fullest: tags, periods, workers, certificates, reserves, and etcd.
A console measures how etcd, the number of tags and workers grow. It knows that
six hours after its start, and then says a date, or "not growing".`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if full {
				return showCapacity(cmd, c, t)
			}
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				o, err := s.GetOverview(ctx, &marchv1.GetOverviewRequest{})
				if err == nil && !measured(o) { // no page or command asked recently, and a rate needs two readings
					select {
					case <-ctx.Done():
					case <-time.After(measureAfter):
						o, err = s.GetOverview(ctx, &marchv1.GetOverviewRequest{})
					}
				}
				if err != nil {
					return err
				}
				return c.print(o, func(w *tabwriter.Writer) { statusText(w, o) })
			})
		},
	}
	cmd.Flags().BoolVar(&full, "capacity", false, "show what runs out first: tags, periods, workers, certificates, "+
		"reserves, etcd")
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func showCapacity(cmd *cobra.Command, c *common, t *target) error {
	return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
		answer, err := s.GetCapacity(ctx, &marchv1.GetCapacityRequest{})
		if err == nil { // no page or command asked recently: rates are measured, and tags are read meanwhile
			select {
			case <-ctx.Done():
			case <-time.After(measureAfter):
				answer, err = s.GetCapacity(ctx, &marchv1.GetCapacityRequest{})
			}
		}
		if err != nil {
			return err
		}
		return c.print(answer, func(w *tabwriter.Writer) { capacityText(w, answer.GetCapacity()) })
	})
}

func capacityText(w *tabwriter.Writer, list []*marchv1.Capacity) {
	_, _ = fmt.Fprintln(w, "WHAT\tUSED\tOF\tSHARE\tFULL\tNOTE")
	for _, l := range list {
		used, of, share, full := "-", "-", "-", "-"
		if l.GetOf() > 0 {
			used, of, share = strconv.FormatInt(l.GetUsed(), 10), strconv.FormatInt(l.GetOf(), 10),
				fmt.Sprintf("%.1f%%", 100*l.GetShare())
		}
		switch {
		case l.GetFull() != nil:
			full = l.GetFull().AsTime().Format(time.RFC3339)
		case l.Growth != nil && l.GetGrowth() == 0:
			full = "not growing"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", l.GetWhat(), used, of, share, full, l.GetNote())
	}
}

func measured(o *marchv1.GetOverviewResponse) bool {
	for _, r := range o.GetRooms() {
		if r.Rate == nil {
			return false
		}
	}
	return true
}

func statusText(w *tabwriter.Writer, o *marchv1.GetOverviewResponse) {
	if m := o.GetMigration(); m != nil {
		_, _ = fmt.Fprintf(w,
			"migration\t%s: %s, %d of %d moves made\n", m.GetId(), stateText(m), m.GetReached(), len(m.GetMoves()))
	}
	if l := o.GetLayout().GetLayout(); l != nil {
		_, _ = fmt.Fprintf(w, "layout\t%s, boundary %d\n", layoutVersion(l, o.GetProblem() != ""), l.GetBoundary())
	}
	if o.GetSettings() != nil {
		_, _ = fmt.Fprintf(w, "journal\t%s\n", api.Word(o.GetSettings().GetJournal()))
	}
	_, _ = fmt.Fprintln(w)
	_, _ = fmt.Fprintln(w, "ROOM\tRANGE\tIDS/S\tUP\tRESERVE\tLAYOUT\tETCD")
	for _, r := range o.GetRooms() {
		held, rate, etcd := "-", "-", duration(r.GetEtcdLatency())
		if r.GetRange() != nil {
			held = fmt.Sprintf("[%d, %d)", r.GetRange().GetLower(), r.GetRange().GetUpper())
		}
		if r.Rate != nil {
			rate = fmt.Sprintf("%.0f", r.GetRate())
		}
		if r.GetEtcdAwaySince() != nil {
			etcd = "away since " + r.GetEtcdAwaySince().AsTime().Format(time.RFC3339)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d of %d\t%s\t%d\t%s\n", r.GetName(), held, rate, r.GetReady(),
			r.GetInstances(), duration(r.GetReserve()), r.GetVersion(), etcd)
	}
	if len(o.GetProblems()) > 0 {
		problemsText(w, o.GetProblems())
		return
	}
	// There are no problems, or the console is of a version without a list of
	// problems.
	for _, r := range o.GetRooms() {
		for _, problem := range r.GetProblems() {
			_, _ = fmt.Fprintf(w, "\n%s", problem)
		}
		if len(r.GetProblems()) > 0 {
			_, _ = fmt.Fprintln(w)
		}
	}
	stoppedText(w, nil, o.GetHalt(), o.GetProblem())
}

func newAudit(c *common) *cobra.Command {
	t := c.target()
	cmd := group("audit", "Show changes and their actors", newAuditList(c, t))
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func newAuditList(c *common, t *target) *cobra.Command {
	var most int
	var since, until string
	r := &marchv1.ListAuditRequest{PageSize: 1000}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List changes, the newest first; -o json has the values before and after",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 0 {
				return usageError{allocator.Errorf(allocator.Invalid, "most: %d; allowed: 1 or more, 0 for all", most)}
			}
			var err error
			if r.Since, err = momentOf("since", since); err == nil {
				r.Until, err = momentOf("until", until)
			}
			if err != nil {
				return usageError{err}
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
						_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.GetTime().AsTime().Format(time.RFC3339),
							e.GetActor(), e.GetAction(), e.GetObject())
					}
				})
			})
		},
	}
	cmd.Flags().StringVar(&r.Actor, "by", "", "only changes by actors whose name contains this")
	cmd.Flags().StringVar(&r.Action, "did", "", "only changes whose action contains this, such as update")
	cmd.Flags().StringVar(&r.Object, "to", "", "only changes of objects that begin with this, such as tags/order")
	cmd.Flags().StringVar(&since, "since", "", "only changes from this time on: 2026-11-24T15:00:00Z, "+
		"or as long ago as 2h")
	cmd.Flags().StringVar(&until, "until", "", "only changes before this time, in the same way")
	cmd.Flags().IntVarP(&most, "most", "n", 100, "how many at most; 0 for all")
	return cmd
}

// momentOf parses a time, or how long ago it was; nil for none. Its error is Invalid.
func momentOf(flag, text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no bound
	}
	if ago, err := time.ParseDuration(text); err == nil {
		return timestamppb.New(time.Now().Add(-ago)), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid,
			"%s: %q; allowed: a time such as 2026-11-24T15:00:00Z, or how long ago, such as 2h", flag, text)
	}
	return timestamppb.New(at), nil
}

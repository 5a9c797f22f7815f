package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func newMigrate(c *common) *cobra.Command {
	t := c.target()
	one := func(use, short string, call func(context.Context, marchv1.ConsoleServiceClient,
		string) (*marchv1.Migration, error)) *cobra.Command {
		return newMigrateOne(c, t, use, short, call)
	}
	cmd := group("migrate", "Plan, run and undo changes of layout",
		newMigratePlan(c, t), newMigrateApply(c, t),
		one("status", "Show a migration", func(ctx context.Context, s marchv1.ConsoleServiceClient,
			id string) (*marchv1.Migration, error) {
			answer, err := s.GetMigration(ctx, &marchv1.GetMigrationRequest{Id: id})
			return answer.GetMigration(), err
		}),
		newMigrateWatch(c, t),
		one("pause", "Stop a migration before its next move",
			func(ctx context.Context, s marchv1.ConsoleServiceClient, id string) (*marchv1.Migration, error) {
				answer, err := s.PauseMigration(ctx, &marchv1.PauseMigrationRequest{Id: id})
				return answer.GetMigration(), err
			}),
		one("resume", "Continue a paused migration", func(ctx context.Context, s marchv1.ConsoleServiceClient,
			id string) (*marchv1.Migration, error) {
			answer, err := s.ResumeMigration(ctx, &marchv1.ResumeMigrationRequest{Id: id})
			return answer.GetMigration(), err
		}),
		newMigrateAbort(c, t), newMigrateContinue(c, t), newMigrateList(c, t))
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func newMigratePlan(c *common, t *target) *cobra.Command {
	r := &marchv1.PlanMigrationRequest{}
	var targetFile, out string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Plan a change of layout; changes nothing",
		Long: `Plan a change of layout; changes nothing. Say where to go by a layout file
(--target), or by edits of the current layout. The moves come at once. Their
cost follows: the console reads all tags for it.`,
		Example: `  march migrate plan --move a:25-50=b            residues 25 to 49 of room a go to b
  march migrate plan --add-room c=75-100 --out plan.json
  march migrate plan --drain a
  march migrate plan --boundary 2000
  march migrate plan --target layout.json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if targetFile != "" {
				layout, err := readLayout(targetFile)
				if err != nil {
					return err
				}
				r.Target = layout
			}
			var plan *marchv1.Plan
			err := callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.PlanMigration(ctx, r)
				plan = answer.GetPlan()
				return err
			})
			if err != nil {
				return err
			}
			return showPlan(cmd.Context(), c, t, plan, out)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&targetFile, "target", "", "the layout to reach: a JSON file, - for standard input")
	flags.StringArrayVar(&r.Move, "move", nil, "A:LOWER-UPPER=B: residues of room A go to room B; may be repeated")
	flags.StringArrayVar(&r.AddRoom, "add-room", nil, "C=LOWER-UPPER: a new room gets residues; may be repeated")
	flags.StringArrayVar(&r.Drain, "drain", nil, "a room to remove; its residues become free; may be repeated")
	flags.StringArrayVar(&r.Reserve, "reserve", nil, "NAME=LOWER-UPPER: residues that no room has are kept for "+
		"another cluster; may be repeated")
	flags.StringArrayVar(&r.Release, "release", nil, "the name of a reserved range to give up; may be repeated")
	flags.Int64Var(&r.Boundary, "boundary", 0, "a new boundary, to which the ranges are scaled")
	flags.BoolVar(&r.Atomic, "atomic", false, "allow one atomic switch if smaller moves cannot reach the target")
	flags.BoolVar(&r.Force, "force", false, "also plan a change that apply refuses: "+
		"one that may leave a room no ID of a tag, or a boundary above a thousandth of the IDs that a tag has left")
	flags.StringVar(&out, "out", "", "write the plan to this file, for apply")
	return cmd
}

// showPlan prints a plan, and its cost when that is counted: a count reads every tag, which
// takes a while, and the moves need no tag. Then showPlan writes the plan to
// the file out, if that is not empty. Its error is Refused if the plan would not be
// applied without force.
func showPlan(ctx context.Context, c *common, t *target, plan *marchv1.Plan, out string) error {
	if c.output == "text" {
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		movesText(w, plan)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	refused := ""
	if plan.GetCost() == nil {
		counted, err := planCost(ctx, c, t, plan)
		if err != nil {
			return err
		}
		plan.Use = roomsUse(ctx, t, plan)
		plan.Cost, plan.Unreadable = counted.GetCost(), passedOver(plan.GetUnreadable(), counted)
		if !plan.GetForce() {
			refused = counted.GetRefused()
		}
	}
	if out != "" && refused == "" {
		if err := writePlan(out, plan); err != nil {
			return err
		}
	}
	// A program that reads JSON takes any plan for one that it may apply.
	if refused == "" || c.output == "text" {
		err := c.print(plan, func(w *tabwriter.Writer) {
			planCostText(w, plan.GetCost())
			useText(w, plan.GetUse())
			if out != "" && refused == "" {
				_, _ = fmt.Fprintf(w, "\nwritten to %s; `march migrate apply %s` applies it\n", out, out)
			}
		})
		if err != nil {
			return err
		}
	}
	if refused != "" {
		return allocator.Errorf(allocator.Refused, "%s", refused)
	}
	return nil
}

func writePlan(path string, plan *marchv1.Plan) error {
	b, err := protojson.MarshalOptions{Multiline: true}.Marshal(plan)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		return allocator.Errorf(allocator.Invalid, "out: %w", err)
	}
	return nil
}

// maxPlanFile bounds a plan's file, in bytes.
const maxPlanFile = 4 << 20

func newMigrateApply(c *common, t *target) *cobra.Command {
	var yes, detach, force, whenIdle bool
	var hold, idleFor, idleTimeout time.Duration
	cmd := &cobra.Command{
		Use:   "apply PLAN",
		Short: "Apply a plan, and watch the migration; ^C leaves it running",
		Long: `Apply a plan, and watch the migration until it has ended. Consoles make the
moves, so ^C leaves the migration running.

First a console reads all tags, and refuses a plan that may leave a room no ID
of a tag, or whose boundary is too large for a tag. With --force it does not
read them.

With --when-idle it waits until the rooms that the plan takes out have had no
callers for --idle-for. A client that leases its IDs calls its room at least once
in the room's --hold (10m by default) while it issues: give a longer time then.`,
		Example: `  march migrate plan --move a:25-50=b --out plan.json
  march migrate apply plan.json`,
		Args: exactly("a plan's file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			content, err := readBounded(args[0], maxPlanFile)
			if err != nil {
				return err
			}
			plan := &marchv1.Plan{}
			if err := unmarshal(content, plan); err != nil {
				return allocator.Errorf(allocator.Invalid, "%s: not a plan: %w", args[0], err)
			}
			if !yes {
				if err := confirm(cmd.Context(), c, plan, args[0]); err != nil {
					return err
				}
			}
			if whenIdle { // after the question: the operator need not stay for the wait
				if err := waitIdle(cmd.Context(), c, t, plan, idleFor, idleTimeout); err != nil {
					return err
				}
			}
			request := &marchv1.ApplyMigrationRequest{Plan: plan, Hold: durationpb.New(hold), Force: force}
			// The count is named in the request, so the console does not read all tags a second time.
			if !force && !plan.GetForce() {
				if request.Count, err = checkCost(cmd.Context(), c, t, plan); err != nil {
					return err
				}
			}
			var id string
			err = callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.ApplyMigration(ctx, request)
				id = answer.GetMigration().GetId()
				if err == nil && detach {
					return c.print(answer.GetMigration(), func(w *tabwriter.Writer) {
						migrationText(w, answer.GetMigration())
					})
				}
				return err
			})
			// The console may have begun the migration although its answer did not arrive.
			if err != nil && (cmd.Context().Err() != nil || allocator.KindOf(err) == allocator.Unavailable) {
				_, _ = fmt.Fprintln(c.stderr, "`march migrate status` shows whether it was started")
			}
			if err != nil || detach {
				return err
			}
			return watch(cmd.Context(), c, t, id)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&yes, "yes", "y", false, "do not ask")
	flags.BoolVar(&detach, "detach", false, "start the migration and do not watch it")
	flags.BoolVar(&force, "force", false, "apply the plan even if it may leave a room no ID of a tag, "+
		"or its boundary is above a thousandth of the IDs that a tag has left; not needed for a plan made with --force")
	flags.BoolVar(&whenIdle, "when-idle", false, "first wait until the rooms that the plan takes out have no callers")
	flags.DurationVar(&idleFor, "idle-for", time.Minute, "how long these rooms must have had no callers, 1s to 1h")
	flags.DurationVar(&idleTimeout, "idle-timeout", 0,
		"how long to wait for that at most, exit code 5 then; 0 for no bound")
	flags.DurationVar(&hold, "hold", 0, "how long at least to wait for a silent instance (default the "+
		"instance's own --hold)")
	return cmd
}

// checkCost has a console count the cost of a plan. It returns the name of that count,
// so that the console need not count again to apply the plan. Its error is Refused if
// the console would not apply the plan.
func checkCost(ctx context.Context, c *common, t *target, plan *marchv1.Plan) (count string, err error) {
	counted, err := planCost(ctx, c, t, plan)
	if err == nil && counted.GetRefused() != "" {
		err = allocator.Errorf(allocator.Refused, "%s", counted.GetRefused())
	}
	return counted.GetCount(), err
}

// confirm shows a plan, and asks whether to apply it.
func confirm(ctx context.Context, c *common, plan *marchv1.Plan, path string) error {
	if path == "-" || !interactive() { // standard input was the plan, and has no answer
		return cannotAsk()
	}
	w := tabwriter.NewWriter(c.stderr, 0, 0, 2, ' ', 0)
	movesText(w, plan)
	planCostText(w, plan.GetCost())
	useText(w, plan.GetUse())
	_, _ = fmt.Fprintln(w)
	_ = w.Flush()
	return ask(ctx, c, "Apply this plan?")
}

func newMigrateOne(c *common, t *target, use, short string,
	call func(context.Context, marchv1.ConsoleServiceClient, string) (*marchv1.Migration, error)) *cobra.Command {
	without := "the migration under way"
	if use == "status" {
		without += ", or else the last one"
	}
	return &cobra.Command{
		Use:   use + " [ID]",
		Short: short,
		Long:  short + ". Without an ID it takes " + without + ".",
		Args:  atMostOneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				m, err := call(ctx, s, strings.Join(args, ""))
				if err != nil {
					return err
				}
				return c.print(m, func(w *tabwriter.Writer) { migrationText(w, m) })
			})
		},
	}
}

func atMostOneID(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return exactly("a migration's ID")(cmd, args)
	}
	return nil
}

func newMigrateAbort(c *common, t *target) *cobra.Command {
	return destroys(c, newMigrateOne(c, t, "abort", "Undo a migration: go back to the layout before it",
		func(ctx context.Context, s marchv1.ConsoleServiceClient, id string) (*marchv1.Migration, error) {
			answer, err := s.AbortMigration(ctx, &marchv1.AbortMigrationRequest{Id: id})
			return answer.GetMigration(), err
		}), func([]string) (string, error) { return "Undo the migration?", nil })
}

func newMigrateContinue(c *common, t *target) *cobra.Command {
	var without []string
	cmd := newMigrateOne(c, t, "continue", "Make the next move without instances that have not reported",
		func(ctx context.Context, s marchv1.ConsoleServiceClient, id string) (*marchv1.Migration, error) {
			answer, err := s.ContinueMigration(ctx, &marchv1.ContinueMigrationRequest{Id: id, Without: without})
			return answer.GetMigration(), err
		})
	cmd.Long += `

This counts only for the processes that are registered now, and for the next
move. Without --without it prints the instances that the migration waits for. An
instance that is left out may still issue IDs that it holds of residues that its
room gave up: unique, but no longer in its room's range.`
	cmd.Example = `  march migrate continue --without a/host-7`
	cmd.Flags().StringSliceVar(&without, "without", nil, "ROOM/INSTANCE, as status shows it; may be repeated")
	return cmd
}

func newMigrateList(c *common, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List migrations, the newest first",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				all := &marchv1.ListMigrationsResponse{}
				for token := ""; ; {
					page, err := s.ListMigrations(ctx, &marchv1.ListMigrationsRequest{PageSize: 1000, PageToken: token})
					if err != nil {
						return err
					}
					all.Migrations = append(all.Migrations, page.GetMigrations()...)
					all.Unreadable = passedOver(all.GetUnreadable(), page)
					if token = page.GetNextPageToken(); token == "" {
						break
					}
				}
				return c.print(all, func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintln(w, "ID\tSTATE\tMOVES\tSTARTED\tBY\tFROM\tTO")
					for _, m := range all.GetMigrations() {
						_, _ = fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s\t%s\t%s\t%s\n", m.GetId(), stateText(m),
							m.GetReached(), len(m.GetMoves()),
							m.GetCreated().AsTime().Format(time.RFC3339), m.GetActor(),
							cell(rangeParts(m.GetFrom())), cell(rangeParts(m.GetTarget())))
					}
				})
			})
		},
	}
}

func newMigrateWatch(c *common, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "watch [ID]",
		Short: "Watch a migration until it has ended",
		Args:  atMostOneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			return watch(cmd.Context(), c, t, strings.Join(args, ""))
		},
	}
}

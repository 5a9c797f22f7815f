package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/words"
)

func newMigrate(c *common) *cobra.Command {
	t := c.target()
	type console = marchv1.ConsoleServiceClient
	underWay := func(short, or string) string {
		return short + ". Without an ID it takes the migration under way" + or + "."
	}
	one := func(use, short, ask string) callRow {
		return callRow{use: use + " [ID]", short: short, long: underWay(short, ""), ask: ask}
	}
	status := one("status", "Show a migration", "")
	status.long = underWay(status.short, ", or else the last one")
	next := one("continue", "Make the next move without instances that have not reported", "")
	next.long += `

This counts only for the processes that are registered now, and for the next
move. Without --without it prints the instances that the migration waits for. An
instance that is left out may still issue IDs that it holds of residues that its
room gave up: unique, but no longer in its room's range.`
	next.example = `  march migrate continue --without a/host-7`
	next.flags = []rowFlag{{"without", "without", "", "ROOM/INSTANCE, as status shows it; may be repeated"}}
	watched := &marchv1.WatchMigrationRequest{}
	cmd := group("migrate", "Plan, run and undo changes of layout",
		newMigratePlan(c, t), newMigrateApply(c, t),
		newCall(c, t, status, &marchv1.GetMigrationRequest{}, console.GetMigration,
			(*marchv1.GetMigrationResponse).GetMigration, migrationText),
		newRow(one("watch", "Watch a migration until it has ended", ""), watched,
			func(cmd *cobra.Command, _ []string) error { return watch(cmd.Context(), c, t, watched.GetId()) }),
		newCall(c, t, one("pause", "Stop a migration before its next move", ""), &marchv1.PauseMigrationRequest{},
			console.PauseMigration, (*marchv1.PauseMigrationResponse).GetMigration, migrationText),
		newCall(c, t, one("resume", "Continue a paused migration", ""), &marchv1.ResumeMigrationRequest{},
			console.ResumeMigration, (*marchv1.ResumeMigrationResponse).GetMigration, migrationText),
		newCall(c, t, one("abort", "Undo a migration: go back to the layout before it", "Undo the migration?"),
			&marchv1.AbortMigrationRequest{}, console.AbortMigration,
			(*marchv1.AbortMigrationResponse).GetMigration, migrationText),
		newCall(c, t, next, &marchv1.ContinueMigrationRequest{}, console.ContinueMigration,
			(*marchv1.ContinueMigrationResponse).GetMigration, migrationText),
		newCall(c, t, callRow{use: "list", short: "List migrations, the newest first"},
			&marchv1.ListMigrationsRequest{}, allPages(console.ListMigrations, nil), whole, migrationsText))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func migrationsText(w *tabwriter.Writer, answer *marchv1.ListMigrationsResponse) {
	list(w, setting.Migrations, answer.GetMigrations())
}

func newMigratePlan(c *common, t *target) *cobra.Command {
	r := &marchv1.PlanMigrationRequest{}
	var targetFile, out string
	cmd := newRow(callRow{
		use: "plan", short: "Plan a change of layout; changes nothing",
		long: `Plan a change of layout; changes nothing. Say where to go by a layout file
(--target), or by edits of the current layout. A plan that an earlier command
wrote is planned anew, for the layout of now, if you give it as --target. The
moves come at once. Their cost follows: the console reads all tags for it.`,
		example: `  march migrate plan --move a:25-50=b            residues 25 to 49 of room a go to b
  march migrate plan --add-room c=75-100 --out plan.json
  march migrate plan --drain a
  march migrate plan --boundary 2000
  march migrate plan --target layout.json
  march migrate plan --target plan.json --out plan.json`,
		flags: []rowFlag{
			{"move", "move", "", "A:LOWER-UPPER=B: residues of room A go to room B; may be repeated"},
			{"add_room", "add-room", "", "C=LOWER-UPPER: a new room gets residues; may be repeated"},
			{"drain", "drain", "", "a room to remove; its residues become free; may be repeated"},
			{"reserve", "reserve", "", "NAME=LOWER-UPPER: residues that no room has are kept for another cluster; " +
				"may be repeated"},
			{"release", "release", "", "the name of a reserved range to give up; may be repeated"},
			{"shards", "shards", "", shardsHelp},
			{"boundary", "boundary", "", "a new boundary, to which the ranges are scaled"},
			{"atomic", "atomic", "", "allow one atomic switch if smaller moves cannot reach the target"},
			{"force", "force", "", "also plan a change that apply refuses: one that may leave a room no ID of a tag, " +
				"or a boundary above a thousandth of the IDs that a tag has left"},
		},
	}, r, func(cmd *cobra.Command, _ []string) (err error) {
		if targetFile != "" {
			if r.Target, err = readTarget(targetFile); err != nil {
				return err
			}
		}
		answer, err := askConsole(cmd.Context(), t, r, marchv1.ConsoleServiceClient.PlanMigration)
		if err != nil {
			return err
		}
		return showPlan(cmd.Context(), c, t, answer.GetPlan(), out)
	})
	cmd.Flags().StringVar(&targetFile, "target", "", "the layout to reach: a JSON file, or a plan's file, - for "+
		"standard input")
	cmd.Flags().StringVar(&out, "out", "", "write the plan to this file, for apply")
	return cmd
}

// readTarget reads the layout to reach from a file of its own, or from that of a plan.
func readTarget(path string) (*marchv1.Layout, error) {
	content, err := readBounded("target", path, maxPlanFile)
	if err != nil {
		return nil, err
	}
	var file struct{ Target json.RawMessage }
	if json.Unmarshal(content, &file) == nil && file.Target != nil {
		plan, err := parsePlan(path, content)
		return plan.GetTarget(), err
	}
	return parseLayout(path, content)
}

func parsePlan(path string, content []byte) (*marchv1.Plan, error) {
	plan := &marchv1.Plan{}
	if err := unmarshal(content, plan); err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "%s: not a plan: %w", path, err)
	}
	return plan, nil
}

// showPlan prints a plan, and its cost when that is counted: a count reads every tag, which
// takes a while, and the moves need no tag. Then showPlan writes the plan to
// the file out, if that is not empty. Its error is Refused if the plan would not be
// applied without force.
func showPlan(ctx context.Context, c *common, t *target, plan *marchv1.Plan, out string) error {
	if c.output == "text" {
		w := tabwriter.NewWriter(lines{c.stdout}, 0, 0, 2, ' ', 0)
		movesText(w, plain(plan))
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
		plan.Cost = counted.GetCost()
		plan.Unreadable = distinct(append(plan.GetUnreadable(), counted.GetUnreadable()...))
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
	var idleFor, idleTimeout time.Duration
	request := &marchv1.ApplyMigrationRequest{Hold: &durationpb.Duration{}}
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
			content, err := readBounded("file", args[0], maxPlanFile)
			if err != nil {
				return err
			}
			plan, err := parsePlan(args[0], content)
			if err != nil {
				return err
			}
			if !yes {
				if err := confirm(cmd.Context(), c, t, plan, args[0]); err != nil {
					return err
				}
			}
			if whenIdle { // after the question: the operator need not stay for the wait
				if err := waitIdle(cmd.Context(), c, t, plan, idleFor, idleTimeout); err != nil {
					return err
				}
			}
			request.Plan, request.Force = plan, force
			// The count is named in the request, so the console does not read all tags a second time.
			if !force && !plan.GetForce() {
				if request.Count, err = checkCost(cmd.Context(), c, t, plan); err != nil {
					return planAnew(cmd.Context(), t, plan, args[0], err)
				}
			}
			answer, err := askConsole(cmd.Context(), t, request, marchv1.ConsoleServiceClient.ApplyMigration)
			m := answer.GetMigration()
			if err == nil && detach {
				err = c.print(m, func(w *tabwriter.Writer) { migrationText(w, m) })
			}
			// The console may have begun the migration although its answer did not arrive.
			if err != nil && (cmd.Context().Err() != nil || allocator.KindOf(err) == allocator.Unavailable) {
				_, _ = fmt.Fprintln(c.stderr, "`march migrate status` shows whether it was started")
			}
			if err != nil || detach {
				return planAnew(cmd.Context(), t, plan, args[0], err)
			}
			return watch(cmd.Context(), c, t, m.GetId())
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
	for _, f := range rowFlags(setting.ApplyFields) {
		f.add(cmd, request)
	}
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

// planAnew adds to the refusal of a plan that is stale the command that makes it again, for the layout of now.
func planAnew(ctx context.Context, t *target, plan *marchv1.Plan, path string, err error) error {
	if allocator.KindOf(err) != allocator.Conflict || path == "-" {
		return err
	}
	now, asked := askConsole(ctx, t, &marchv1.GetLayoutRequest{}, marchv1.ConsoleServiceClient.GetLayout)
	if asked != nil || now.GetLayout().GetLayout().GetVersion() == plan.GetFrom().GetVersion() {
		return err
	}
	command := "march migrate plan --target " + path + " --out " + path
	if plan.GetAtomic() {
		command += " --atomic"
	}
	if plan.GetForce() {
		command += " --force"
	}
	if plan.GetShards() > 0 {
		command += fmt.Sprint(" --shards ", plan.GetShards())
	}
	return allocator.Errorf(allocator.Conflict,
		"%w. A plan for the same target undoes that where it differs. Next: `%s`", err, command)
}

// confirm shows a plan, and asks whether to apply it.
func confirm(ctx context.Context, c *common, t *target, plan *marchv1.Plan, path string) error {
	if path == "-" || !interactive() { // standard input was the plan, and has no answer
		return cannotAsk()
	}
	asOfNow(ctx, t, plan)
	w := tabwriter.NewWriter(lines{c.stderr}, 0, 0, 2, ' ', 0)
	shown := plain(plan)
	movesText(w, shown)
	planCostText(w, shown.GetCost())
	useText(w, shown.GetUse())
	_, _ = fmt.Fprintln(w)
	_ = w.Flush()
	if n := len(plan.GetWarnings()); n > 0 {
		return ask(ctx, c, "Apply this plan in spite of "+words.Counted(n, "warning")+"?")
	}
	return ask(ctx, c, "Apply this plan?")
}

// asOfNow takes anew what a plan's file says of instances and clients: some may have started or
// ended since. A plan that can no longer be made stays, as its apply says why.
func asOfNow(ctx context.Context, t *target, plan *marchv1.Plan) {
	answer, err := askConsole(ctx, t, &marchv1.PlanMigrationRequest{Target: plan.GetTarget(), Atomic: plan.GetAtomic(),
		Force: plan.GetForce(), Shards: plan.GetShards()}, marchv1.ConsoleServiceClient.PlanMigration)
	now := answer.GetPlan()
	if err == nil && proto.Equal(now.GetFrom(), plan.GetFrom()) {
		plan.Instances, plan.Silent, plan.Unreadable = now.GetInstances(), now.GetSilent(), now.GetUnreadable()
		plan.Keeping, plan.Machines, plan.Warnings = now.GetKeeping(), now.GetMachines(), now.GetWarnings()
	}
}

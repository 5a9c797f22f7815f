package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
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
			&marchv1.ListMigrationsRequest{}, allPages(console.ListMigrations, nil), whole,
			listOf(setting.Migrations, (*marchv1.ListMigrationsResponse).GetMigrations)))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
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
			{"atomic", "atomic", "", "make the plan one move, of whatever kind it then is: a switch, if it must be"},
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
		return nil, invalidf("%s: not a plan: %w", path, err)
	}
	return plan, nil
}

// showPlan prints a plan, and its cost when that is counted: a count reads every tag, which
// takes a while, and the moves need no tag. Then showPlan writes the plan to
// the file out, if that is not empty. Its error is Refused if the plan would not be
// applied without force.
func showPlan(ctx context.Context, c *common, t *target, plan *marchv1.Plan, out string) error {
	if c.output == "text" {
		if err := aligned(c.stdout, func(w *tabwriter.Writer) { movesText(w, plan) }); err != nil {
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
				put(w, "\nwritten to %s; `march migrate apply %s` applies it\n", out, out)
			}
		})
		if err != nil {
			return err
		}
	}
	if refused != "" {
		return refusedf("%s", refused)
	}
	return nil
}

func writePlan(path string, plan *marchv1.Plan) error {
	b, err := protojson.MarshalOptions{Multiline: true}.Marshal(plan)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		return invalidf("out: %w", err)
	}
	return nil
}

// maxPlanFile bounds a plan's file, in bytes.
const maxPlanFile = 4 << 20

// migrateFlags are those of `march migrate apply` that are no fields of its request.
type migrateFlags struct {
	Yes         bool          `flag:"yes,y" help:"do not ask"`
	Detach      bool          `flag:"detach" help:"start the migration and do not watch it"`
	WhenIdle    bool          `flag:"when-idle" help:"first wait until the rooms that the plan takes out have no callers"`
	IdleFor     time.Duration `flag:"idle-for" help:"how long these rooms must have had no callers, 1s to 1h"`
	IdleTimeout time.Duration `flag:"idle-timeout" help:"how long to wait for that at most, exit code 5 then; 0 for no bound"`
}

func newMigrateApply(c *common, t *target) *cobra.Command {
	f := migrateFlags{IdleFor: time.Minute}
	request := &marchv1.ApplyMigrationRequest{Hold: &durationpb.Duration{}}
	cmd := newRow(callRow{
		use: "apply PLAN", short: "Apply a plan, and watch the migration; ^C leaves it running",
		long: `Apply a plan, and watch the migration until it has ended. Consoles make the
moves, so ^C leaves the migration running.

First a console reads all tags, and refuses a plan that may leave a room no ID
of a tag, or whose boundary is too large for a tag. With --force it does not
read them.

With --when-idle it waits until the rooms that the plan takes out have had no
callers for --idle-for. A client that leases its IDs calls its room at least once
in the room's --hold (10m by default) while it issues: give a longer time then.`,
		example: `  march migrate plan --move a:25-50=b --out plan.json
  march migrate apply plan.json`,
		flags: append(rowFlags(setting.ApplyFields), rowFlag{"force", "force", "", "apply the plan even if it may " +
			"leave a room no ID of a tag, or its boundary is above a thousandth of the IDs that a tag has left; not " +
			"needed for a plan made with --force"}),
	}, request, func(cmd *cobra.Command, args []string) error {
		content, err := readBounded("file", args[0], maxPlanFile)
		if err != nil {
			return err
		}
		plan, err := parsePlan(args[0], content)
		if err == nil && !f.Yes {
			err = confirm(cmd.Context(), c, t, plan, args[0])
		}
		if err == nil && f.WhenIdle { // after the question: the operator need not stay for the wait
			err = waitIdle(cmd.Context(), c, t, plan, f.IdleFor, f.IdleTimeout)
		}
		if err != nil {
			return err
		}
		// The count is named in the request, so the console does not read all tags a second time.
		if request.Plan = plan; !request.GetForce() && !plan.GetForce() {
			if request.Count, err = checkCost(cmd.Context(), c, t, plan); err != nil {
				return planAnew(cmd.Context(), t, plan, args[0], err)
			}
		}
		answer, err := askConsole(cmd.Context(), t, request, marchv1.ConsoleServiceClient.ApplyMigration)
		m := answer.GetMigration()
		if err == nil && f.Detach {
			err = c.print(m, func(w *tabwriter.Writer) { migrationText(w, m) })
		}
		// The console may have begun the migration although its answer did not arrive.
		if err != nil && (cmd.Context().Err() != nil || allocator.KindOf(err) == allocator.Unavailable) {
			put(c.stderr, "`march migrate status` shows whether it was started\n")
		}
		if err != nil || f.Detach {
			return planAnew(cmd.Context(), t, plan, args[0], err)
		}
		return watch(cmd.Context(), c, t, m.GetId())
	})
	cmd.Args = exactly("a plan's file")
	return addFlags(cmd, &f)
}

// checkCost has a console count the cost of a plan. It returns the name of that count,
// so that the console need not count again to apply the plan. Its error is Refused if
// the console would not apply the plan.
func checkCost(ctx context.Context, c *common, t *target, plan *marchv1.Plan) (count string, err error) {
	counted, err := planCost(ctx, c, t, plan)
	if err == nil && counted.GetRefused() != "" {
		err = refusedf("%s", counted.GetRefused())
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
	err := aligned(c.stderr, func(w *tabwriter.Writer) {
		movesText(w, plan)
		planCostText(w, plan.GetCost())
		useText(w, plan.GetUse())
		put(w, "\n")
	})
	if err != nil {
		return err
	}
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

// pictureWidth is how many characters a picture of a layout has.
const pictureWidth = 60

// picture returns a layout as a bar, "" for one that is not valid.
func picture(l *marchv1.Layout) string {
	layout, err := api.LayoutFromProto(l)
	if err != nil {
		return ""
	}
	return plan.Picture(layout, pictureWidth)
}

// movesText shows a plan without its costs.
func movesText(w *tabwriter.Writer, p *marchv1.Plan) {
	boundary := func(l *marchv1.Layout) string { return fmt.Sprintf(", boundary %d", l.GetBoundary()) }
	layoutRows(w, fmt.Sprintf("now, layout %d", p.GetFrom().GetVersion()), p.GetFrom(), boundary(p.GetFrom()))
	for i, m := range p.GetMoves() {
		layoutRows(w, fmt.Sprintf("%d. %s", i+1, api.Word(m.GetKind())), m.GetLayout(), boundary(m.GetLayout()))
	}
	put(w, "\n")
	for i, m := range p.GetMoves() {
		folded(w, fmt.Sprintf("%d. ", i+1), m.GetWhy())
		if len(m.GetLoses()) > 0 && i < len(p.GetMoves())-1 {
			folded(w, "   ", fmt.Sprintf("then waits until every instance of %s reports",
				strings.Join(m.GetLoses(), ", ")))
		}
	}
	if n := len(p.GetInstances()); n > 0 {
		put(w, "\n")
		folded(w, "", fmt.Sprintf("%s must report: %s", words.Counted(n, "instance"),
			strings.Join(p.GetInstances(), ", ")))
	}
	if len(p.GetSilent()) > 0 {
		folded(w, "", "SILENT now: "+strings.Join(p.GetSilent(), ", "))
	}
	if len(p.GetKeeping()) > 0 {
		folded(w, "", "Clients of these doors keep IDs, and may issue them although they are of residues that the "+
			"room has lost (the IDs stay unique): "+strings.Join(p.GetKeeping(), "; "))
	}
	if len(p.GetMachines()) > 0 {
		folded(w, "", "These clients still have machine IDs that become workers of a room. Stop them first, or "+
			"their IDs and the room's have the same number: "+strings.Join(p.GetMachines(), "; "))
	}
	for _, warning := range p.GetWarnings() {
		put(w, "\n")
		folded(w, "WARNING: ", warning)
	}
}

func planCostText(w *tabwriter.Writer, cost *marchv1.PlanCost) {
	if cost == nil {
		put(w, "\nThe cost of this plan was not counted.\n")
		return
	}
	put(w, "\nskipped in total, at most: %s, of %s\n", words.Counted(cost.GetSkipped(), "ID"),
		words.Counted(cost.GetTags(), "tag"))
	if n := cost.GetEnding(); n > 0 {
		put(w, "\nWARNING: after this plan, rooms have hardly any IDs left of %s:\n", words.Counted(n, "tag"))
		for _, e := range cost.GetEnds() {
			put(w, "  %s: room %s has %s up to the limit %d\n", e.GetTag(), e.GetRoom(),
				words.Counted(e.GetLeft(), "ID"), e.GetLimit())
		}
	}
	costText(w, cost.GetWorst())
}

// costText shows the cost of a plan for each tag and room.
func costText(w *tabwriter.Writer, tags []*marchv1.TagCost) {
	rows := setting.RoomCostsOf(tags)
	if len(rows) > 0 {
		put(w, "\n")
		list(w, setting.RoomCosts, rows)
	}
	for _, r := range rows {
		if r.GetRefused() != "" {
			put(w, "\nWARNING: room %s: %s\n", r.GetRoom(), r.GetRefused())
		}
	}
}

func migrationText(w *tabwriter.Writer, m *marchv1.Migration) {
	hold := "each instance's own"
	if d := m.GetHold().AsDuration(); d > 0 {
		hold = d.String() + " at least"
	}
	put(w, "migration\t%s\nstate\t%s, %d of %d moves made\nstarted\t%s by %s\nhold\t%s\n", m.GetId(),
		setting.MigrationState(m), m.GetReached(), len(m.GetMoves()), cellText(m.GetCreated()), m.GetActor(), hold)
	problemsText(w, m.GetProblems())
	put(w, "\n")
	layoutRows(w, "   from", m.GetFrom(), "")
	for i, move := range m.GetMoves() {
		mark := " "
		if i < int(m.GetReached()) {
			mark = "*"
		}
		layoutRows(w, fmt.Sprintf("%s  %d. %s", mark, i+1, api.Word(move.GetKind())), move.GetLayout(), "")
	}
	for i, move := range m.GetMoves() {
		if until := move.GetClientsUntil(); until != nil {
			put(w, "\n")
			folded(w, "", fmt.Sprintf("move %d: until %s clients may use IDs that they leased of residues that rooms "+
				"%s lost", i+1, cellText(until), strings.Join(move.GetLoses(), ", ")))
		}
	}
	if len(m.GetWaiting()) > 0 {
		put(w, "\n")
		list(w, setting.Waits, m.GetWaiting())
	}
	put(w, "\n")
	for _, entry := range m.GetLog() {
		field(w, cellText(entry.GetTime()), entry.GetText())
	}
}

// watch shows a migration until it has ended: a terminal has one line that changes,
// other outputs a new line for each change. If the console goes away, watch waits
// for it.
func watch(ctx context.Context, c *common, t *target, id string) error {
	progress := newProgress(c, soon, soon)
	var last *marchv1.Migration
	for {
		err := watchOnce(ctx, t, id, func(m *marchv1.Migration) {
			id, last = m.GetId(), m
			progress.say(migrationLine(m))
		})
		switch {
		case ctx.Err() != nil && err != nil && id == "": // none was seen yet
			return ctx.Err()
		case ctx.Err() != nil && err != nil:
			progress.end()
			put(c.stderr, "the migration goes on; `march migrate watch %s` watches it, `march migrate abort "+
				"%s` undoes it\n", id, id)
			return nil
		case err == nil:
			progress.end()
			if err := c.print(last, func(w *tabwriter.Writer) { migrationText(w, last) }); err != nil {
				return err
			}
			if last.GetState() == marchv1.MigrationState_MIGRATION_STATE_ABORTED {
				return allocator.Errorf(allocator.Conflict, "migration %s was aborted", id)
			}
			return nil
		// Before its first answer a console may be at another address, and waiting would hide that.
		case allocator.KindOf(err) != allocator.Unavailable || id == "":
			progress.end()
			return err
		}
		progress.say("the console at " + t.address + " does not answer; trying again")
		store.Sleep(ctx, 500*time.Millisecond)
	}
}

// watchOnce calls show whenever a migration has changed, until it has ended.
func watchOnce(ctx context.Context, t *target, id string, show func(*marchv1.Migration)) error {
	endless := *t
	// The timeout bounds one answer. This stream lasts as long as the migration: until its slowest
	// instance has reported.
	if t.timeout > 0 { // else it is refused
		endless.timeout = 7 * 24 * time.Hour
	}
	return callConsole(ctx, &endless, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
		stream, err := s.WatchMigration(ctx, &marchv1.WatchMigrationRequest{Id: id})
		if err != nil {
			return err
		}
		for {
			answer, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			show(answer.GetMigration())
		}
	})
}

// migrationLine shows how far a migration is.
func migrationLine(m *marchv1.Migration) string {
	line := fmt.Sprintf("%s  %s  move %d of %d", m.GetId(), setting.MigrationState(m), m.GetReached(),
		len(m.GetMoves()))
	if n := int(m.GetReached()); n > 0 && n <= len(m.GetMoves()) {
		line += " (" + api.Word(m.GetMoves()[n-1].GetKind()) + ")"
	}
	var waiting []string
	for _, i := range m.GetWaiting() {
		who := i.GetInstance()
		if i.GetSilentSince() != nil {
			who += " (silent since " + i.GetSilentSince().AsTime().Format(time.TimeOnly) + ")"
		}
		waiting = append(waiting, who)
	}
	if len(waiting) > 0 {
		line += "  waiting for " + cell(waiting)
	}
	if m.GetError() != "" {
		line += fmt.Sprintf("  ERROR since %s: %s.", m.GetErrorSince().AsTime().Format(time.RFC3339), m.GetError())
		for _, p := range m.GetProblems()[:min(1, len(m.GetProblems()))] {
			line += " " + problem.Do(p, printable)
		}
	}
	return line
}

// planCost has a console count the cost of a plan, and shows the progress on a
// terminal.
func planCost(ctx context.Context, c *common, t *target, plan *marchv1.Plan) (*marchv1.CountPlanCostResponse, error) {
	l, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer l.close()
	line := newProgress(c, soon, soon)
	defer line.end()
	// The console answers after this wait, counted or not: each answer is progress.
	wait := time.Second
	if line.tty {
		wait = line.every
	}
	request := &marchv1.CountPlanCostRequest{Plan: plan, Wait: durationpb.New(min(wait, t.timeout/2))}
	for {
		answer, err := askConsole(ctx, l, request, marchv1.ConsoleServiceClient.CountPlanCost)
		switch {
		case err != nil:
			return nil, err
		case answer.GetCost() != nil:
			return answer, nil
		}
		request.Count = answer.GetCount()
		if line.tty { // elsewhere it would be many lines
			line.say(costLine(answer))
		}
	}
}

// costLine shows how far the cost of a plan is counted.
func costLine(r *marchv1.CountPlanCostResponse) string {
	const text = "counting the cost of the plan"
	all := r.GetTags()
	if all == 0 {
		return text
	}
	read := min(r.GetRead(), all) // tags are created meanwhile
	return fmt.Sprintf("%3.0f%%  %s: %s of %s", 100*float64(read)/float64(all), text, words.Grouped(read),
		words.Counted(all, "tag"))
}

// Idle is what the rooms' instances saw: no ID issued and none leased for a while. An instance
// that does not answer is not idle. A client with IDs that it leased before issues them without
// a room, so it is seen again only when it leases.

// leavingRooms returns the rooms that have a range in from and none in target, sorted.
func leavingRooms(from, target *marchv1.Layout) []string {
	return slices.DeleteFunc(sortedKeys(from.GetRooms()), func(room string) bool {
		return target.GetRooms()[room] != nil
	})
}

// waitUntilIdle returns when each of the rooms was idle for so long. use asks for the use of a room, once a second, and
// say is told what is waited for. Its errors are those of use, except Unavailable, and Unavailable if ctx ends first.
func waitUntilIdle(ctx context.Context, rooms []string, idleFor time.Duration,
	use func(ctx context.Context, room string) (*marchv1.RoomUse, error), say func(line string)) error {
	waiting := ""
	for {
		var busy []string
		for _, room := range rooms {
			u, err := use(ctx, room)
			switch {
			case err != nil && ctx.Err() == nil && allocator.KindOf(err) != allocator.Unavailable:
				return err
			case err != nil:
				busy = append(busy, fmt.Sprintf("room %s: %v", room, err))
			case u.GetIdle() == nil || u.GetIdle().AsDuration() < idleFor:
				busy = append(busy, roomUseText(u))
			}
		}
		if len(busy) == 0 {
			return nil
		}
		if ctx.Err() == nil {
			waiting = strings.Join(busy, "; ")
			say("waits for callers to leave: " + waiting)
		}
		if !store.Sleep(ctx, time.Second) {
			return allocator.Errorf(allocator.Unavailable, "not applied: callers were still there: %s", waiting)
		}
	}
}

func roomUseText(u *marchv1.RoomUse) string {
	if len(u.GetSilent()) > 0 {
		return fmt.Sprintf("room %s: not known, because these do not answer: %s", u.GetRoom(),
			strings.Join(u.GetSilent(), ", "))
	}
	idle := u.GetIdle().AsDuration()
	if idle >= time.Hour {
		return fmt.Sprintf("room %s: no caller in the last hour", u.GetRoom())
	}
	names := make([]string, 0, 3)
	for _, t := range u.GetLatest()[:min(len(u.GetLatest()), cap(names))] {
		names = append(names, t.GetTag())
	}
	tags := ""
	if u.GetTags() > 0 {
		tags = fmt.Sprintf("; tags of the last hour: %d, last %s", u.GetTags(), strings.Join(names, ", "))
	}
	return fmt.Sprintf("room %s: called %v ago, %.1f IDs a second%s", u.GetRoom(),
		idle.Round(time.Second), u.GetRate(), tags)
}

// roomsUse returns what callers did lately in the rooms that a plan takes out.
func roomsUse(ctx context.Context, t *target, plan *marchv1.Plan) (list []*marchv1.RoomUse) {
	for _, room := range leavingRooms(plan.GetFrom(), plan.GetTarget()) {
		u, err := roomUse(ctx, t, room)
		if err != nil { // a plan is of use without it
			u = &marchv1.RoomUse{Room: room, Silent: []string{"the console (" + err.Error() + ")"}}
		}
		list = append(list, u)
	}
	return list
}

func roomUse(ctx context.Context, t *target, room string) (*marchv1.RoomUse, error) {
	answer, err := askConsole(ctx, t, &marchv1.GetRoomUseRequest{Room: room}, marchv1.ConsoleServiceClient.GetRoomUse)
	return answer.GetUse(), err
}

// useText shows what callers did in the rooms that a plan takes out.
func useText(w *tabwriter.Writer, list []*marchv1.RoomUse) {
	for i, u := range list {
		if i == 0 {
			put(w, "\nthe plan takes out:\n")
		}
		put(w, "  %s\n", roomUseText(u))
	}
}

// waitIdle waits until the rooms that a plan takes out have no callers.
func waitIdle(ctx context.Context, c *common, t *target, plan *marchv1.Plan, idleFor, timeout time.Duration) error {
	if idleFor < time.Second || idleFor > time.Hour {
		return usagef("idle-for: %v; allowed: 1s to 1h", idleFor)
	}
	if timeout < 0 {
		return usagef("idle-timeout: %v; allowed: 0s or more", timeout)
	}
	bounded, cancel := ctx, func() {}
	if timeout > 0 {
		bounded, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	p := newProgress(c, 0, soon)
	defer p.end()
	err := waitUntilIdle(bounded, leavingRooms(plan.GetFrom(), plan.GetTarget()), idleFor,
		func(ctx context.Context, room string) (*marchv1.RoomUse, error) { return roomUse(ctx, t, room) },
		func(line string) { p.tick(func() string { return line }) })
	return cmp.Or(ctx.Err(), err)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/words"
)

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
	_, _ = fmt.Fprintln(w)
	for i, m := range p.GetMoves() {
		folded(w, fmt.Sprintf("%d. ", i+1), m.GetWhy())
		if len(m.GetLoses()) > 0 && i < len(p.GetMoves())-1 {
			folded(w, "   ", fmt.Sprintf("then waits until every instance of %s reports",
				strings.Join(m.GetLoses(), ", ")))
		}
	}
	if n := len(p.GetInstances()); n > 0 {
		_, _ = fmt.Fprintln(w)
		folded(w, "", fmt.Sprintf("%s must report: %s", words.Counted(n, "instance"),
			strings.Join(p.GetInstances(), ", ")))
	}
	if len(p.GetSilent()) > 0 {
		folded(w, "", "SILENT now: "+strings.Join(p.GetSilent(), ", "))
	}
	if len(p.GetKeeping()) > 0 {
		folded(w, "", "Clients of these doors keep IDs, and may issue them although they are of residues that "+
			"the room has lost (the IDs stay unique): "+
			strings.Join(p.GetKeeping(), "; "))
	}
	if len(p.GetMachines()) > 0 {
		folded(w, "", "These clients still have machine IDs that become workers of a room. Stop them first, or "+
			"their IDs and the room's have the same number: "+strings.Join(p.GetMachines(), "; "))
	}
	for _, warning := range p.GetWarnings() {
		_, _ = fmt.Fprintln(w)
		folded(w, "WARNING: ", warning)
	}
}

func planCostText(w *tabwriter.Writer, cost *marchv1.PlanCost) {
	if cost == nil {
		_, _ = fmt.Fprintln(w, "\nThe cost of this plan was not counted.")
		return
	}
	_, _ = fmt.Fprintf(w, "\nskipped in total, at most: %s, of %s\n", words.Counted(cost.GetSkipped(), "ID"),
		words.Counted(cost.GetTags(), "tag"))
	if n := cost.GetEnding(); n > 0 {
		_, _ = fmt.Fprintf(w,
			"\nWARNING: after this plan, rooms have hardly any IDs left of %s:\n", words.Counted(n, "tag"))
		for _, e := range cost.GetEnds() {
			_, _ = fmt.Fprintf(w, "  %s: room %s has %s up to the limit %d\n", e.GetTag(), e.GetRoom(),
				words.Counted(e.GetLeft(), "ID"), e.GetLimit())
		}
	}
	costText(w, cost.GetWorst())
}

// costText shows the cost of a plan for each tag and room.
func costText(w *tabwriter.Writer, tags []*marchv1.TagCost) {
	if len(tags) > 0 {
		_, _ = fmt.Fprintln(w, "\nTAG\tROOM\tNEXT ID NOW\tTHEN, AT MOST\tSKIPS\tLEFT\tLASTS NOW\tLASTS AFTER")
	}
	for _, t := range tags {
		for _, r := range t.GetForecasts() {
			then := "none"
			if r.First != nil {
				then = strconv.FormatInt(r.GetFirst(), 10)
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%d\t%s\t%s\n", t.GetTag(), r.GetRoom(), r.GetNext(), then,
				r.GetSkipped(), r.GetLeft(), words.Lasts(r.GetLastsBefore(), t.GetRenews(), "-"),
				words.Lasts(r.GetLastsAfter(), t.GetRenews(), "-"))
		}
	}
	for _, t := range tags {
		for _, r := range t.GetForecasts() {
			if r.GetRefused() != "" {
				_, _ = fmt.Fprintf(w, "\nWARNING: room %s: %s\n", r.GetRoom(), r.GetRefused())
			}
		}
	}
}

func migrationText(w *tabwriter.Writer, m *marchv1.Migration) {
	_, _ = fmt.Fprintf(w, "migration\t%s\n", m.GetId())
	_, _ = fmt.Fprintf(w, "state\t%s, %d of %d moves made\n", setting.MigrationState(m), m.GetReached(),
		len(m.GetMoves()))
	_, _ = fmt.Fprintf(w, "started\t%s by %s\n", m.GetCreated().AsTime().Format(time.RFC3339), m.GetActor())
	hold := "each instance's own"
	if d := m.GetHold().AsDuration(); d > 0 {
		hold = d.String() + " at least"
	}
	_, _ = fmt.Fprintf(w, "hold\t%s\n", hold)
	problemsText(w, m.GetProblems())
	_, _ = fmt.Fprintln(w)
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
			_, _ = fmt.Fprintln(w)
			folded(w, "", fmt.Sprintf("move %d: until %[3]s clients may use IDs that they leased of residues "+
				"that rooms %[2]s lost",
				i+1, strings.Join(move.GetLoses(), ", "), until.AsTime().Format(time.RFC3339)))
		}
	}
	if len(m.GetWaiting()) > 0 {
		_, _ = fmt.Fprintln(w, "\nWAITING FOR\tSERVES LAYOUT\tSILENT SINCE")
	}
	for _, i := range m.GetWaiting() {
		since := "-"
		if i.GetSilentSince() != nil {
			since = i.GetSilentSince().AsTime().Format(time.RFC3339)
		}
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\n", i.GetInstance(), i.GetVersion(), since)
	}
	_, _ = fmt.Fprintln(w)
	for _, entry := range m.GetLog() {
		_, _ = fmt.Fprintf(w, "%s\t%s\n", entry.GetTime().AsTime().Format(time.RFC3339), entry.GetText())
	}
}

// watch shows a migration until it has ended: a terminal has one line that changes,
// other outputs a new line for each change. If the console goes away, watch waits
// for it.
func watch(ctx context.Context, c *common, t *target, id string) error {
	progress := newProgress(c)
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
			_, _ = fmt.Fprintf(c.stderr,
				"the migration goes on; `march migrate watch %s` watches it, `march migrate abort "+
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
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
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
		line += fmt.Sprintf("  ERROR since %s: %s.", m.GetErrorSince().AsTime().Format(time.RFC3339),
			printable(m.GetError()))
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
	line := newProgress(c)
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

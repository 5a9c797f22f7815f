package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
)

// pictureWidth is how many characters a picture of a layout has.
const pictureWidth = 60

// picture returns a layout as a bar, "" for one that is not valid.
func picture(l *marchv1.Layout) string {
	layout, err := api.LayoutFromProto(l)
	if err != nil {
		return ""
	}
	return console.Picture(layout, pictureWidth)
}

func planText(w *tabwriter.Writer, p *marchv1.Plan) {
	_, _ = fmt.Fprintf(w, "now, layout %d\t%s\t%s, boundary %d\n", p.GetFrom().GetVersion(), picture(p.GetFrom()), rangesText(p.GetFrom()), p.GetFrom().GetBoundary())
	for i, m := range p.GetMoves() {
		_, _ = fmt.Fprintf(w, "%d. %s\t%s\t%s, boundary %d\n", i+1, m.GetKind(), picture(m.GetLayout()), rangesText(m.GetLayout()), m.GetLayout().GetBoundary())
	}
	_, _ = fmt.Fprintln(w)
	for i, m := range p.GetMoves() {
		_, _ = fmt.Fprintf(w, "%d. %s\n", i+1, m.GetWhy())
		if len(m.GetLoses()) > 0 && i < len(p.GetMoves())-1 {
			_, _ = fmt.Fprintf(w, "   then waits until every instance of %s reports\n", strings.Join(m.GetLoses(), ", "))
		}
	}
	if n := len(p.GetInstances()); n > 0 {
		_, _ = fmt.Fprintf(w, "\n%s must report: %s\n", counted(int64(n), "instance"), strings.Join(p.GetInstances(), ", "))
	}
	if len(p.GetSilent()) > 0 {
		_, _ = fmt.Fprintf(w, "SILENT now: %s\n", strings.Join(p.GetSilent(), ", "))
	}
	cost := p.GetCost()
	_, _ = fmt.Fprintf(w, "\nskipped in all: %s, of %s\n", counted(cost.GetSkipped(), "ID"), counted(cost.GetTags(), "tag"))
	if n := cost.GetEnding(); n > 0 {
		_, _ = fmt.Fprintf(w, "\nWARNING: after this plan rooms have hardly any IDs left, of %s:\n", counted(n, "tag"))
		for _, e := range cost.GetEnds() {
			_, _ = fmt.Fprintf(w, "  %s: room %s has %s up to the limit %d\n", e.GetTag(), e.GetRoom(), counted(e.GetLeft(), "ID"), e.GetLimit())
		}
	}
	if len(cost.GetWorst()) > 0 {
		_, _ = fmt.Fprintln(w, "\nTAG\tSKIPS\tBY ROOM\tLASTS NOW\tLASTS AFTER")
	}
	for _, t := range cost.GetWorst() {
		rooms := make([]string, 0, len(t.GetRooms()))
		for _, room := range sortedKeys(t.GetRooms()) {
			rooms = append(rooms, fmt.Sprintf("%s %d", room, t.GetRooms()[room]))
		}
		before, after := "-", "-"
		if t.GetLastsBefore() != nil {
			before = yearsText(t.GetLastsBefore().GetSeconds())
		}
		if t.GetLastsAfter() != nil {
			after = yearsText(t.GetLastsAfter().GetSeconds())
		}
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", t.GetTag(), t.GetSkipped(), strings.Join(rooms, ", "), before, after)
	}
}

// yearsText shows a long time with one unit.
func yearsText(seconds int64) string {
	const day, year = 24 * 3600, 365 * 24 * 3600
	switch {
	case seconds >= 10_000*year:
		return "over 10000 years"
	case seconds >= 2*year:
		return fmt.Sprintf("%d years", seconds/year)
	case seconds >= 2*day:
		return fmt.Sprintf("%d days", seconds/day)
	}
	return (time.Duration(seconds) * time.Second).String()
}

func stateText(m *marchv1.Migration) string {
	if m.GetAbort() && m.GetState() != "aborted" {
		return m.GetState() + ", going back"
	}
	return m.GetState()
}

func migrationText(w *tabwriter.Writer, m *marchv1.Migration) {
	_, _ = fmt.Fprintf(w, "migration\t%s\n", m.GetId())
	_, _ = fmt.Fprintf(w, "state\t%s, %d of %d moves made\n", stateText(m), m.GetReached(), len(m.GetMoves()))
	_, _ = fmt.Fprintf(w, "started\t%s by %s\n", m.GetCreated().AsTime().Format(time.RFC3339), m.GetActor())
	hold := "each instance's own"
	if d := m.GetHold().AsDuration(); d > 0 {
		hold = d.String() + " at least"
	}
	_, _ = fmt.Fprintf(w, "hold\t%s\n\n", hold)
	_, _ = fmt.Fprintf(w, "   from\t%s\t%s\n", picture(m.GetFrom()), rangesText(m.GetFrom()))
	for i, move := range m.GetMoves() {
		mark := " "
		if i < int(m.GetReached()) {
			mark = "*"
		}
		_, _ = fmt.Fprintf(w, "%s  %d. %s\t%s\t%s\n", mark, i+1, move.GetKind(), picture(move.GetLayout()), rangesText(move.GetLayout()))
	}
	for i, move := range m.GetMoves() {
		if until := move.GetClientsUntil(); until != nil {
			_, _ = fmt.Fprintf(w, "\nmove %d: clients with leased IDs may use residues that rooms %s lost until %s\n",
				i+1, strings.Join(move.GetLoses(), ", "), until.AsTime().Format(time.RFC3339))
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

// watch shows a migration until it has ended: in place on a terminal, else a
// line for each change. A console that goes away is waited for.
func watch(ctx context.Context, c *common, t *target, id string) error {
	show := &progress{c: c, tty: term.IsTerminal(int(os.Stderr.Fd()))}
	for {
		err := watchOnce(ctx, t, &id, show)
		switch {
		case ctx.Err() != nil && err != nil && id == "": // none was seen yet
			return ctx.Err()
		case ctx.Err() != nil && err != nil:
			show.end()
			_, _ = fmt.Fprintf(c.stderr, "the migration goes on; `march migrate watch %s` watches it, `march migrate abort %s` undoes it\n", id, id)
			return nil
		case err == nil:
			show.end()
			if err := c.print(show.last, func(w *tabwriter.Writer) { migrationText(w, show.last) }); err != nil {
				return err
			}
			if show.last.GetState() == "aborted" {
				return allocator.Errorf(allocator.Conflict, "migration %s was aborted", id)
			}
			return nil
		case allocator.KindOf(err) != allocator.Unavailable || id == "":
			show.end()
			return err
		}
		show.say("the console at " + t.address + " does not answer; trying again")
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func watchOnce(ctx context.Context, t *target, id *string, show *progress) error {
	endless := *t
	if t.timeout > 0 { // else it is refused
		endless.timeout = 7 * 24 * time.Hour
	}
	return endless.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := marchv1.NewConsoleServiceClient(conn).WatchMigration(ctx, &marchv1.WatchMigrationRequest{Id: *id})
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
			*id = answer.GetMigration().GetId()
			show.update(answer.GetMigration())
		}
	})
}

// progress shows how far a migration is.
type progress struct {
	c    *common
	tty  bool
	last *marchv1.Migration
	line string
}

func (p *progress) update(m *marchv1.Migration) {
	p.last = m
	line := fmt.Sprintf("%s  %s  move %d of %d", m.GetId(), stateText(m), m.GetReached(), len(m.GetMoves()))
	if n := m.GetReached(); n > 0 {
		line += " (" + m.GetMoves()[n-1].GetKind() + ")"
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
		line += "  waiting for " + strings.Join(waiting, ", ")
	}
	p.say(line)
}

// say shows a line, unless it is the one that is shown.
func (p *progress) say(line string) {
	switch {
	case line == p.line:
	case p.tty:
		_, _ = fmt.Fprint(p.c.stderr, "\r\x1b[K"+line)
	default:
		_, _ = fmt.Fprintln(p.c.stderr, line)
	}
	p.line = line
}

func (p *progress) end() {
	if p.tty && p.line != "" {
		_, _ = fmt.Fprint(p.c.stderr, "\r\x1b[K")
	}
}

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// measureAfter is how long a console needs to measure rates after a request.
const measureAfter = 1500 * time.Millisecond

func newStatus(c *common) *cobra.Command {
	t := c.target()
	var full bool
	// A console that no page or command asked recently measures rates, and reads tags, meanwhile.
	cmd := newCall(c, t, callRow{
		use: "status", short: "Show the state of every room, the migration under way, and all problems",
		long: `Show what every room does now, the migration that is under way, and all
problems: since when, until when, the next step, and the command. With
--capacity, show instead what runs out at the present rate, the soonest first,
and then the fullest: tags, periods, workers, certificates, reserves, and etcd.
A console measures how etcd, the number of tags and workers grow. It knows that
six hours after its start, and then says a date, or "not growing".`,
		again: func(n int, answer proto.Message) time.Duration {
			o, _ := answer.(*marchv1.GetOverviewResponse)
			if n > 1 || !slices.ContainsFunc(o.GetRooms(), func(r *marchv1.RoomStatus) bool { return r.Rate == nil }) {
				return 0
			}
			return measureAfter
		},
	}, &marchv1.GetOverviewRequest{}, marchv1.ConsoleServiceClient.GetOverview, whole, statusText)
	capacity := newCall(c, t, callRow{use: "status", again: func(n int, _ proto.Message) time.Duration {
		if n > 1 {
			return 0
		}
		return measureAfter
	}}, &marchv1.GetCapacityRequest{}, marchv1.ConsoleServiceClient.GetCapacity, whole, capacityText)
	overview := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if full {
			return capacity.RunE(cmd, args)
		}
		return overview(cmd, args)
	}
	cmd.Flags().BoolVar(&full, "capacity", false, "show what runs out first: tags, periods, workers, certificates, "+
		"reserves, etcd")
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func capacityText(w *tabwriter.Writer, answer *marchv1.GetCapacityResponse) {
	table(w, "WHAT\tUSED\tOF\tSHARE\tFULL\tNOTE", answer.GetCapacity(), func(l *marchv1.Capacity) []any {
		cells := []any{l.GetWhat(), "", "", "", l.GetFull(), l.GetNote()}
		if l.GetOf() > 0 {
			cells[1], cells[2], cells[3] = l.GetUsed(), l.GetOf(), fmt.Sprintf("%.1f%%", 100*l.GetShare())
		}
		if l.GetFull() == nil && l.Growth != nil && l.GetGrowth() == 0 {
			cells[4] = "not growing"
		}
		return cells
	})
}

func statusText(w *tabwriter.Writer, o *marchv1.GetOverviewResponse) {
	if m := o.GetMigration(); m != nil {
		_, _ = fmt.Fprintf(w, "migration\t%s: %s, %d of %d moves made\n", m.GetId(), setting.MigrationState(m),
			m.GetReached(), len(m.GetMoves()))
	}
	if l := o.GetLayout().GetLayout(); l != nil {
		_, _ = fmt.Fprintf(w, "layout\t%s, boundary %d\n", layoutVersion(l, o.GetProblem() != ""), l.GetBoundary())
		if on, newest := formats(o.GetLayout().GetFormats()), o.GetNewestFormats(); on < newest {
			_, _ = fmt.Fprintf(w, "formats\t%d; `march cluster upgrade` turns %d on\n", on, newest)
		} else {
			_, _ = fmt.Fprintf(w, "formats\t%d\n", on)
		}
	}
	if o.GetSettings() != nil {
		_, _ = fmt.Fprintf(w, "journal\t%s\n", api.Word(o.GetSettings().GetJournal()))
	}
	_, _ = fmt.Fprintln(w)
	table(w, "ROOM\tRANGE\tIDS/S\tUP\tRESERVE\tLAYOUT\tETCD", o.GetRooms(), func(r *marchv1.RoomStatus) []any {
		issued, etcd := "", cellText(r.GetEtcdLatency())
		if r.Rate != nil {
			issued = setting.Rate(r.GetRate()).String()
		}
		if len(r.GetUnmeasured()) > 0 {
			issued = strings.TrimPrefix(issued+" and unknown of "+cell(r.GetUnmeasured()), " and ")
		}
		if r.GetEtcdAwaySince() != nil {
			etcd = "away since " + cellText(r.GetEtcdAwaySince())
		}
		ready := "-" // until the instances were asked
		if o.GetAsOf() != nil {
			ready = strconv.Itoa(int(r.GetReady()))
		}
		return []any{r.GetName(), r.GetRange(), issued, fmt.Sprintf("%s of %d", ready, r.GetInstances()),
			r.GetReserve(), r.GetVersion(), etcd}
	})
	problemsText(w, o.GetProblems())
}

func newAudit(c *common) *cobra.Command {
	t := c.target()
	var most int
	list := newCall(c, t, callRow{
		use: "list", short: "List changes, the newest first; -o json has the values before and after",
		flags: []rowFlag{
			{"actor", "by", "", "only changes by actors whose name contains this"},
			{"action", "did", "", "only changes whose action contains this, such as update"},
			{"object", "to", "", "only changes of objects that begin with this, such as tags/order"},
			{"since", "since", "", "only changes from this time on: 2026-11-24T15:00:00Z, or as long ago as 2h"},
			{"until", "until", "", "only changes before this time, in the same way"},
		},
	}, &marchv1.ListAuditRequest{}, allPages(marchv1.ConsoleServiceClient.ListAudit,
		func(answer *marchv1.ListAuditResponse) bool { return most > 0 && len(answer.GetEntries()) >= most }),
		func(answer *marchv1.ListAuditResponse) *marchv1.ListAuditResponse {
			if most > 0 {
				answer.Entries = answer.GetEntries()[:min(most, len(answer.GetEntries()))]
			}
			return answer
		}, auditText)
	list.Flags().IntVarP(&most, "most", "n", 100, "how many at most; 0 for all")
	list.PreRunE = func(*cobra.Command, []string) error {
		if most < 0 {
			return usageError{allocator.Errorf(allocator.Invalid, "most: %d; allowed: 1 or more, 0 for all", most)}
		}
		return nil
	}
	cmd := group("audit", "Show changes and their actors", list, newAuditVerify(c))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func auditText(w *tabwriter.Writer, answer *marchv1.ListAuditResponse) {
	table(w, "TIME\tACTOR\tACTION\tOBJECT", answer.GetEntries(), func(e *marchv1.AuditEntry) []any {
		object := e.GetObject()
		if e.GetUnchained() {
			object += " (unchained)"
		}
		return []any{e.GetTime(), e.GetActor(), e.GetAction(), object}
	})
}

package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { _, _ = fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("seed", "%d, %v", r.Run.Seed, r.Run.Time)
	row("versions", "%s, etcd %s, %s", firstLine(r.Run.March), r.Run.Etcd, r.Run.Go)
	row("IDs", "%d in %d answers", r.IDs, r.Answers)
	row("segments", "%d, %d of their IDs were not issued, %d were skipped", r.Segments, r.Unissued, r.Skipped)
	row("time-ordered IDs",
		"%d, in %d windows, %d of windows that may be in gaps", r.TimeIDs, r.Windows, r.UnseenWindows.Count)
	row("ordered calls", "%d", r.Ordered)
	row("machine IDs", "%d times", r.Machines)
	row("layouts", "%d, %d migrations", r.Layouts, r.Migrations)
	total := 0
	for _, n := range r.Faults {
		total += n
	}
	row("faults", "%d of %d kinds", total, len(r.Faults))
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		row("  "+kind, "%d", r.Faults[kind])
	}
	counts := func(of map[string]int64) string {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(of)) {
			all = append(all, fmt.Sprintf("%d %s", of[name], name))
		}
		return strings.Join(all, ", ")
	}
	row("features", "%s", counts(r.Rows))
	row("moves", "%s", counts(r.Columns))
	t := r.Transactions
	row("transactions", "%d ok, %d refused, %d failed, %d failed but applied", t.OK, t.Refused, t.Failed, t.Applied)
	row("", "%d refused but applied, %d applied for instances that then ended, %d not seen in etcd's history",
		t.GivenUp, t.Orphans, t.Unseen)
	row("refills", "calm: %v", r.Refill.Calm)
	row("", "under faults: %v", r.Refill.Faults)
	if len(r.FailedCalls) > 0 {
		row("calls failed", "%s", counts(r.FailedCalls))
	}
	row("issuing again", "after faults: %v", r.Recovery)
	for _, room := range r.Rooms {
		row("room "+room.Name,
			"%d IDs, none for %v at most, from %s on", room.IDs, round(room.Silence), room.At.Format(stamp))
	}
	for _, restore := range r.Restores {
		halted := "halted by no instance"
		if restore.Halted {
			halted = fmt.Sprintf("halted after %v, %d IDs issued until then", round(restore.After), restore.IDs)
		}
		row("restore", "%s at %s: %s", restore.Kind, restore.Restored.Format(stamp), halted)
	}
	row("etcd's history", "went back %d times, %d gaps", r.Lives-1, r.HistoryGaps)
	row("planted duplicates", "%d, one of each tag, found but for those below", r.Planted)
	for _, f := range r.findings() {
		row(f.name, "%d", f.Count)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, failure := range r.Failures() {
		fmt.Fprintf(&b, "FAILED  %s\n", failure)
	}
	for _, why := range r.WeakFor {
		fmt.Fprintf(&b, "WEAK    %s\n", why)
	}
	fmt.Fprintln(&b, r.Verdict)
	_, err := io.WriteString(out, b.String())
	return err
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// round keeps about three digits.
func round(d time.Duration) time.Duration {
	unit := time.Microsecond
	for d >= 1000*unit && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit)
}

// String formats the times for people.
func (t Times) String() string {
	if t.Count == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %v, p99 %v, %v at most, of %d", round(t.P50), round(t.P99), round(t.Most), t.Count)
}

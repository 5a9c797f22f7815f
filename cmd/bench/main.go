// Command bench measures March on this machine, in one run. It prints a table of figures, with a column that
// says whether each goal is reached. Machines differ and are noisy, so a figure is the median of several rounds,
// and a figure with a yardstick is measured in turn with it.
//
//	bench          compares March with yardsticks; with Redis and PostgreSQL where their programs are installed
//	bench scale    measures sizes and loads that no test has time for, and fails if a goal is not reached
//
// Of scale, rooms run in processes of their own, so that their memory is theirs. So do attackers, with the
// lowest priority, as they would run on other machines. The parts recover, trips, moves, far, pages, windows and
// mirror have a whole cluster: a real etcd, and the march that users run (-march). The part far reaches etcd
// through a link that delays. The part writes simulates a cluster, in a program that it builds: see package
// writes. The part midnight has a real etcd, and sets the clock of its room. Time in the server counts from when
// the server has read a request to when it writes the answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/march-id/march/cmd/internal/load"
)

// measurement is a part of the table.
type measurement struct {
	name    string
	measure func(*part)
}

var yardsticks = []measurement{
	{"chain", chainRows}, {"texts", textRows}, {"etcd writes", writeRows}, {"client", clientRows},
	{"time IDs", timeRows}, {"time tags", tagRows}, {"time windows", windowRows}, {"time client", timeClientRows},
	{"time gRPC", timeCallRows}, {"gRPC", grpcRows}, {"metrics", metricsRows}, {"order", orderRows},
	{"HTTP", httpRows},
	{"right", rightRows}, {"access", accessRows}, {"mTLS", mtlsRows}, {"renewal", renewalRows},
	{"first call", firstRows}, {"Redis", redisRows}, {"door", doorRows}, {"web doors", webDoorRows},
	{"PostgreSQL", postgresRows},
}

var scales = slices.Concat([]measurement{{"million", million}}, attacks(), []measurement{
	{"recover", recovers}, {"trips", trips}, {"moves", moves}, {"far", far}, {"writes", etcdWrites},
	{"HTTP", httpRows}, {"pages", pages}, {"windows", windows}, {"mirror", mirrors}, {"midnight", midnight},
})

func main() {
	args, all := os.Args[1:], yardsticks
	if len(args) > 0 && strings.HasPrefix(args[0], "child-") {
		if err := child(args[0], args[1:]); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "bench:", args[0]+":", err)
			os.Exit(1)
		}
		return
	}
	b := &bench{}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	flags.IntVar(&b.rounds, "rounds", 5, "how often each figure is measured")
	if len(args) > 0 && args[0] == "scale" {
		args, all, b.strict, b.unit = args[1:], scales, true, time.Second
		flags.IntVar(&b.tags, "tags", 1_000_000, "how many tags there are, in memory and in etcd")
		flags.IntVar(&b.busy, "busy", 10_000, "how many of them million uses")
		flags.IntVar(&b.seconds, "seconds", 5, "how long each measurement takes")
		flags.StringVar(&b.march, "march", "bin/march", "the program that recover, trips, moves, far and pages run")
	} else {
		flags.DurationVar(&b.unit, "unit", time.Second, "how long one measurement takes, about")
	}
	var names []string
	for _, m := range all {
		names = append(names, m.name)
	}
	only := flags.String("rows", ".", "the parts to measure, a regular expression: "+strings.Join(names, ", "))
	_ = flags.Parse(args) // it exits by itself
	if err := b.run(os.Stdout, all, *only); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is a run.
type bench struct {
	rounds int
	unit   time.Duration
	strict bool // a goal that is not reached is an error

	// Of scale:
	tags, busy int // in memory, and the part of these in use
	seconds    int
	march      string

	rows   []*row
	stream []float64 // IDs per second of Stream, one per round, for later yardsticks
}

func (b *bench) validate() error {
	switch {
	case b.rounds < 1:
		return errors.New("-rounds: 1 or more")
	case !b.strict && b.unit < 10*time.Millisecond:
		return errors.New("-unit: 10ms or more")
	case b.strict && (b.tags < 10 || b.tags >= 10_000_000 || b.busy < 1 || b.busy > b.tags || b.seconds < 1):
		return errors.New("-tags: 10 to 9999999; -busy: 1 to tags; -seconds: 1 or more")
	}
	return nil
}

// run measures and prints. Where it is strict its error says, after all measurements, how many goals were missed.
func (b *bench) run(out io.Writer, all []measurement, only string) error {
	if err := b.validate(); err != nil {
		return err
	}
	chosen, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, m := range all {
		if !chosen.MatchString(m.name) {
			continue
		}
		say("%s...", m.name)
		if err := b.part(ctx, m); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", m.name, err), b.print(out))
		}
	}
	if err := b.print(out); err != nil || !b.strict {
		return err
	}
	short := 0
	for _, r := range b.rows {
		if v := r.verdict(); v == missed || v == unmeasured {
			short++
		}
	}
	if short > 0 {
		return fmt.Errorf("goals that were not reached: %d", short)
	}
	return nil
}

// say prints progress.
func say(format string, args ...any) { _, _ = fmt.Fprintf(os.Stderr, format+"\n", args...) }

// row is one line of the table: a figure with a yardstick, or a figure alone.
type row struct {
	what, unit string
	goal       float64 // the least ratio to the yardstick; 0 for none
	atMost     bool    // goal is the most
	note       string
	void       string // why nothing was measured

	march, yard     func() float64 // measure once, the yardstick first
	measured, yards []float64      // one of each round; yards is nil for a figure alone
}

// ratio returns the median over the rounds of the figure to its yardstick, or of the figure alone.
func (r *row) ratio() float64 {
	if r.yards == nil {
		return load.Median(r.measured)
	}
	ratios := make([]float64, len(r.measured))
	for i := range ratios {
		ratios[i] = r.measured[i] / r.yards[i]
	}
	return load.Median(ratios)
}

const reached, missed, unmeasured = "reached", "short", "not measured"

func (r *row) verdict() string {
	switch {
	case len(r.measured) == 0:
		return unmeasured
	case r.goal == 0 && !r.atMost:
		return "-"
	case r.atMost && r.ratio() <= r.goal, !r.atMost && r.ratio() >= r.goal:
		return reached
	}
	return missed
}

// cells are the cells of the table.
func (r *row) cells() string {
	measured, yard, ratio, goal := "-", "-", "-", "-"
	if r.verdict() != unmeasured {
		measured, ratio = number(load.Median(r.measured))+" "+r.unit, number(r.ratio())
		if r.yards != nil {
			yard = number(load.Median(r.yards)) + " " + r.unit
		}
		if r.atMost {
			goal = "<= " + number(r.goal)
		} else if r.goal != 0 {
			goal = ">= " + number(r.goal)
		}
	}
	return strings.Join([]string{r.what, measured, yard, ratio, goal, r.verdict(), r.note + r.void}, "\t")
}

func (b *bench) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "WHAT\tMARCH\tYARDSTICK\tRATIO\tGOAL\t\t")
	for _, r := range b.rows {
		_, _ = fmt.Fprintln(w, r.cells())
	}
	return w.Flush()
}

// number prints a figure with three or four significant digits.
func number(f float64) string {
	switch {
	case f >= 1e6:
		return fmt.Sprintf("%.1fM", f/1e6)
	case f >= 1e4:
		return fmt.Sprintf("%.0fk", f/1e3)
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.3g", f)
}

// Command bench measures March against its yardsticks on this machine, in one run. It prints a
// table of ratios, with a column that says whether each goal is reached. Machines differ and
// are noisy, so every figure is the median of several rounds, and each round measures both
// sides in turn.
//
// Redis and PostgreSQL are measured if their programs are installed (redis-server and
// redis-benchmark; initdb, postgres and pgbench).
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
	"text/tabwriter"
	"time"

	"github.com/march-id/march/cmd/internal/load"
)

func main() {
	rounds := flag.Int("rounds", 5, "how many times each figure is measured")
	unit := flag.Duration("unit", time.Second, "how long one measurement takes, about")
	only := flag.String("rows", ".", "the parts to measure, a regular expression")
	flag.Parse()
	if err := run(os.Stdout, *rounds, *unit, *only); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// row is one line of the table: a figure with a yardstick, or a figure alone.
type row struct {
	what     string
	measured []float64 // one per round
	unit     string    // of measured
	yard     []float64 // the yardstick's, in the same unit; nil for none
	goal     float64   // the least ratio; 0 for none
	atMost   bool      // the ratio must not exceed the goal
}

// ratio returns the median over the rounds of measured to yardstick, or the median of measured
// if there is no yardstick.
func (r *row) ratio() float64 {
	if r.yard == nil {
		return load.Median(r.measured)
	}
	ratios := make([]float64, len(r.measured))
	for i := range ratios {
		ratios[i] = r.measured[i] / r.yard[i]
	}
	return load.Median(ratios)
}

func (r *row) verdict() string {
	switch {
	case r.goal == 0 && !r.atMost:
		return "-"
	case r.atMost && r.ratio() <= r.goal, !r.atMost && r.ratio() >= r.goal:
		return "reached"
	}
	return "short"
}

// bench is a run: its rows, and where progress goes.
type bench struct {
	rounds int
	unit   time.Duration
	rows   []*row
	stream []float64 // IDs per second of Stream, one per round, for later yardsticks
}

// add makes a row.
func (b *bench) add(r row) *row {
	b.rows = append(b.rows, &r)
	return &r
}

func (b *bench) progress(format string, args ...any) {
	_, _ = fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func run(out io.Writer, rounds int, unit time.Duration, only string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if rounds < 1 || unit < 10*time.Millisecond {
		return errors.New("-rounds: 1 or more; -unit: 10ms or more")
	}
	chosen, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	b := &bench{rounds: rounds, unit: unit}
	for _, part := range []struct {
		name string
		run  func(context.Context, *bench) error
	}{
		{"chain", chainRows}, {"texts", textRows}, {"etcd writes", writeRows}, {"client", clientRows},
		{"time IDs", timeRows}, {"time tags", tagRows}, {"time windows", windowRows}, {"time client", timeClientRows},
		{"time gRPC", timeCallRows},
		{"gRPC", grpcRows}, {"metrics", metricsRows},
		{"HTTP", httpRows}, {"right", rightRows}, {"access", accessRows}, {"mTLS", mtlsRows}, {"renewal", renewalRows},
		{"first call", firstRows},
		{"Redis", redisRows}, {"door", doorRows}, {"web doors", webDoorRows}, {"PostgreSQL", postgresRows},
	} {
		if !chosen.MatchString(part.name) {
			continue
		}
		b.progress("%s...", part.name)
		if err := part.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return b.print(out)
}

func (b *bench) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "what\tMarch\tyardstick\tratio\tgoal\t\t")
	for _, r := range b.rows {
		if len(r.measured) == 0 { // the other part of the row was not chosen
			_, _ = fmt.Fprintf(w, "%s\t-\t-\t-\t-\tnot measured\t\n", r.what)
			continue
		}
		yard, goal := "-", "-"
		if r.yard != nil {
			yard = number(load.Median(r.yard)) + " " + r.unit
		}
		if r.verdict() != "-" {
			sign := ">="
			if r.atMost {
				sign = "<="
			}
			goal = sign + " " + number(r.goal)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t%s\t%s\t\n", r.what, number(load.Median(r.measured)), r.unit, yard,
			number(r.ratio()), goal, r.verdict())
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

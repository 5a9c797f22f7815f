// Command scale measures March at sizes and under loads that no test has time for, in
// one run. It prints a table of measures, with the figure, the goal, and whether the
// goal is reached. It exits with 1 if a goal is not reached.
//
// Rooms run in processes of their own, so that their memory is theirs. So do attackers,
// with the lowest priority, as they would run on other machines. The groups recover,
// trips, moves, far and pages have a whole cluster: a real etcd, and the march that users
// run (-march). The group far reaches etcd through a link that delays. The group writes
// simulates a cluster, in a program that it builds: see package writes. The group midnight
// has a real etcd, and sets the clock of its room. Time in the server counts from when the
// server has read a request to when it writes the answer.
//
// A group of rows is a function in a file of its own, listed in groups.
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
	"strings"
	"syscall"
	"text/tabwriter"
)

// sizes are the amounts to measure.
type sizes struct {
	tags, busy int // in memory, and the part of these in use
	rounds     int
	seconds    int // of each measurement
	march      string
}

// groups are the groups of rows.
var groups = []struct {
	name    string
	measure func(context.Context, sizes, func(row)) error
}{
	{"million", million},
	{"attacks", attacks},
	{"recover", recovers},
	{"trips", trips},
	{"moves", moves},
	{"far", far},
	{"writes", etcdWrites},
	{"pages", pages},
	{"midnight", midnight},
}

// row is one line of the table.
type row struct {
	what     string
	measured float64
	goal     float64 // the most that is allowed
	unit     string
	note     string
	void     string // why nothing was measured; empty if something was
}

func (r row) reached() bool { return r.void == "" && r.measured <= r.goal }

func (r row) verdict() string {
	switch {
	case r.void != "":
		return "not measured"
	case r.reached():
		return "reached"
	}
	return "short"
}

// figure is a measured number with its unit.
func (r row) figure() string {
	if r.void != "" {
		return "-"
	}
	return fmt.Sprintf("%.4g %s", r.measured, r.unit)
}

func main() {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "child-") {
		if err := child(os.Args[1], os.Args[2:]); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "scale:", os.Args[1]+":", err)
			os.Exit(1)
		}
		return
	}
	var s sizes
	flag.IntVar(&s.tags, "tags", 1_000_000, "how many tags there are, in memory and in etcd")
	flag.IntVar(&s.busy, "busy", 10_000, "how many of them million uses")
	flag.IntVar(&s.rounds, "rounds", 5, "how often each time is measured; the median counts")
	flag.IntVar(&s.seconds, "seconds", 5, "how long each measurement takes")
	flag.StringVar(&s.march, "march", "bin/march", "the program that recover, trips, moves, far and pages run")
	rows := flag.String("rows", ".", "the groups of rows to measure, a regular expression: "+groupNames())
	flag.Parse()
	if err := run(os.Stdout, s, *rows); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func groupNames() string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return strings.Join(names, ", ")
}

// run measures and prints. Its error says, after all measurements, how many rows miss their
// goals.
func run(out io.Writer, s sizes, rows string) error {
	chosen, err := regexp.Compile(rows)
	if err != nil {
		return fmt.Errorf("rows: %w", err)
	}
	if s.tags < 10 || s.tags >= 10_000_000 || s.busy < 1 || s.busy > s.tags || s.rounds < 1 || s.seconds < 1 {
		return errors.New("tags: 10 to 9999999; busy: 1 to tags; rounds and seconds: 1 or more")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	short := 0
	_, _ = fmt.Fprintln(table, "WHAT\tMEASURED\tGOAL\t\t")
	for _, g := range groups {
		if !chosen.MatchString(g.name) {
			continue
		}
		err := g.measure(ctx, s, func(r row) {
			if !r.reached() {
				short++
			}
			_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", r.what, r.figure())
			_, _ = fmt.Fprintf(table, "%s\t%s\tat most %.4g\t%s\t%s\n", r.what, r.figure(), r.goal,
				r.verdict(), r.note+r.void)
		})
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", g.name, err), table.Flush())
		}
	}
	if err := table.Flush(); err != nil || short == 0 {
		return err
	}
	return fmt.Errorf("goals that were not reached: %d", short)
}

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/words"
)

func newVerify(c *common) *cobra.Command {
	var cluster clusterFlags
	var quiet bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check the data in etcd, and that no ID can have been issued twice",
		Long: `Check all that must hold in a cluster, from etcd alone, while it runs: layouts
and their history, tags, marks and eras, instances; and for every tag, that no
ID of the latest eras can have been issued by two rooms. It cannot see IDs that
were issued in a history which a restore of etcd lost. Nothing is changed.

Prints the problems, one a line (the first 1000), and exits 1 if there are any,
or if leasing is halted. For each key that cannot be read it prints the effect
and the remedy.`,
		Example: `  march verify --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withCluster(cmd, c, &cluster, func(l *ledger.Ledger) error {
				return runVerify(cmd.Context(), c, l, quiet)
			})
		},
	}
	addOptions(cmd, cluster.options()...)
	c.outputFlag(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress line")
	return cmd
}

func runVerify(ctx context.Context, c *common, l *ledger.Ledger, quiet bool) error {
	line := newProgress(c)
	options := verify.Options{Progress: func(p verify.Progress) {
		line.tick(func() string { return verifyLine(p) })
	}}
	if quiet {
		options.Progress = nil
	}
	report, err := verify.Run(ctx, l.Cluster(), options)
	line.end()
	if err == nil || c.output == "text" {
		if err := c.print(verifyReport(report), func(w *tabwriter.Writer) { foundByVerify(w, report) }); err != nil {
			return err
		}
	}
	found := int64(len(report.Problems)) + report.More
	switch {
	case err != nil && found > 0:
		return allocator.Errorf(allocator.KindOf(err), "%s found, then: %w", words.Counted(found, "problem"), err)
	case err != nil:
		return err
	case found > 0 || report.Halt.By != "":
		return finding{allocator.Errorf(allocator.Refused, "%s: %s", reportText(report), foundText(found, report.Halt))}
	case c.output == "text":
		_, err = fmt.Fprintf(c.stdout, "%s: nothing wrong\n", reportText(report))
	}
	return err
}

// foundByVerify writes the problems of a report, what halts leasing, and the instances without their journals.
func foundByVerify(w io.Writer, report verify.Report) {
	printProblems(w, report.Problems, report.More)
	if h := report.Halt; h.By != "" {
		p := problem.New(problem.Halted, "", h.Time, "by", h.By, "why", h.Why)
		_, _ = fmt.Fprintf(w, "%s; since %s; next: `%s`\n", excerpt(p.GetWhat()), h.Time.UTC().Format(time.RFC3339),
			p.GetCommand())
	}
	if report.Settings.RequireJournal {
		_, _ = fmt.Fprintln(w, "journals are required")
		for _, id := range report.Unconfirmed {
			p := problem.New(problem.Unconfirmed, string(id), time.Time{})
			_, _ = fmt.Fprintf(w, "%s; next: `%s`\n", p.GetWhat(), p.GetCommand())
		}
	}
}

// printProblems prints the problems that a check found, one a line, and how many more there are.
func printProblems[T any](w io.Writer, problems []T, more int64) {
	for _, one := range problems {
		_, _ = fmt.Fprintln(w, printable(fmt.Sprint(one)))
	}
	if more > 0 {
		_, _ = fmt.Fprintf(w, "and %s more\n", words.Grouped(more))
	}
}

func foundText(problems int64, halt record.Halt) string {
	switch {
	case halt.By == "":
		return words.Counted(problems, "problem")
	case problems == 0:
		return "leasing is halted"
	}
	return words.Counted(problems, "problem") + ", and leasing is halted"
}

// verifyLine shows how far a check is.
func verifyLine(p verify.Progress) string {
	line := fmt.Sprintf("%s, %s, %s", words.Counted(p.Tags, "tag"), words.Counted(p.Marks, "mark"),
		words.Counted(p.Eras, "era"))
	if p.At != "" {
		name, _, _ := strings.Cut(strings.TrimSuffix(p.At, "\x00"), "/")
		line += ", at " + excerpt(name)
	}
	if p.Problems > 0 {
		line += ", " + words.Counted(p.Problems, "problem")
	}
	return line
}

func reportText(r verify.Report) string {
	reserved := ""
	if r.Reserved > 0 {
		reserved = ", " + words.Counted(r.Reserved, "reserved range")
	}
	return fmt.Sprintf("%s, %s%s, %s, %s, %s, %s", words.Counted(r.Layouts, "layout"),
		words.Counted(r.Rooms, "room"), reserved,
		words.Counted(r.Tags, "tag"), words.Counted(r.Marks, "mark"), words.Counted(r.Eras, "era"),
		words.Counted(r.Instances, "instance"))
}

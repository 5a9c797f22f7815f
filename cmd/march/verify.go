package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/throttle"
	"github.com/march-id/march/internal/words"
)

func newVerify(c *common) *cobra.Command {
	cluster := defaultCluster()
	var quiet bool
	cmd := command(callRow{
		use: "verify", short: "Check the data in etcd, and that no ID can have been issued twice",
		long: `Check all that must hold in a cluster, from etcd alone, while it runs: layouts
and their history, tags, marks and eras, instances; and for every tag, that no
ID of the latest eras can have been issued by two rooms. It cannot see IDs that
were issued in a history which a restore of etcd lost. Nothing is changed. It
reads all at one revision, which etcd must keep until the check has ended
(--auto-compaction-retention of etcd).

Prints the problems, one a line (the first 1000), and exits 1 if there are any,
or if leasing is halted. For each key that cannot be read it prints the effect
and the remedy.`,
		example: `  march verify --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		return withCluster(cmd, c, &cluster, func(l *ledger.Ledger) error {
			return runVerify(cmd.Context(), c, l, quiet)
		})
	})
	addSettings(cmd, &cluster)
	c.outputFlag(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "no progress line")
	return cmd
}

func runVerify(ctx context.Context, c *common, l *ledger.Ledger, quiet bool) error {
	line := newProgress(c, soon, soon)
	options := verify.Options{Damage: problem.LineOfKey, Progress: func(p verify.Progress) {
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
		return finding{refusedf("%s: %s", reportText(report), foundText(found, report.Halt))}
	case c.output == "text":
		_, err = fmt.Fprintf(c.stdout, "%s: nothing wrong\n", reportText(report))
	}
	return err
}

// foundByVerify writes the problems of a report, what halts leasing, and the instances without their journals.
func foundByVerify(w io.Writer, report verify.Report) {
	printProblems(w, report.Problems, report.More)
	if h := report.Halt; h.By != "" {
		put(w, "%s\n", printable(problem.Line(problem.New(problem.Halted, "", h.Time, "by", h.By, "why", h.Why))))
	}
	if report.Settings.RequireJournal {
		put(w, "journals are required\n")
		for _, id := range report.Unconfirmed {
			put(w, "%s\n", problem.Line(problem.New(problem.Unconfirmed, string(id), time.Time{})))
		}
	}
}

// printProblems prints the problems that a check found, one a line, and how many more there are.
func printProblems[T any](w io.Writer, problems []T, more int64) {
	for _, one := range problems {
		put(w, "%s\n", fmt.Sprint(one))
	}
	if more > 0 {
		put(w, "and %s more\n", words.Grouped(more))
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
	return fmt.Sprintf("%s, %s%s, %s, %s, %s, %s", words.Counted(r.Layouts, "layout"), words.Counted(r.Rooms, "room"),
		reserved, words.Counted(r.Tags, "tag"), words.Counted(r.Marks, "mark"), words.Counted(r.Eras, "era"),
		words.Counted(r.Instances, "instance"))
}

func verifyReport(r verify.Report) map[string]any {
	out := map[string]any{
		"layouts": fmt.Sprint(r.Layouts), "rooms": fmt.Sprint(r.Rooms), "tags": fmt.Sprint(r.Tags),
		"marks": fmt.Sprint(r.Marks), "eras": fmt.Sprint(r.Eras), "instances": fmt.Sprint(r.Instances),
		"problems": some(r.Problems), "more": fmt.Sprint(r.More), "halt": nil,
		"journal_required": bool(r.Settings.RequireJournal), "unconfirmed": some(r.Unconfirmed),
	}
	if h := r.Halt; h.By != "" {
		out["halt"] = map[string]any{"by": h.By, "why": h.Why, "time": h.Time}
	}
	return out
}

// auditLine is an entry of the audit outside etcd: a head of its writer's chain, with the entry itself.
type auditLine struct {
	verify.Head
	Cluster string            `json:"cluster"`
	Time    time.Time         `json:"time"`
	Actor   string            `json:"actor"`
	Action  string            `json:"action"`
	Object  string            `json:"object"`
	From    json.RawMessage   `json:"from,omitempty"`
	To      json.RawMessage   `json:"to,omitempty"`
	After   map[string]string `json:"after,omitempty"`
}

// openAuditLog returns what adds entries to a file, or to standard output; nil for no name. Its error is Invalid.
func openAuditLog(name, cluster string, metrics *serve.Metrics,
	log hclog.Logger) (func(string, *record.AuditEntry, bool), error) {
	out := os.Stdout
	switch name {
	case "":
		return nil, nil
	case "stdout":
	default:
		var err error
		if out, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return nil, invalidf("audit-log: %w", err)
		}
	}
	keys, err := record.NewKeys(cluster)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex // a line is one write
	info, err := out.Stat()
	torn := name != "stdout" && err == nil && info.Size() > 0 // the last line may be cut: the next one begins anew
	var line throttle.Log
	return func(key string, e *record.AuditEntry, written bool) {
		text, err := json.Marshal(auditLine{
			Head: verify.Head{Key: strings.TrimPrefix(key, string(keys)), Hash: e.Hash, Writer: e.Writer,
				Sequence: e.Sequence, Unknown: !written},
			Cluster: cluster, Time: e.Time, Actor: e.Actor, Action: e.Action, Object: e.Object, From: e.From, To: e.To,
			After: e.After,
		})
		if err == nil {
			mu.Lock()
			if text = append(text, '\n'); torn {
				text = append([]byte{'\n'}, text...)
			}
			var n int
			n, err = out.Write(text)
			torn = err != nil && (torn || n > 0)
			mu.Unlock()
		}
		if err != nil {
			metrics.AuditFailed("log")
			line.Log(time.Now(), log.Error, "entry of the audit not written to its log", "audit_log", name,
				"error", err)
		}
	}, nil
}

func newAuditVerify(c *common) *cobra.Command {
	cluster := defaultCluster()
	var logs []string
	cmd := command(callRow{
		use: "verify", short: "Check that no entry of the audit was changed or removed",
		long: `Check, from etcd, that no entry of the audit was changed or removed: each process
chains the entries that it writes. With --log, compare with the files that
processes wrote with --audit-log: a user of etcd can rewrite the audit with
all its hashes, and only a log outside etcd shows that. A log may be given in
parts. Nothing is changed.

Prints the problems, one a line (the first 1000), and exits 1 if there are any.`,
		example: `  march audit verify --etcd etcd-1:2379 --log /var/log/march/audit.jsonl`,
	}, noArgs, func(cmd *cobra.Command, _ []string) error {
		heads, err := readHeads(c, logs, cluster.Cluster)
		if err != nil {
			return err
		}
		return withCluster(cmd, c, &cluster, func(l *ledger.Ledger) error {
			return runAuditVerify(cmd.Context(), c, l, heads)
		})
	})
	addSettings(cmd, &cluster)
	cmd.Flags().StringArrayVar(&logs, "log", nil, "file that --audit-log wrote; may be given several times")
	return cmd
}

func runAuditVerify(ctx context.Context, c *common, l *ledger.Ledger, heads []verify.Head) error {
	r, err := verify.Audit(ctx, l.Cluster(), heads, verify.Options{Damage: problem.LineOfKey})
	if err != nil {
		return err
	}
	if err := c.print(r, func(w *tabwriter.Writer) { auditReportText(w, r) }); err != nil {
		return err
	}
	if found := int64(len(r.Problems)) + r.More; found > 0 {
		return finding{refusedf("the audit was tampered with: %s",
			words.Counted(found, "problem"))}
	}
	return nil
}

func auditReportText(w io.Writer, r verify.AuditReport) {
	printProblems(w, r.Problems, r.More)
	put(w, "%s, %s, of %s\n", words.Counted(r.Changes, "change"), words.Counted(r.Refusals, "refusal"),
		words.Counted(r.Writers, "writer"))
	if r.Unchained > 0 {
		put(w, "%s of them unchained, of builds before this one, the latest of %s: not checked\n",
			words.Grouped(r.Unchained), r.LastUnchained.UTC().Format(time.RFC3339))
	}
	if r.Heads == 0 {
		_, _ = fmt.Fprintln(w, "no log from outside etcd was given (--log): a rewrite of all entries of a writer "+
			"would not be seen")
	} else if r.Unlogged > 0 {
		put(w, "%s in the logs; entries that are in none: %s, and of %s all: a rewrite of these would not be seen\n",
			words.Counted(r.Heads, "head"), words.Grouped(r.Unlogged), words.Counted(r.Uncovered, "writer"))
	}
}

// maxAuditLine bounds a line of a log, in bytes.
const maxAuditLine = 16 << 20

// readHeads reads logs. It names lines that were cut, as where a disk was full. Its error is Invalid.
func readHeads(c *common, paths []string, cluster string) (heads []verify.Head, err error) {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, invalidf("log: %w", err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, maxAuditLine)
		for n := 1; lines.Scan() && err == nil; n++ {
			var line struct {
				auditLine
				Message string `json:"@message"` // of the process's own log in JSON, beside it on standard output
			}
			if !strings.HasPrefix(lines.Text(), "{") {
				continue // standard output may have other lines
			}
			if !json.Valid(lines.Bytes()) {
				put(c.stderr, "%s:%d: the line was cut: its entry counts as not logged\n", path, n)
			} else if bad := json.Unmarshal(lines.Bytes(), &line); bad == nil && line.Message != "" {
				continue
			} else if bad != nil || line.Key == "" || line.Hash == "" {
				err = invalidf("log: %s:%d: no line of --audit-log", path, n)
			} else if line.Cluster == cluster {
				heads = append(heads, line.Head)
			}
		}
		if err == nil && lines.Err() != nil {
			err = invalidf("log: %s: %w", path, lines.Err())
		}
		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
	return heads, nil
}

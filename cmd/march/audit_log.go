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
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/throttle"
	"github.com/march-id/march/internal/words"
)

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
func openAuditLog(name, cluster string, metrics *observe.Metrics,
	log hclog.Logger) (func(string, *record.AuditEntry, bool), error) {
	out := os.Stdout
	switch name {
	case "":
		return nil, nil
	case "stdout":
	default:
		var err error
		if out, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "audit-log: %w", err)
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
	var cluster clusterFlags
	var logs []string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that no entry of the audit was changed or removed",
		Long: `Check, from etcd, that no entry of the audit was changed or removed: each process
chains the entries that it writes. With --log, compare with the files that
processes wrote with --audit-log: a user of etcd can rewrite the audit with
all its hashes, and only a log outside etcd shows that. A log may be given in
parts. Nothing is changed.

Prints the problems, one a line (the first 1000), and exits 1 if there are any.`,
		Example: `  march audit verify --etcd etcd-1:2379 --log /var/log/march/audit.jsonl`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			heads, err := readHeads(c, logs, cluster.cluster)
			if err != nil {
				return err
			}
			return withCluster(cmd, c, &cluster, func(l *ledger.Ledger) error {
				return runAuditVerify(cmd.Context(), c, l, heads)
			})
		},
	}
	addOptions(cmd, cluster.options()...)
	cmd.Flags().StringArrayVar(&logs, "log", nil, "file that --audit-log wrote; may be given several times")
	return cmd
}

func runAuditVerify(ctx context.Context, c *common, l *ledger.Ledger, heads []verify.Head) error {
	r, err := verify.Audit(ctx, l.Cluster(), heads)
	if err != nil {
		return err
	}
	if err := c.print(r, func(w *tabwriter.Writer) { auditReportText(w, r) }); err != nil {
		return err
	}
	if found := int64(len(r.Problems)) + r.More; found > 0 {
		return finding{allocator.Errorf(allocator.Refused, "the audit was tampered with: %s",
			words.Counted(found, "problem"))}
	}
	return nil
}

func auditReportText(w io.Writer, r verify.AuditReport) {
	printProblems(w, r.Problems, r.More)
	_, _ = fmt.Fprintf(w, "%s, %s, of %s\n", words.Counted(r.Changes, "change"), words.Counted(r.Refusals, "refusal"),
		words.Counted(r.Writers, "writer"))
	if r.Unchained > 0 {
		_, _ = fmt.Fprintf(w, "%s of them unchained, of builds before this one, the latest of %s: not checked\n",
			words.Grouped(r.Unchained), r.LastUnchained.UTC().Format(time.RFC3339))
	}
	if r.Heads == 0 {
		_, _ = fmt.Fprintln(w, "no log from outside etcd was given (--log): a rewrite of all entries of a writer "+
			"would not be seen")
	} else if r.Unlogged > 0 {
		_, _ = fmt.Fprintf(w, "%s in the logs; entries that are in none: %s, and of %s all: a rewrite of these would "+
			"not be seen\n", words.Counted(r.Heads, "head"), words.Grouped(r.Unlogged),
			words.Counted(r.Uncovered, "writer"))
	}
}

// maxAuditLine bounds a line of a log, in bytes.
const maxAuditLine = 16 << 20

// readHeads reads logs. It names lines that were cut, as where a disk was full. Its error is Invalid.
func readHeads(c *common, paths []string, cluster string) (heads []verify.Head, err error) {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "log: %w", err)
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
				_, _ = fmt.Fprintf(c.stderr, "%s:%d: the line was cut: its entry counts as not logged\n", path, n)
			} else if bad := json.Unmarshal(lines.Bytes(), &line); bad == nil && line.Message != "" {
				continue
			} else if bad != nil || line.Key == "" || line.Hash == "" {
				err = allocator.Errorf(allocator.Invalid, "log: %s:%d: no line of --audit-log", path, n)
			} else if line.Cluster == cluster {
				heads = append(heads, line.Head)
			}
		}
		if err == nil && lines.Err() != nil {
			err = allocator.Errorf(allocator.Invalid, "log: %s: %w", path, lines.Err())
		}
		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
	return heads, nil
}

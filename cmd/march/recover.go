package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/room"
)

func newFence(c *common) *cobra.Command {
	var cluster clusterFlags
	var yes bool
	var why string
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Halt leasing in all rooms, before etcd is restored from a backup",
		Long: `Halt leasing in all rooms on purpose: before etcd is restored from a backup, or
moved. Rooms go on issuing what they hold, about ten minutes' worth of a busy tag,
and nothing else until ` + "`march recover`" + ` has begun a new epoch.`,
		Example: `  march fence --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379 --why "restore of last night's backup"`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withCluster(cmd, c, &cluster, func(l *ledger.Ledger) error {
				if !yes {
					if err := ask(c, "Halt leasing in all rooms until `march recover`?"); err != nil {
						return err
					}
				}
				h, err := l.Halt(cmd.Context(), whoami(), why)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(c.stdout, "halted   by %s at %s: %s\nnext     stop etcd, restore it, start it; then `march recover`\nmeanwhile rooms issue what they hold, and lease nothing\n",
					h.By, h.Time.Format(time.RFC3339), h.Why)
				return err
			})
		},
	}
	cluster.add(cmd)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVar(&why, "why", "march fence", "the reason that rooms give for leasing nothing")
	return cmd
}

// withCluster calls use with a cluster's ledger.
func withCluster(cmd *cobra.Command, c *common, cluster *clusterFlags, use func(*ledger.Ledger) error) error {
	log, err := c.logger(hclog.Error)
	if err != nil {
		return err
	}
	l, err := cluster.open(cmd.Context(), watched{}, log)
	if err != nil {
		return err
	}
	return errors.Join(use(l), l.Close())
}

// ask asks a person on the terminal.
func ask(c *common, question string) error {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return usageError{allocator.Errorf(allocator.Invalid, "there is nobody to ask: give --yes to do it without asking")}
	}
	_, _ = fmt.Fprintf(c.stderr, "%s [y/N] ", question)
	line, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer := strings.ToLower(strings.TrimSpace(line)); answer != "y" && answer != "yes" {
		return allocator.Errorf(allocator.Refused, "not done")
	}
	return nil
}

func newRecover(c *common) *cobra.Command {
	var (
		cluster clusterFlags
		yes     bool
		quiet   bool
		without []string
		paths   []string
		timeout time.Duration
		cfg     = ledger.RecoverConfig{Wait: 10 * time.Second}
	)
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Lease again after etcd went back in time: was restored, rebuilt, or fenced",
		Long: `Lease again after etcd went back in time. Without --yes nothing is changed: what
would be done is shown, and who did not answer.

It halts leasing, asks every instance that it can learn of what it leased, raises
the marks of all rooms above all that anybody knows, and begins a new epoch. It
may be run again after it failed, and goes on.

An instance that does not answer is named. Where it does not run but its journal
is there, give that (--journal). Else stop it for good, then go on without
it (--without): what it leased since the backup is covered by a margin only.`,
		Example: `  march recover --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379
  march recover --etcd etcd-1:2379,etcd-2:2379,etcd-3:2379 --without eu-1/host-7 --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			for _, name := range without {
				in, instance, _ := strings.Cut(name, "/")
				r, roomErr := allocator.ParseRoom(in)
				i, instanceErr := allocator.ParseInstance(instance)
				if err := errors.Join(roomErr, instanceErr); err != nil {
					return usageError{allocator.Errorf(allocator.Invalid, "without: %q; allowed: ROOM/INSTANCE", name)}
				}
				cfg.Without = append(cfg.Without, ledger.Registration{Room: r, Name: i}.ID())
			}
			if cfg.Wait < 0 || cfg.Margin < 0 || timeout <= 0 {
				return usageError{allocator.Errorf(allocator.Invalid, "wait: %v, margin: %d, timeout: %v; allowed: 0s or more, 0 or more, above 0s", cfg.Wait, cfg.Margin, timeout)}
			}
			for _, path := range paths {
				m, err := ledger.ReadJournal(path)
				if err != nil {
					return err
				}
				cfg.Memories = append(cfg.Memories, m)
			}
			return withCluster(cmd, c, &cluster, func(l *ledger.Ledger) error {
				cfg.Apply, cfg.Actor = yes, whoami()
				uuid, err := l.StoredUUID(cmd.Context())
				if err != nil {
					return err
				}
				cfg.Ask = func(ctx context.Context, s ledger.SeenInstance, bar bool) (ledger.Memory, error) {
					return askInstance(ctx, s.Address, uuid, bar, timeout)
				}
				if !quiet {
					next := time.Now()
					cfg.Progress = func(p ledger.RecoverProgress) {
						if now := time.Now(); !now.Before(next) {
							next = now.Add(time.Second)
							_, _ = fmt.Fprintf(c.stderr, "%s: %s, %s\n", p.Doing, counted(p.Tags, "tag"), counted(p.Marks, "mark"))
						}
					}
				}
				report, err := l.Recover(cmd.Context(), cfg)
				if printErr := recoverText(c, report, yes && err == nil); printErr != nil {
					return errors.Join(err, printErr)
				}
				return err
			})
		},
	}
	cluster.add(cmd)
	c.outputFlag(cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&yes, "yes", "y", false, "do it, and do not ask")
	flags.BoolVarP(&quiet, "quiet", "q", false, "no progress lines")
	flags.StringSliceVar(&without, "without", nil, "instances to go on without, ROOM/INSTANCE, separated by commas")
	flags.StringArrayVar(&paths, "journal", nil, "a journal of an instance that does not run, FILE; may be given more than once")
	flags.DurationVar(&cfg.Wait, "wait", cfg.Wait, "how long to wait, once halted, for instances that etcd has forgotten to register again")
	flags.Int64Var(&cfg.Margin, "margin", 0, "how many IDs above what is known to begin (default a tag's max step for each instance)")
	flags.DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for an instance's answer")
	return cmd
}

// haltText says that leasing is halted, where it is.
func haltText(w io.Writer, h *marchv1.Halt) {
	if h != nil {
		_, _ = fmt.Fprintf(w, "\nLeasing is halted by %s since %s: %s\nRooms issue what they hold. Next: `march recover`\n",
			excerpt(h.GetBy()), h.GetTime().AsTime().Format(time.RFC3339), excerpt(h.GetWhy()))
	}
}

// unusableText says why the layout in etcd cannot be used, where it cannot.
func unusableText(w io.Writer, problem string) {
	if problem != "" {
		_, _ = fmt.Fprintf(w, "\n%s\nShown is the last good one. Rooms issue what they hold.\n", excerpt(problem))
	}
}

// askInstance asks an instance for its memory.
func askInstance(ctx context.Context, address, uuid string, bar bool, timeout time.Duration) (m ledger.Memory, err error) {
	t := &target{what: "room", address: address, timeout: timeout}
	err = t.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		m, err = room.AskMarks(ctx, conn, &marchv1.ReportMarksRequest{ClusterUuid: uuid, Bar: bar})
		return err
	})
	return m, err
}

// recoverText prints what was done, or would be.
func recoverText(c *common, r *ledger.RecoverReport, done bool) error {
	if c.output == "json" {
		return json.NewEncoder(c.stdout).Encode(recoverJSON(r, done))
	}
	if r.UUID == "" {
		return nil
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "cluster\t%s\n", r.UUID)
	if r.Halt.By != "" {
		_, _ = fmt.Fprintf(w, "halted\tby %s at %s: %s\n", r.Halt.By, r.Halt.Time.Format(time.RFC3339), r.Halt.Why)
	}
	for _, id := range r.Answered {
		_, _ = fmt.Fprintf(w, "answered\t%s\n", id)
	}
	for _, m := range r.Missing {
		state := "missing"
		if m.Left {
			state = "without"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s, process %.8s: %s\n", state, m.ID, m.Incarnation, excerpt(m.Why))
	}
	if n := len(r.AtLimit); n > 0 {
		names := fmt.Sprint(r.AtLimit[:min(n, 10)])
		_, _ = fmt.Fprintf(w, "limit\tthe margin brings %s to the end, the first ones %s: --margin makes it smaller, or raise their limits\n", counted(int64(n), "tag"), names)
	}
	if done {
		_, _ = fmt.Fprintf(w, "raised\t%s of %s\nlayout\t%d\nepoch\t%s\n", counted(r.Marks, "mark"), counted(r.Tags, "tag"), r.Version, r.Epoch)
	} else {
		_, _ = fmt.Fprintf(w, "would\traise up to %s of %s; nothing of that is done yet\n", counted(r.Marks, "mark"), counted(r.Tags, "tag"))
	}
	return w.Flush()
}

func recoverJSON(r *ledger.RecoverReport, done bool) any {
	type missing struct {
		ID          string `json:"id"`
		Incarnation string `json:"incarnation"`
		Why         string `json:"why"`
		Without     bool   `json:"without"`
	}
	out := struct {
		UUID     string              `json:"uuid"`
		Done     bool                `json:"done"`
		Answered []ledger.InstanceID `json:"answered"`
		Missing  []missing           `json:"missing"`
		AtLimit  []allocator.Tag     `json:"at_limit"`
		Tags     int64               `json:"tags,string"`
		Marks    int64               `json:"marks,string"`
		Version  int64               `json:"layout_version,string"`
		Epoch    string              `json:"epoch"`
	}{r.UUID, done, append([]ledger.InstanceID{}, r.Answered...), []missing{}, append([]allocator.Tag{}, r.AtLimit...), r.Tags, r.Marks, r.Version, r.Epoch}
	for _, m := range r.Missing {
		out.Missing = append(out.Missing, missing{string(m.ID), m.Incarnation, m.Why, m.Left})
	}
	return out
}

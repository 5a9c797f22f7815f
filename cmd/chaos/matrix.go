package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/cmd/chaos/internal/report"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

func newMatrix(cfg *config) *cobra.Command {
	var numbers []int
	cmd := &cobra.Command{
		Use: "matrix", Short: "Take etcd back in time in every way, one after the other", Args: none,
		Long: `Take etcd back in time in every way, with rooms that live on, or start again with
or without their journals: a run of its own for each cell. Cells that
docs/restore.md names as invisible may issue IDs twice; all others may not.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, n := range numbers {
				if n < 1 || n > len(cells()) {
					return allocator.Errorf(allocator.Invalid, "cells: %d; allowed: 1 to %d", n, len(cells()))
				}
			}
			if err := cfg.validate(); err != nil {
				return err
			}
			temporary := cfg.dir == ""
			if err := cfg.directory(); err != nil {
				return err
			}
			if err := cfg.matrix(cmd.Context(), numbers); err != nil || !temporary {
				return err
			}
			return os.RemoveAll(cfg.dir)
		},
	}
	cmd.Flags().IntSliceVar(&numbers, "cells", nil,
		"only these cells, by their numbers, separated by commas (default all)")
	return cmd
}

// matrix runs cells and prints their outcomes.
func (c *config) matrix(ctx context.Context, numbers []int) error {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "RESTORE\tROOMS\tHALTED AFTER\tIDS UNTIL THEN\tIDS\tTWICE\tVERDICT")
	top, failed := c.dir, 0
	for n, cell := range cells() {
		if len(numbers) > 0 && !slices.Contains(numbers, n+1) {
			continue
		}
		run := *c
		run.cell, run.seed, run.time = &cell, c.seed+uint64(n), time.Minute
		// Without a comma: the flag for keys, which are in files there, is a list.
		run.dir = filepath.Join(top, fmt.Sprintf("%02d %s %s", n+1, cell.way.name, cell.rooms))
		if err := os.MkdirAll(run.dir, 0o750); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(c.stderr, "%d of %d: %v\n", n+1, len(cells()), cell)
		line, ok, err := run.cellLine(ctx)
		if err != nil {
			return fmt.Errorf("%v: %w", cell, err)
		}
		if !ok {
			failed++
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", cell.way.name, cell.rooms, line)
		c.march = run.march // built once
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprint(c.stdout, out.String()); err != nil {
		return err
	}
	if failed > 0 {
		return failure{fmt.Errorf("%d cells failed; see %s", failed, top)}
	}
	return nil
}

// cellLine makes the run of one cell, and returns its outcome.
func (c *config) cellLine(ctx context.Context) (line string, ok bool, err error) {
	if err := c.produce(ctx); err != nil {
		return "", false, c.broken(ctx, err)
	}
	r, err := report.Check(ctx, c.dir)
	if err != nil {
		return "", false, err
	}
	file, err := os.Create(filepath.Join(c.dir, "report.txt"))
	if err != nil {
		return "", false, err
	}
	if err := errors.Join(r.Print(file), file.Close()); err != nil {
		return "", false, err
	}
	events, err := runlog.ReadEvents(c.dir)
	if err != nil {
		return "", false, err
	}
	halted, ids := "not needed", "-"
	if c.cell.residual() {
		halted = "not seen"
	}
	for _, e := range events {
		if e.What == runlog.Halted && e.Violation == "" {
			halted, ids = e.Took.Round(time.Millisecond).String(), fmt.Sprint(e.IDs)
		}
	}
	verdict, ok := "passed", len(r.Failures()) == 0
	switch {
	case ok:
	case c.cell.residual():
		verdict, ok = "residual risk", true
	default:
		verdict = "FAILED: " + r.Failures()[0]
	}
	return fmt.Sprintf("%s\t%s\t%d\t%d\t%s", halted, ids, r.IDs, r.Duplicates.Count, verdict), ok, nil
}

// oneCell is torment for a run of one cell.
func (d *driver) oneCell(ctx context.Context) error {
	f := fault{"restore etcd", "", func(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
		return d.restoreCell(ctx, *d.config.cell, r)
	}}
	for err := errSkip; err != nil; store.Sleep(ctx, 100*time.Millisecond) {
		err = d.inject(ctx, f, 1, rand.New(rand.NewPCG(d.config.seed, 1_001)))
		if err != nil && !errors.Is(err, errSkip) {
			return err
		}
	}
	store.Sleep(ctx, 2*time.Second) // for some further refills
	return ctx.Err()
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/record"
)

func newCheck(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: "check DIR", Short: "Check a run again, from its directory",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return allocator.Errorf(allocator.Invalid, "%d arguments; allowed: one, a run's directory", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return check(cmd.Context(), args[0], stdout) },
	}
}

func check(_ context.Context, dir string, stdout io.Writer) error {
	files, err := filepath.Glob(filepath.Join(dir, record.Dir, "*"+record.Suffix))
	if err != nil {
		return err
	}
	runs := make(map[allocator.Tag][]allocator.Run)
	ids := int64(0)
	for _, f := range files {
		r, err := record.Open(f)
		if err != nil {
			return err
		}
		for {
			i, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			runs[i.Tag] = append(runs[i.Tag], i.Runs...)
			for _, run := range i.Runs {
				ids += run.Count
			}
		}
		_ = r.Close()
	}
	twice := int64(0)
	for _, list := range runs {
		slices.SortFunc(list, func(a, b allocator.Run) int {
			if a.First < b.First {
				return -1
			}
			return 1
		})
		end := int64(0)
		for _, run := range list {
			if run.First < end {
				twice += end - run.First
			}
			end = max(end, run.First+run.Count)
		}
	}
	events, err := record.ReadEvents(dir)
	if err != nil {
		return err
	}
	bad := 0
	for _, e := range events {
		if e.Violation != "" {
			bad++
			_, _ = fmt.Fprintf(stdout, "violation: %+v\n", e)
		}
	}
	_, _ = fmt.Fprintf(stdout, "%d IDs, %d twice, %d violations\n", ids, twice, bad)
	if twice+int64(bad) > 0 {
		return failure{errors.New("failed")}
	}
	return nil
}

var _ = os.Stdout

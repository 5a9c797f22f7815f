package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/report"
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

// check holds the run in dir to everything, and prints what it was.
func check(ctx context.Context, dir string, stdout io.Writer) error {
	r, err := report.Check(ctx, dir)
	if err != nil {
		return err
	}
	if err := r.Print(stdout); err != nil {
		return err
	}
	switch {
	case len(r.Failures()) > 0:
		return failure{errors.New("the run failed")}
	case len(r.Weak()) > 0:
		return failure{errors.New("the run was too weak to show anything")}
	}
	return nil
}

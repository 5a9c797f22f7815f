package main

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/cmd/chaos/internal/report"
)

func newCheck(cfg *config) *cobra.Command {
	return &cobra.Command{
		Use: "check DIR", Short: "Check a run again, from its directory",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return allocator.Errorf(allocator.Invalid, "%d arguments; allowed: one, a run's directory", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cfg.validateOutput(); err != nil {
				return err
			}
			return cfg.check(cmd.Context(), args[0])
		},
	}
}

// The forms of a printed report.
const (
	outputText = "text"
	outputJSON = "json"
)

func (c *config) validateOutput() error {
	if c.output != outputText && c.output != outputJSON {
		return allocator.Errorf(allocator.Invalid, "output: %q; allowed: text, json", c.output)
	}
	return nil
}

// check checks the run in dir against everything, and prints its report.
func (c *config) check(ctx context.Context, dir string) error {
	r, err := report.Check(ctx, dir)
	if err != nil {
		return err
	}
	if c.output == outputJSON {
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(r)
	} else {
		err = r.Print(c.stdout)
	}
	if err != nil {
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

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func newExport(c *common) *cobra.Command {
	t := c.target()
	cmd := &cobra.Command{
		Use:     "export",
		Short:   "Write the layout and the tags as a file for `march apply`",
		Example: `  march export > cluster.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, tags, err := readCluster(cmd, t)
			if err != nil {
				return err
			}
			content, err := exportManifest(layout, tags)
			if err == nil {
				_, err = c.stdout.Write(content)
			}
			return err
		},
	}
	return t.flags(cmd, "console", defaultConsole)
}

// readCluster returns the layout and all tags. Its error is Refused if one of them cannot be
// read: an apply would take it as absent.
func readCluster(cmd *cobra.Command, t *target) (layout *marchv1.Layout, tags []*marchv1.Tag, err error) {
	err = callConsole(cmd.Context(), t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
		answer, err := s.GetLayout(ctx, &marchv1.GetLayoutRequest{})
		if err != nil {
			return err
		}
		if answer.GetProblem() != "" {
			return allocator.Errorf(allocator.Refused, "the layout cannot be used: %s", answer.GetProblem())
		}
		list, err := allPages(marchv1.ConsoleServiceClient.ListTags, nil)(s, ctx, &marchv1.ListTagsRequest{})
		if u := list.GetUnreadable(); err == nil && len(u) > 0 {
			err = allocator.Errorf(allocator.Refused, "key %q cannot be read: %s", u[0].GetKey(), u[0].GetWhy())
		}
		layout, tags = answer.GetLayout().GetLayout(), list.GetTags()
		return err
	})
	return layout, tags, err
}

type applying struct {
	c               *common
	t               *target
	file            *manifest
	prune, dry, yes bool
	atomic, force   bool
	hold            time.Duration
	path            string
	Diff            manifestDiff    `json:"diff"`
	Plan            json.RawMessage `json:"plan"`    // null where the layout stays
	Applied         bool            `json:"applied"` // false with --dry-run
	plan            *marchv1.Plan
	count           string
}

func newApply(c *common) *cobra.Command {
	a := &applying{c: c, t: c.target()}
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the layout and the tags those of a file",
		Long: `Make the layout and the tags those of a file, which march export writes. The
difference is shown first, and applied once it is agreed to. If the cluster
changes meanwhile, apply refuses to go on: each tag is written only if it is the
one that was compared.

A layout or tag that the file does not have stays as it is; with --prune such
tags are deleted. A setting that a tag of the file does not have gets its
default. First the layout moves, as by march migrate apply, then the tags
change. After ^C a migration goes on, and the tags stay: apply the file again.`,
		Example: `  march export > cluster.yaml
  march apply -f cluster.yaml --dry-run`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := required(cmd, "file"); err != nil {
				return err
			}
			content, err := readBounded("file", a.path, maxManifest)
			if err == nil {
				a.file, err = parseManifest(a.path, content)
			}
			if err != nil {
				return err
			}
			return a.run(cmd)
		},
	}
	a.t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&a.path, "file", "f", "", "the file, - for standard input")
	flags.BoolVar(&a.dry, "dry-run", false, "only show the difference")
	flags.BoolVar(&a.prune, "prune", false, "delete the tags that the file does not have")
	flags.BoolVar(&a.atomic, "atomic", false, "allow one atomic switch of the layout if smaller moves cannot reach it")
	flags.BoolVar(&a.force, "force", false, "also move to a layout that may leave a room no ID of a tag, "+
		"or whose boundary is above a thousandth of the IDs that a tag has left")
	flags.DurationVar(&a.hold, "hold", 0, "how long at least a move waits for a silent instance (default the "+
		"instance's own --hold)")
	flags.BoolVarP(&a.yes, "yes", "y", false, "do not ask; limits that stop rooms are lowered, too")
	return cmd
}

func (a *applying) run(cmd *cobra.Command) error {
	diff, err := a.diff(cmd)
	if err != nil {
		return err
	}
	a.Diff = diff
	if diff.Layout != nil {
		if err := a.planLayout(cmd); err != nil {
			return err
		}
	}
	if !a.dry && !diff.Empty() && !a.yes {
		if a.path == "-" || !interactive() {
			return cannotAsk()
		}
		a.show(a.c.stderr)
		if err := ask(cmd.Context(), a.c, "Apply this?"); err != nil {
			return err
		}
	}
	if a.c.output == "text" && (a.dry || a.yes || diff.Empty()) {
		a.show(a.c.stdout)
	}
	if !a.dry && !diff.Empty() {
		if err := a.apply(cmd); err != nil {
			return err
		}
		a.Applied = true
	}
	return a.c.print(a, func(*tabwriter.Writer) {}) // its text was shown before
}

// diff reads the cluster, and compares it with the file.
func (a *applying) diff(cmd *cobra.Command) (manifestDiff, error) {
	layout, tags, err := readCluster(cmd, a.t)
	if err != nil {
		return manifestDiff{}, err
	}
	return a.file.Diff(layout, tags, a.prune)
}

func (a *applying) planLayout(cmd *cobra.Command) error {
	answer, err := askConsole(cmd.Context(), a.t, &marchv1.PlanMigrationRequest{Target: a.file.Layout, Atomic: a.atomic,
		Force: a.force}, marchv1.ConsoleServiceClient.PlanMigration)
	if err != nil {
		return err
	}
	a.plan = answer.GetPlan()
	counted, err := planCost(cmd.Context(), a.c, a.t, a.plan)
	if err == nil && counted.GetRefused() != "" && !a.force {
		err = allocator.Errorf(allocator.Refused, "%s", counted.GetRefused())
	}
	if err == nil {
		a.plan.Cost, a.count = counted.GetCost(), counted.GetCount()
		a.Plan, err = marshal(a.plan)
	}
	return err
}

func (a *applying) show(out io.Writer) {
	if a.plan != nil {
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		movesText(w, a.plan)
		planCostText(w, a.plan.GetCost())
		_, _ = fmt.Fprintln(w)
		_ = w.Flush()
	}
	_, _ = fmt.Fprint(out, a.Diff.Text())
}

// apply makes the changes that were shown. Its error is Conflict if the cluster changed
// meanwhile.
func (a *applying) apply(cmd *cobra.Command) error {
	unchanged := func(layout bool) error {
		now, err := a.diff(cmd)
		if err == nil && (!now.SameTags(a.Diff) || layout && !now.SameLayout(a.Diff)) {
			err = allocator.Errorf(allocator.Conflict, "the cluster changed meanwhile: run apply again")
		}
		return err
	}
	if err := unchanged(true); err != nil {
		return err
	}
	if a.plan != nil {
		answer, err := askConsole(cmd.Context(), a.t, &marchv1.ApplyMigrationRequest{Plan: a.plan, Count: a.count,
			Hold: durationpb.New(a.hold), Force: a.force}, marchv1.ConsoleServiceClient.ApplyMigration)
		quiet := *a.c
		quiet.stdout = io.Discard // of the migration only its progress is shown
		if err == nil {
			err = watch(cmd.Context(), &quiet, a.t, answer.GetMigration().GetId())
		}
		if err == nil {
			err = cmd.Context().Err()
		}
		if err == nil {
			err = unchanged(false) // it may have taken long
		}
		if err != nil {
			return err
		}
	}
	for _, change := range a.Diff.Tags {
		err := callConsole(cmd.Context(), a.t, func(ctx context.Context, s marchv1.ConsoleServiceClient) (err error) {
			switch change.Action {
			case "create":
				_, err = s.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: change.Message()})
			case "update":
				var answer *marchv1.UpdateTagResponse
				answer, err = s.UpdateTag(ctx, &marchv1.UpdateTagRequest{Tag: change.Message(), Confirm: true,
					IfRevision: change.revision})
				a.c.sayNotes(answer)
			case "delete":
				_, err = s.DeleteTag(ctx, &marchv1.DeleteTagRequest{Name: change.Tag, IfRevision: change.revision})
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("tag %s: %w", change.Tag, err)
		}
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

func newTag(c *common) *cobra.Command {
	t := c.target()
	cmd := group("tag", "Create, show, change and delete tags",
		newTagCreate(c, t), newTagList(c, t), newTagSearch(c, t), newTagShow(c, t),
		newTagUpdate(c, t), newTagDelete(c, t), newTagForget(c, t),
		newTagSkip(c, t), newTagPrescale(c, t), newTagImport(c, t))
	t.flags(cmd, "console", defaultConsole)
	c.outputFlag(cmd)
	return cmd
}

func newTagCreate(c *common, t *target) *cobra.Command {
	var kind string
	var text tagTextFlags
	var fresh, reuse bool
	tag := &marchv1.Tag{}
	cmd := &cobra.Command{
		Use:   "create TAG",
		Short: "Create a tag",
		Example: `  march tag create order
  march tag create order --start 1000000 --reserve 30m
  march tag create order --format 'prefix(ORD-) | radix62(11)'
  march tag create event --kind time --preset cosid
  march tag create trace --kind time --bits 41/10/12 --time-epoch 2026-01-01T00:00:00Z`,
		Args: exactly("a tag"),
		RunE: func(cmd *cobra.Command, args []string) error {
			tag.Name = args[0]
			if err := cmp.Or(readKind(cmd, kind, tag), text.set(cmd, tag)); err != nil {
				return err
			}
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: tag, Fresh: fresh, Reuse: reuse})
				if err != nil {
					return text.tell(err)
				}
				if tag.Format != nil && answer.GetTag().Format == nil {
					return allocator.Errorf(allocator.Refused,
						"the console's version does not know formats: it created tag %s without one; "+
							"delete it or keep it", args[0])
				}
				if answer.GetRisk() != "" {
					_, _ = fmt.Fprintln(c.stderr, answer.GetRisk())
				}
				return c.print(answer.GetTag(), func(w *tabwriter.Writer) { tagText(w, answer.GetTag()) })
			})
		},
	}
	settingFlags(cmd, tag, setting.Settings(setting.Any, true))
	text.add(cmd)
	cmd.Flags().StringVar(&kind, "kind", "counter",
		"counter, or time for time-ordered IDs; --preset or --bits imply time")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]string{"counter", "time"},
		cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&fresh, "fresh", false,
		"the name was never in use, so its first IDs need not leave the margins of recovers free")
	cmd.Flags().BoolVar(&reuse, "reuse", false,
		"create it also where IDs, or texts, of a deleted tag of this name may come again; says which")
	return cmd
}

func newTagUpdate(c *common, t *target) *cobra.Command {
	var yes, dry bool
	tag := &marchv1.Tag{}
	cmd := &cobra.Command{
		Use:     "update TAG",
		Short:   "Change a tag's settings; other settings stay as they are",
		Example: `  march tag update order --reserve 30m --max-step 500000000`,
		Args:    exactly("a tag"),
		RunE: func(cmd *cobra.Command, args []string) error {
			tag.Name = args[0]
			request := &marchv1.UpdateTagRequest{Tag: tag, Confirm: yes, DryRun: dry}
			update := func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.UpdateTag(ctx, request)
				if err != nil {
					return err
				}
				sayBehind(c, answer.GetBehind())
				for _, effect := range answer.GetEffects() {
					_, _ = fmt.Fprintln(c.stderr, effect)
				}
				return c.print(answer.GetTag(), func(w *tabwriter.Writer) { tagText(w, answer.GetTag()) })
			}
			err := callConsole(cmd, c, t, update)
			if allocator.KindOf(err) != allocator.Refused || request.GetTag().Limit == nil || yes {
				return err
			}
			_, _ = fmt.Fprintln(c.stderr, err)
			if err := ask(cmd.Context(), c, "Lower the limit anyway?"); err != nil {
				return err
			}
			request.Confirm = true
			return callConsole(cmd, c, t, update)
		},
	}
	settingFlags(cmd, tag, setting.Settings(setting.Any, false))
	cmd.Flags().BoolVar(&dry, "dry-run", false, "change nothing: print the tag as it would be, "+
		"and what the change does")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask before a limit stops rooms that have leased IDs above it")
	return cmd
}

// sayBehind prints the instances that have not yet applied a change of a tag.
func sayBehind(c *common, behind []string) {
	if len(behind) > 0 {
		_, _ = fmt.Fprintf(c.stderr,
			"changed; these instances did not answer, or did not apply the change within 3 s, "+
				"and may still issue the IDs that they hold: %s\n",
			strings.Join(behind, ", "))
	}
}

func newTagList(c *common, t *target) *cobra.Command {
	var prefix string
	var deleted bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tags",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				all := &marchv1.ListTagsResponse{}
				for token := ""; ; {
					page, err := s.ListTags(ctx, &marchv1.ListTagsRequest{PageSize: 1000,
						PageToken: token, Prefix: prefix, Deleted: deleted})
					if err != nil {
						return err
					}
					all.Tags = append(all.Tags, page.GetTags()...)
					all.Unreadable = passedOver(all.GetUnreadable(), page)
					if token = page.GetNextPageToken(); token == "" {
						break
					}
				}
				return c.print(all, func(w *tabwriter.Writer) {
					if deleted {
						deletedText(w, all.GetTags())
						return
					}
					_, _ = fmt.Fprintln(w, "TAG\tSTART\tLIMIT\tMIN STEP\tMAX STEP\tRESERVE\tCREATED\tFORMAT")
					for _, t := range all.GetTags() {
						if t.GetTime() != nil {
							_, _ = fmt.Fprintf(w, "%s\ttime\t-\t-\t-\t-\t%s\t%s\n", t.GetName(),
								t.GetCreated().AsTime().Format(time.RFC3339), cmp.Or(t.GetFormat(), "-"))
							continue
						}
						_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", t.GetName(), t.GetStart(),
							t.GetLimit(), t.GetMinStep(), t.GetMaxStep(),
							t.GetReserve().AsDuration(), t.GetCreated().AsTime().Format(time.RFC3339),
							cmp.Or(t.GetFormat(), "-"))
					}
				})
			})
		},
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "only tags whose names begin with this")
	cmd.Flags().BoolVar(&deleted, "deleted", false,
		"deleted tags, of which the next tag of the name takes something over")
	return cmd
}

func deletedText(w *tabwriter.Writer, tags []*marchv1.Tag) {
	_, _ = fmt.Fprintln(w, "TAG\tKIND\tCREATED\tDELETED\tFORMAT")
	for _, t := range tags {
		kind := "counter"
		if t.GetTime() != nil {
			kind = "time"
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", t.GetName(), kind, t.GetCreated().AsTime().Format(time.RFC3339),
			t.GetDeleted().AsTime().Format(time.RFC3339), cmp.Or(t.GetFormat(), "-"))
	}
}

func newTagShow(c *common, t *target) *cobra.Command {
	return &cobra.Command{
		Use:   "show TAG",
		Short: "Show a tag, its mark in each room, and how many IDs each instance holds",
		Args:  exactly("a tag"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd, c, t, marchv1.ConsoleServiceClient.GetTag,
				&marchv1.GetTagRequest{Name: args[0]}, tagShowText)
		},
	}
}

func newTagDelete(c *common, t *target) *cobra.Command {
	return destroys(c, &cobra.Command{
		Use:   "delete TAG",
		Short: "Delete a tag: rooms issue no more of its IDs. A new tag of the same name issues none of them again",
		Args:  exactly("a tag"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callAndPrint(cmd, c, t, marchv1.ConsoleServiceClient.DeleteTag,
				&marchv1.DeleteTagRequest{Name: args[0]}, func(w *tabwriter.Writer, _ *marchv1.DeleteTagResponse) {
					_, _ = fmt.Fprintf(w, "tag %s deleted\n", args[0])
				})
		},
	}, func(args []string) (string, error) { return "Delete tag " + args[0] + "? Its calls fail then.", nil })
}

func newTagForget(c *common, t *target) *cobra.Command {
	return destroys(c, &cobra.Command{
		Use:   "forget TAG",
		Short: "Forget what a deleted tag left behind (march tag list --deleted) for the next tag of its name",
		Args:  exactly("a tag"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.DeleteTag(ctx, &marchv1.DeleteTagRequest{Name: args[0], Forget: true})
				if err != nil {
					return err
				}
				return c.print(answer, func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintf(w, "tag %s forgotten\n", args[0])
				})
			})
		},
	}, func(args []string) (string, error) {
		return "Forget deleted tag " + args[0] +
			"? Then IDs of it, or their texts, may come again in a tag of its name.", nil
	})
}

func newTagSkip(c *common, t *target) *cobra.Command {
	var to int64
	var rooms []string
	var force bool
	cmd := &cobra.Command{
		Use:     "skip TAG --to ID",
		Short:   "Skip IDs: rooms issue only IDs from --to on. Returns when all instances that answer have applied it",
		Example: `  march tag skip order --to 5000000`,
		Args:    exactly("a tag"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := required(cmd, "to"); err != nil {
				return err
			}
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.SkipTag(ctx, &marchv1.SkipTagRequest{Name: args[0], To: to,
					Rooms: rooms, Force: force})
				if err != nil {
					return err
				}
				sayBehind(c, answer.GetBehind())
				return c.print(answer.GetTag(), func(w *tabwriter.Writer) { tagText(w, answer.GetTag()) })
			})
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "the least ID to issue from now on")
	cmd.Flags().StringSliceVar(&rooms, "rooms", nil, "only these rooms (default all, also those that come later)")
	cmd.Flags().BoolVar(&force, "force", false, "skip more IDs than the tag's max-jump")
	return cmd
}

func newTagPrescale(c *common, t *target) *cobra.Command {
	var step int64
	var d time.Duration
	cmd := &cobra.Command{
		Use:     "prescale TAG --step N",
		Short:   "Make every instance hold at least --step IDs for a time, for example before a sale; 0 ends it",
		Example: `  march tag prescale order --step 5000000 --duration 2h`,
		Args:    exactly("a tag"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := required(cmd, "step"); err != nil {
				return err
			}
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.PrescaleTag(ctx, &marchv1.PrescaleTagRequest{Name: args[0], Step: step,
					Duration: durationpb.New(d)})
				if err != nil {
					return err
				}
				return c.print(answer.GetTag(), func(w *tabwriter.Writer) { tagText(w, answer.GetTag()) })
			})
		},
	}
	cmd.Flags().Int64Var(&step, "step", 0, "how many IDs to hold at least, up to the tag's max-step")
	cmd.Flags().DurationVar(&d, "duration", time.Hour, "how long, 1s to 168h")
	return cmd
}

func newTagSearch(c *common, t *target) *cobra.Command {
	r := &marchv1.SearchTagsRequest{}
	var by string
	cmd := &cobra.Command{
		Use:   "search [TEXT]",
		Short: "List tags whose names contain a text, sorted by name, rate, space used, or time left",
		Example: `  march tag search --sort rate --descending
  march tag search shard --sort lasts`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactly("a text")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if r.Sort, err = api.ParseWord[marchv1.TagSort]("sort", by); err != nil {
				return usageError{err}
			}
			r.Search = strings.Join(args, "")
			return callConsole(cmd, c, t, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
				answer, err := s.SearchTags(ctx, r)
				for err == nil && answer.GetAsOf() == nil { // the console reads them for the first time
					select {
					case <-ctx.Done():
						err = ctx.Err()
					case <-time.After(100 * time.Millisecond):
						answer, err = s.SearchTags(ctx, r)
					}
				}
				if err != nil {
					return err
				}
				return c.print(answer, func(w *tabwriter.Writer) {
					_, _ = fmt.Fprintln(w, "TAG\tIDS/S\tMARKS\tUSED\tLASTS")
					for _, t := range answer.GetTags() {
						marks := make([]string, 0, len(t.GetMarks()))
						for _, m := range t.GetMarks() {
							marks = append(marks, fmt.Sprintf("%s %d", m.GetRoom(), m.GetNext()))
						}
						left := "-"
						if t.GetLasts() != nil {
							left = years(t.GetLasts().GetSeconds())
						}
						_, _ = fmt.Fprintf(w, "%s\t%.0f\t%s\t%.2f%%\t%s\n", t.GetTag().GetName(), t.GetRate(),
							strings.Join(marks, ", "), 100*t.GetUsed(), left)
					}
					if n := answer.GetFound(); n > int64(len(answer.GetTags())) {
						_, _ = fmt.Fprintf(w, "\n%d more\n", n-int64(len(answer.GetTags())))
					}
				})
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&by, "sort", "name", "name, strict, rate, used, lasts, next or created")
	flags.BoolVar(&r.Descending, "descending", false, "sort in descending order")
	flags.Int32VarP(&r.PageSize, "most", "n", 100, "how many at most, 1 to 1000")
	return cmd
}

package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	marchv1 "github.com/march-id/march/api/march/v1"
)

func newTagSearch(c *common, t *target) *cobra.Command {
	r := &marchv1.SearchTagsRequest{}
	cmd := &cobra.Command{
		Use:   "search [TEXT]",
		Short: "List tags whose names contain a text, sorted by what they do now",
		Example: `  march tag search --sort rate --descending
  march tag search shard --sort lasts`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exactly("a text")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
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
							left = yearsText(t.GetLasts().GetSeconds())
						}
						_, _ = fmt.Fprintf(w, "%s\t%.0f\t%s\t%.2f%%\t%s\n", t.GetTag().GetName(), t.GetRate(), strings.Join(marks, ", "), 100*t.GetUsed(), left)
					}
					if n := answer.GetFound(); n > int64(len(answer.GetTags())) {
						_, _ = fmt.Fprintf(w, "\n%d more\n", n-int64(len(answer.GetTags())))
					}
				})
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&r.Sort, "sort", "name", "name, strict, rate, used, lasts, next or created")
	flags.BoolVar(&r.Descending, "descending", false, "the largest first, or the last name")
	flags.Int32VarP(&r.PageSize, "most", "n", 100, "at most so many, 1 to 1000")
	return cmd
}

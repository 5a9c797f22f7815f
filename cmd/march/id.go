package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

func newID(c *common) *cobra.Command {
	t := c.target()
	cmd := group("id", "Issue and decode IDs, and write them as texts", newIDNext(c, t), newIDBatch(c, t),
		newIDDecode(c, t), newIDFormat(c), newIDParse(c))
	return c.outputFlag(t.flags(cmd, "room", defaultRoom))
}

func newIDNext(c *common, t *target) *cobra.Command {
	request := &marchv1.NextBatchRequest{Texts: true}
	cmd := newRow(callRow{
		use: "next TAG[=COUNT]...", short: "Issue IDs, one per line",
		long: `Issue IDs, one per line; with -o json each line is {"id":"NUMBER"}. Where the tag has
a format, each ID has its text beside it: {"id":"NUMBER","text":"TEXT"}.

With several tags, or TAG=COUNT, one call takes the IDs of all of them, and each
line begins with the tag: {"tag":"TAG","id":"NUMBER"}. It takes at most 100 tags
and 10,000 IDs. If a tag fails, no ID is printed, and the error says how many IDs
of the tags before it are skipped.`,
		example: `  march id next order
  march id next order --count 10
  march id next order snapshot item=5`,
		flags: []rowFlag{{"count", "count,n", "1", "how many IDs"}},
	}, request, func(cmd *cobra.Command, args []string) error {
		line := plainLine
		if c.output == "json" {
			line = jsonLine
		}
		if len(args) == 1 && !strings.Contains(args[0], "=") {
			request.Tag = args[0]
			return issue(cmd.Context(), c, t, request, eachID(line))
		}
		if cmd.Flags().Changed("count") {
			return usageError{allocator.Errorf(allocator.Invalid,
				"count: given with several tags or TAG=COUNT; allowed: one tag, or TAG=COUNT for each")}
		}
		return c.issueMany(cmd.Context(), t, args)
	})
	cmd.Args = atLeast("a tag")
	return cmd
}

// issueMany fetches IDs of several tags, each given as TAG or TAG=COUNT, in one call, and
// prints them in the order of the tags.
func (c *common) issueMany(ctx context.Context, t *target, args []string) error {
	request := &marchv1.NextManyRequest{}
	for _, arg := range args {
		of := &marchv1.TagCount{Tag: arg, Count: 1}
		if name, given, counted := strings.Cut(arg, "="); counted {
			n, err := strconv.ParseInt(given, 10, 64)
			if err != nil {
				return usageError{allocator.Errorf(allocator.Invalid,
					"%.100q: count: %.100q; allowed: 1 to %d", arg, given, api.MaxMany)}
			}
			of.Tag, of.Count = name, n
		}
		request.Tags = append(request.Tags, of)
	}
	if err := api.CheckMany(request); err != nil {
		return usageError{err}
	}
	var answer *marchv1.NextManyResponse
	err := t.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		answer, err = marchv1.NewIDServiceClient(conn).NextMany(ctx, request)
		if status.Code(err) == codes.Unimplemented && strings.Contains(err.Error(), "unknown method") {
			return allocator.Errorf(allocator.Refused,
				"the room's release does not support several tags in one call; upgrade the room, "+
					"or ask for one tag at a time")
		}
		return err
	})
	if err != nil {
		return err
	}
	c.clean(answer)
	w := bufio.NewWriter(c.stdout)
	for _, of := range answer.GetTags() {
		for _, one := range of.GetIds() {
			b, id := w.AvailableBuffer(), one.GetId()
			if c.output == "json" {
				// a tag has no character that JSON escapes
				b = append(append(append(b, `{"tag":"`...), of.GetTag()...), `",`...)
				b = append(b, jsonLine(nil, &id, one.GetText())[1:]...)
			} else {
				b = plainLine(append(append(b, of.GetTag()...), '\t'), &id, one.GetText())
			}
			_, _ = w.Write(b)
		}
	}
	return w.Flush()
}

// eachID returns what writes an answer by line, which appends the line of an ID.
func eachID(line func(b []byte, id *int64, text string) []byte) func(*bufio.Writer, *marchv1.NextBatchResponse) error {
	return func(w *bufio.Writer, answer *marchv1.NextBatchResponse) error {
		texts := answer.GetTexts()
		if len(answer.GetRuns()) == 0 { // the IDs exist only as texts
			for _, text := range texts {
				_, _ = w.Write(line(w.AvailableBuffer(), nil, text))
			}
		}
		for _, run := range answer.GetRuns() {
			for k := range run.GetCount() {
				text := ""
				if len(texts) > 0 {
					text, texts = texts[0], texts[1:]
				}
				id := run.GetFirst() + k*max(run.GetStride(), 1)
				_, _ = w.Write(line(w.AvailableBuffer(), &id, text))
			}
		}
		return nil
	}
}

func newIDBatch(c *common, t *target) *cobra.Command {
	request := &marchv1.NextBatchRequest{}
	return newRow(callRow{
		use: "batch TAG", short: "Issue many IDs, printed as runs: the first ID and the number of IDs",
		long: `Issue many IDs, printed as runs: the first ID and the number of IDs. A third
number is the distance between IDs, if that is not 1. The command takes 100,000
IDs from the room at a time, and with -o json prints a line for each time.

With --contiguous all IDs follow each other. They then come in one call, so
their number is at most the width of the room's range, and at most half of the
tag's max_step.

With --texts each ID has a line with its text, if the tag has a format.`,
		example: `  march id batch order --count 100000
  march id batch order --count 50 --contiguous`,
		flags: []rowFlag{
			{"count", "count,n", "1000", "how many IDs"},
			{"contiguous", "contiguous", "", "all IDs in one run"},
			{"texts", "texts", "", "the texts of the IDs, too"},
		},
	}, request, func(cmd *cobra.Command, _ []string) error {
		if request.GetContiguous() && request.GetCount() > api.MaxBatch {
			return usageError{allocator.Errorf(allocator.Invalid,
				"count: %d; allowed with --contiguous: 1 to %d", request.GetCount(), api.MaxBatch)}
		}
		return issue(cmd.Context(), c, t, request, func(w *bufio.Writer, answer *marchv1.NextBatchResponse) error {
			if c.output == "json" {
				return c.print(answer, nil)
			}
			if request.GetTexts() {
				return eachID(plainLine)(w, answer)
			}
			for _, run := range answer.GetRuns() {
				_, _ = fmt.Fprintf(w, "%d\t%d", run.GetFirst(), run.GetCount())
				if run.GetStride() > 1 {
					_, _ = fmt.Fprintf(w, "\t%d", run.GetStride())
				}
				_, _ = fmt.Fprintln(w)
			}
			return nil
		})
	})
}

// issue fetches the IDs that request asks for, in as many calls as that takes, and prints
// each answer as it comes.
func issue(ctx context.Context, c *common, t *target, request *marchv1.NextBatchRequest,
	show func(*bufio.Writer, *marchv1.NextBatchResponse) error) error {
	count := request.GetCount()
	if count < 1 {
		return usageError{allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 or more", count)}
	}
	l, err := t.dial()
	if err != nil {
		return err
	}
	defer l.close()
	w := bufio.NewWriter(c.stdout)
	most := int64(api.MaxBatch)
	if request.GetTexts() && !request.GetContiguous() {
		most = api.MaxTexts // until it is known that the tag has no format
	}
	for count > 0 {
		request.Count = min(count, most)
		var answer *marchv1.NextBatchResponse
		err := l.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			answer, err = marchv1.NewIDServiceClient(conn).NextBatch(ctx, request)
			return err
		})
		if err != nil {
			return err
		}
		if request.GetContiguous() && len(answer.GetRuns()) != 1 { // rooms of earlier releases ignore the field
			return allocator.Errorf(allocator.Refused,
				"the room answered with %d runs, because its release does not support --contiguous; "+
					"upgrade the room (these IDs are lost and leave a gap)", len(answer.GetRuns()))
		}
		if answer.GetFormat() == "" {
			most = api.MaxBatch
		}
		c.clean(answer)
		if err := show(w, answer); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
		count -= request.GetCount()
	}
	return nil
}

func newIDDecode(c *common, t *target) *cobra.Command {
	layout, offline := &marchv1.Tag{}, &textFlags{}
	var text bool
	var description string
	cmd := &cobra.Command{
		Use:   "decode [TAG] ID",
		Short: "Show which room leased an ID or a text under which layout, and its block and residue",
		Long: `Show which room leased an ID under which layout, and the ID's block and residue.
Instead of an ID the command takes a text of the tag's format. It reads a number as an
ID; with --text, as a text.

With --preset or --bits give no tag: the command then prints the time, the
worker and the sequence of a time-ordered ID. With --format give no tag either: the
command then reads a text of that format. None of these needs a server.`,
		Example: `  march id decode order 1501
  march id decode shipment SHP-00000000A7
  march id decode ticket --text 000010
  march id decode --format 'opaque(orders-1, 10^12) | decimal(12)' --opaque-key orders-1=orders-1.key 404189632871
  march id decode --preset cosid 198064472869310464
  march id decode --bits 41/10/12 --time-epoch 2019-12-24T16:00:00Z 198064472869310464`,
		Args: func(cmd *cobra.Command, args []string) error {
			if layout.GetTime() != nil {
				return exactly("an ID")(cmd, args)
			}
			if description != "" {
				return exactly("a text")(cmd, args)
			}
			if len(offline.keys) > 0 {
				return usageError{allocator.Errorf(allocator.Invalid, "opaque-key: given without --format; allowed: "+
					"--format FORMAT --opaque-key NAME=FILE TEXT, or a tag and a text without --opaque-key, "+
					"which its room reads")}
			}
			return exactly("a tag", "an ID")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if layout.GetTime() != nil {
				return decodeTime(c, layout, args[0])
			}
			if description != "" {
				return c.parseText(offline, description, args[0])
			}
			request := &marchv1.DecodeRequest{Tag: args[0], Text: args[1]}
			if digits := strings.TrimPrefix(args[1], "-"); !text && strings.Trim(digits, "0123456789") == "" {
				var err error
				if request.Id, err = parseID(args[1]); err != nil {
					return usageError{err}
				}
				request.Text = ""
			}
			return t.call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
				answer, err := marchv1.NewIDServiceClient(conn).Decode(ctx, request)
				if err != nil {
					return err
				}
				if request.GetText() != "" && answer.Id == nil && answer.Text == nil {
					return allocator.Errorf(allocator.Refused, "the room's release reads no texts; allowed: an ID")
				}
				return c.print(answer, func(w *tabwriter.Writer) {
					if request.GetText() == "" && answer.Text != nil {
						_, _ = fmt.Fprintf(w, "text\t%s, of the ID %d; --text reads the argument as a text\n",
							answer.GetText(), request.GetId())
					}
					decodeText(w, answer)
				})
			})
		},
	}
	settingFlags(cmd, layout, slices.DeleteFunc(setting.Settings(setting.Timed, true), func(s setting.Setting) bool {
		return s.Kind != setting.Timed || !s.Fixed
	}))
	cmd.Flags().BoolVar(&text, "text", false, "the argument is a text, although it is a number")
	cmd.Flags().StringVar(&description, "format", "", "the format of the text, where there is no tag")
	offline.add(cmd)
	acceptNegative(cmd)
	return cmd
}

// acceptNegative makes a command read -5 as a number, which is not a valid ID, and not
// as a flag.
func acceptNegative(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			if _, notNumber := strconv.ParseUint(unknown.GetSpecifiedShortnames(), 10,
				64); !errors.Is(notNumber, strconv.ErrSyntax) {
				_, err := parseID("-" + unknown.GetSpecifiedShortnames())
				return usageError{err}
			}
		}
		return flagError(cmd, err)
	})
}

func parseID(s string) (int64, error) {
	id, err := strconv.ParseInt(s, 10, 64)
	if err != nil || id < 0 {
		return 0, allocator.Errorf(allocator.Invalid, "id: %q; allowed: 0 to %d", s, int64(allocator.MaxID))
	}
	return id, nil
}

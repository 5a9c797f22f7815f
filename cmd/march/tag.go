package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

func newTag(c *common) *cobra.Command {
	t := c.target()
	type console = marchv1.ConsoleServiceClient
	list := &marchv1.ListTagsRequest{}
	cmd := group("tag", "Create, show, change and delete tags",
		newTagCreate(c, t),
		newCall(c, t, callRow{use: "list", short: "List tags", flags: []rowFlag{
			{"prefix", "prefix", "", "only tags whose names begin with this"},
			{"deleted", "deleted", "", "deleted tags, of which the next tag of the name takes something over"},
		}}, list, allPages(console.ListTags, nil), whole, func(w *tabwriter.Writer, answer *marchv1.ListTagsResponse) {
			if list.GetDeleted() {
				deletedText(w, answer.GetTags())
			} else {
				tagsText(w, answer.GetTags())
			}
		}),
		newCall(c, t, callRow{
			use:   "search [TEXT]",
			short: "List tags whose names contain a text, sorted by name, rate, space used, or time left",
			example: `  march tag search --sort rate --descending
  march tag search shard --sort lasts`,
			flags: []rowFlag{
				{"sort", "sort", "name", "name, strict, rate, used, lasts, next or created"},
				{"descending", "descending", "", "sort in descending order"},
				{"page_size", "most,n", "100", "how many at most, 1 to 1000"},
			},
			again: func(_ int, answer proto.Message) time.Duration { // the console reads them for the first time
				if found, _ := answer.(*marchv1.SearchTagsResponse); found.GetAsOf() == nil {
					return 100 * time.Millisecond
				}
				return 0
			},
		}, &marchv1.SearchTagsRequest{}, console.SearchTags, whole, searchText),
		newCall(c, t, callRow{
			use: "show TAG", short: "Show a tag, its mark in each room, and how many IDs each instance holds",
		}, &marchv1.GetTagRequest{}, console.GetTag, whole, tagShowText),
		newTagUpdate(c, t),
		newCall(c, t, callRow{
			use:   "delete TAG",
			short: "Delete a tag: rooms issue no more of its IDs. A new tag of the same name issues none of them again",
			ask:   "Delete tag %s? Its calls fail then.", done: "tag %s deleted",
		}, &marchv1.DeleteTagRequest{}, console.DeleteTag, whole, nil),
		newCall(c, t, callRow{
			use:   "forget TAG",
			short: "Forget what a deleted tag left behind (march tag list --deleted) for the next tag of its name",
			ask:   "Forget deleted tag %s? Then IDs of it, or their texts, may come again in a tag of its name.",
			done:  "tag %s forgotten",
		}, &marchv1.DeleteTagRequest{Forget: true}, console.DeleteTag, whole, nil),
		newCall(c, t, callRow{
			use: "skip TAG --to ID",
			short: "Skip IDs: rooms issue only IDs from --to on. Returns when all instances that answer have " +
				"applied it",
			example: `  march tag skip order --to 5000000`,
			flags:   rowFlags(setting.SkipFields),
		}, &marchv1.SkipTagRequest{}, console.SkipTag, (*marchv1.SkipTagResponse).GetTag, tagText),
		newCall(c, t, callRow{
			use:     "prescale TAG --step N",
			short:   "Make every instance hold at least --step IDs for a time, for example before a sale; 0 ends it",
			example: `  march tag prescale order --step 5000000 --duration 2h`,
			flags:   rowFlags(setting.PrescaleFields),
		}, &marchv1.PrescaleTagRequest{}, console.PrescaleTag, (*marchv1.PrescaleTagResponse).GetTag, tagText),
		newTagImport(c, t))
	return c.outputFlag(t.flags(cmd, "console", defaultConsole))
}

func newTagCreate(c *common, t *target) *cobra.Command {
	var kind string
	var text tagTextFlags
	tag := &marchv1.Tag{}
	cmd := newCall(c, t, callRow{
		use: "create TAG", short: "Create a tag",
		example: `  march tag create order
  march tag create order --start 1000000 --reserve 30m
  march tag create order --format 'prefix(ORD-) | radix62(11)'
  march tag create event --kind time --preset cosid
  march tag create trace --kind time --bits 41/10/12 --time-epoch 2026-01-01T00:00:00Z`,
		flags: rowFlags(setting.CreateFields),
	}, &marchv1.CreateTagRequest{Tag: tag}, func(s marchv1.ConsoleServiceClient, ctx context.Context,
		request *marchv1.CreateTagRequest, _ ...grpc.CallOption) (*marchv1.CreateTagResponse, error) {
		answer, err := s.CreateTag(ctx, request)
		if err == nil && tag.Format != nil && answer.GetTag().Format == nil {
			err = refusedf("the console's version does not know formats: it created tag "+
				"%s without one; delete it or keep it", tag.GetName())
		}
		return answer, text.tell(err)
	}, (*marchv1.CreateTagResponse).GetTag, tagText)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return cmp.Or(readKind(cmd, kind, tag), text.set(cmd, tag))
	}
	settingFlags(cmd, tag, setting.Settings(setting.Any, true))
	text.add(cmd)
	cmd.Flags().StringVar(&kind, "kind", "counter",
		"counter, or time for time-ordered IDs; --preset or --bits imply time")
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]string{"counter", "time"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func newTagUpdate(c *common, t *target) *cobra.Command {
	tag := &marchv1.Tag{}
	request := &marchv1.UpdateTagRequest{Tag: tag}
	cmd := newCall(c, t, callRow{
		use: "update TAG", short: "Change a tag's settings; other settings stay as they are",
		example: `  march tag update order --reserve 30m --max-step 500000000`,
		flags: []rowFlag{
			{"dry_run", "dry-run", "", "change nothing: print the tag as it would be, and what the change does"},
			{"confirm", "yes,y", "", "do not ask before a limit stops rooms that have leased IDs above it"},
		},
	}, request, marchv1.ConsoleServiceClient.UpdateTag, (*marchv1.UpdateTagResponse).GetTag, tagText)
	update := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := update(cmd, args)
		if allocator.KindOf(err) != allocator.Refused || tag.Limit == nil || request.GetConfirm() {
			return err
		}
		put(c.stderr, "%s\n", err)
		if err := ask(cmd.Context(), c, "Lower the limit anyway?"); err != nil {
			return err
		}
		request.Confirm = true
		return update(cmd, args)
	}
	settingFlags(cmd, tag, setting.Settings(setting.Any, false))
	return cmd
}

func tagsText(w *tabwriter.Writer, tags []*marchv1.Tag) {
	table(w, "TAG\tSTART\tLIMIT\tMIN STEP\tMAX STEP\tRESERVE\tCREATED\tFORMAT", tags, func(t *marchv1.Tag) []any {
		if t.GetTime() != nil {
			return []any{t.GetName(), "time", "", "", "", "", t.GetCreated(), t.GetFormat()}
		}
		return []any{t.GetName(), t.GetStart(), t.GetLimit(), t.GetMinStep(), t.GetMaxStep(),
			t.GetReserve().AsDuration(), t.GetCreated(), t.GetFormat()}
	})
}

func deletedText(w *tabwriter.Writer, tags []*marchv1.Tag) {
	table(w, "TAG\tKIND\tCREATED\tDELETED\tFORMAT", tags, func(t *marchv1.Tag) []any {
		return []any{t.GetName(), setting.KindOf(t), t.GetCreated(), t.GetDeleted(), t.GetFormat()}
	})
}

func searchText(w *tabwriter.Writer, found *marchv1.SearchTagsResponse) {
	list(w, setting.Tags, found.GetTags())
	if n := found.GetFound() - int64(len(found.GetTags())); n > 0 {
		put(w, "\n%d more\n", n)
	}
}

func settingFlags(cmd *cobra.Command, tag *marchv1.Tag, settings []setting.Setting) {
	for _, s := range settings {
		if s.Kind == setting.Timed && settings[0].Kind != setting.Timed { // among others
			s.Help = "of kind time: " + s.Help
		}
		addSetting(cmd, tag, s, settingName(s), s.Default())
	}
}

func settingName(s setting.Setting) string { return strings.ReplaceAll(s.Name(), "_", "-") }

// readKind makes a tag one of the kind that a flag names. Its error is a usage error.
func readKind(cmd *cobra.Command, word string, tag *marchv1.Tag) error {
	kind, err := setting.ParseKind(word)
	switch {
	case err != nil:
		return usageError{err}
	case kind == setting.Timed && tag.GetTime() == nil:
		tag.Time = &marchv1.TimeTag{}
	case kind == setting.Counter && tag.GetTime() != nil && cmd.Flags().Changed("kind"):
		return usagef("kind: counter, with settings of time-ordered IDs; allowed with these: time")
	}
	return nil
}

// tagTextFlags stand for settings of how the IDs of a new tag are texts.
type tagTextFlags struct {
	keys   []string
	digits int
}

func (t *tagTextFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&t.keys, "opaque-key", nil,
		"NAME=FILE: the format's opaque key itself, in the place of its check value")
	flags.IntVar(&t.digits, "digits", 0, "the limit is 10^DIGITS, for 1 to 18, and the texts are decimal(DIGITS) "+
		"unless there is a --format, which must have room for them")
}

// set puts what was given into a message. Its errors are usage errors.
func (t *tagTextFlags) set(cmd *cobra.Command, tag *marchv1.Tag) error {
	description := tag.GetFormat()
	if cmd.Flags().Changed("digits") {
		switch {
		case t.digits < 1 || t.digits > 18:
			return usagef("digits: %d; allowed: 1 to 18", t.digits)
		case tag.Period != nil:
			return usagef("digits: %d, with --period; allowed with a period: --period-digits", t.digits)
		case tag.Limit != nil || tag.Time != nil:
			return usagef("digits: %d, with --limit or of kind time; allowed: "+
				"a counter without --limit, as --digits sets it", t.digits)
		}
		limit := int64(1)
		for range t.digits {
			limit *= 10
		}
		tag.Limit = &limit
		description = cmp.Or(description, fmt.Sprintf("decimal(%d)", t.digits))
	}
	if description == "" && tag.Format == nil {
		return nil
	}
	f, err := format.Parse(description)
	if err != nil {
		return syntaxError(err)
	}
	tag.Format = &description
	keys, err := readKeys(t.keys)
	for _, key := range keys {
		if key.Name() != f.Key() || tag.KeyCheck != nil {
			return usagef("opaque-key: %s; allowed: the format's key, once, and no --key-check", key.Name())
		}
		check := key.CheckValue()
		tag.KeyCheck = &check
	}
	return err
}

// tell adds what --digits made of the limit to an error that the console gave.
func (t *tagTextFlags) tell(err error) error {
	if err == nil || t.digits == 0 || allocator.KindOf(err) != allocator.Invalid {
		return err
	}
	return fmt.Errorf("%w (digits: %d, which is the limit 10^%d)", err, t.digits, t.digits)
}

func tagText(w *tabwriter.Writer, t *marchv1.Tag) {
	field(w, "tag", t.GetName())
	for _, f := range setting.Facts(t) {
		field(w, f.Name, f.Value)
	}
}

func tagShowText(w *tabwriter.Writer, t *marchv1.GetTagResponse) {
	tagText(w, t.GetTag())
	if t.GetTag().GetTime() != nil {
		slicesText(w, t.GetSlices())
		return
	}
	put(w, "\n")
	list(w, setting.TagMarks, t.GetMarks())
	put(w, "\n")
	list(w, setting.Chains, t.GetChains())
	if len(t.GetSilent()) > 0 {
		put(w, "\nno answer from: %s\n", strings.Join(t.GetSilent(), ", "))
	}
}

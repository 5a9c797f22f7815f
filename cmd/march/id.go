package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
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
		if len(args) == 1 && !strings.Contains(args[0], "=") {
			request.Tag = args[0]
			return issue(cmd.Context(), c, t, request, c.lines)
		}
		if cmd.Flags().Changed("count") {
			return usagef("count: given with several tags or TAG=COUNT; allowed: one tag, or TAG=COUNT for each")
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
				return usagef("%.100q: count: %.100q; allowed: 1 to %d", arg, given, api.MaxMany)
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
			return refusedf("the room's release does not support several tags in one " +
				"call; upgrade the room, or ask for one tag at a time")
		}
		return err
	})
	if err != nil {
		return err
	}
	w := bufio.NewWriter(c.stdout)
	for _, of := range answer.GetTags() {
		for _, one := range of.GetIds() {
			id := one.GetId()
			c.line(w, idLine{of.GetTag(), &id, one.GetText()})
		}
	}
	return w.Flush()
}

// idLine is an issued ID as a line has it: with its tag where there are several, and with its text where it has one.
type idLine struct {
	Tag  string `json:"tag,omitempty"`
	ID   *int64 `json:"id,omitempty,string"` // nil where it exists only as a text
	Text string `json:"text,omitempty"`
}

// line writes an ID as JSON, or with tabs between its parts. An error of w comes with the next Flush.
func (c *common) line(w *bufio.Writer, l idLine) {
	if c.output == "json" {
		_ = json.NewEncoder(w).Encode(l)
		return
	}
	parts := []string{printable(l.Tag), "", printable(l.Text)}
	if l.ID != nil {
		parts[1] = strconv.FormatInt(*l.ID, 10)
	}
	_, _ = fmt.Fprintln(w, strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "\t"))
}

// lines writes an answer, a line for each ID.
func (c *common) lines(w *bufio.Writer, answer *marchv1.NextBatchResponse) error {
	texts := answer.GetTexts()
	if len(answer.GetRuns()) == 0 { // the IDs exist only as texts
		for _, text := range texts {
			c.line(w, idLine{Text: text})
		}
	}
	for _, run := range answer.GetRuns() {
		for k := range run.GetCount() {
			id := run.GetFirst() + k*max(run.GetStride(), 1)
			l := idLine{ID: &id}
			if len(texts) > 0 {
				l.Text, texts = texts[0], texts[1:]
			}
			c.line(w, l)
		}
	}
	return nil
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
			return usagef("count: %d; allowed with --contiguous: 1 to %d", request.GetCount(), api.MaxBatch)
		}
		return issue(cmd.Context(), c, t, request, func(w *bufio.Writer, answer *marchv1.NextBatchResponse) error {
			if c.output == "json" {
				return c.print(answer, nil)
			}
			if request.GetTexts() {
				return c.lines(w, answer)
			}
			for _, run := range answer.GetRuns() {
				put(w, "%d\t%d", run.GetFirst(), run.GetCount())
				if run.GetStride() > 1 {
					put(w, "\t%d", run.GetStride())
				}
				put(w, "\n")
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
		return usagef("count: %d; allowed: 1 or more", count)
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
			return refusedf("the room answered with %d runs, because its release does not "+
				"support --contiguous; upgrade the room (these IDs are lost and leave a gap)", len(answer.GetRuns()))
		}
		if answer.GetFormat() == "" {
			most = api.MaxBatch
		}
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
	cmd := command(callRow{
		use:   "decode [TAG] ID",
		short: "Show which room leased an ID or a text under which layout, and its block and residue",
		long: `Show which room leased an ID under which layout, and the ID's block and residue.
Instead of an ID the command takes a text of the tag's format. It reads a number as an
ID; with --text, as a text.

With --preset or --bits give no tag: the command then prints the time, the
worker and the sequence of a time-ordered ID. With --format give no tag either: the
command then reads a text of that format. None of these needs a server.`,
		example: `  march id decode order 1501
  march id decode shipment SHP-00000000A7
  march id decode ticket --text 000010
  march id decode --format 'opaque(orders-1, 10^12) | decimal(12)' --opaque-key orders-1=orders-1.key 404189632871
  march id decode --preset cosid 198064472869310464
  march id decode --bits 41/10/12 --time-epoch 2019-12-24T16:00:00Z 198064472869310464`,
	}, func(cmd *cobra.Command, args []string) error {
		if layout.GetTime() != nil {
			return exactly("an ID")(cmd, args)
		}
		if description != "" {
			return exactly("a text")(cmd, args)
		}
		if len(offline.OpaqueKeys) > 0 {
			return usagef("opaque-key: given without --format; allowed: --format FORMAT --opaque-key NAME=FILE " +
				"TEXT, or a tag and a text without --opaque-key, which its room reads")
		}
		return exactly("a tag", "an ID")(cmd, args)
	}, func(cmd *cobra.Command, args []string) error {
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
				return refusedf("the room's release reads no texts; allowed: an ID")
			}
			return c.print(answer, func(w *tabwriter.Writer) {
				if request.GetText() == "" && answer.Text != nil {
					put(w, "text\t%s, of the ID %d; --text reads the argument as a text\n",
						answer.GetText(), request.GetId())
				}
				decodeText(w, answer)
			})
		})
	})
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
		return 0, invalidf("id: %q; allowed: 0 to %d", s, int64(allocator.MaxID))
	}
	return id, nil
}

// textFlags are the flags of the commands that write and read texts. Both need no server.
type textFlags struct {
	keyFiles
	period string
}

func (t *textFlags) add(cmd *cobra.Command) {
	keys := setting.Fields(&t.keyFiles)[0]
	cmd.Flags().StringArrayVar(&t.OpaqueKeys, keys.Name, nil, keys.Get("help"))
}

// parse reads a description, with the keys. Its errors are usage errors; an error
// in the description shows the place.
func (t *textFlags) parse(description string) (*format.Format, error) {
	keys, err := readKeys(t.OpaqueKeys)
	if err != nil {
		return nil, err
	}
	f, err := format.Parse(description, keys...)
	return f, syntaxError(err)
}

// syntaxError makes a usage error of a description's, which shows the place.
func syntaxError(err error) error {
	var syntax *format.SyntaxError
	if errors.As(err, &syntax) {
		return usageError{fmt.Errorf("%w\n%s", err, syntax.Caret())}
	}
	return err
}

func newIDFormat(c *common) *cobra.Command {
	t := &textFlags{}
	cmd := command(callRow{
		use: "format FORMAT ID", short: "Write an ID as a text",
		long: `Write an ID as a text. The format says how, such as 'prefix(ORD-) | radix62(11)'.
It needs no server.`,
		example: `  march id format 'prefix(ORD-) | radix62(11)' 198064472869310464
  march id format 'date(yyMMdd) | decimal(9) | damm' 5 --period 2026-11-22`,
	}, exactly("a format", "an ID"), func(_ *cobra.Command, args []string) error {
		f, err := t.parse(args[0])
		if err != nil {
			return err
		}
		if f.Domain().Parts {
			return usagef("format: %v is of %v; allowed: formats of IDs", f, f.Domain())
		}
		id, err := parseID(args[1])
		if err != nil {
			return usageError{err}
		}
		v := format.Value{ID: id}
		if t.period != "" {
			day, err := time.Parse(time.DateOnly, t.period)
			if err != nil {
				return usagef("period: %q; allowed: its first day, such as 2026-11-22", t.period)
			}
			v.Period = format.DateOf(day)
		}
		text, err := f.Append(nil, v)
		if err != nil {
			return textError(err)
		}
		return c.print(map[string]string{"text": string(text)}, func(w *tabwriter.Writer) {
			put(w, "%s\n", text)
		})
	})
	t.add(cmd)
	cmd.Flags().StringVar(&t.period, "period", "", "the first day of the tag's period, such as 2026-11-22; "+
		"needed if the format shows the period and the ID does not contain it")
	acceptNegative(cmd)
	return cmd
}

func newIDParse(c *common) *cobra.Command {
	t := &textFlags{}
	cmd := command(callRow{
		use: "parse FORMAT TEXT", short: "Read the ID of a text",
		long: `Read the ID of a text that has a format, such as 'prefix(ORD-) | radix62(11)'. A text
that the format does not write is refused. It needs no server.`,
		example: `  march id parse 'prefix(ORD-) | radix62(11)' ORD-0Ed8W7BGa4e`,
	}, exactly("a format", "a text"), func(_ *cobra.Command, args []string) error {
		return c.parseText(t, args[0], args[1])
	})
	t.add(cmd)
	return cmd
}

// parseText prints the ID of a text of a format.
func (c *common) parseText(t *textFlags, description, text string) error {
	f, err := t.parse(description)
	if err != nil {
		return err
	}
	v, err := f.ParseText(text)
	if err != nil {
		return textError(err)
	}
	out := idParts{ID: &v.ID}
	if f.Domain().Parts {
		out = partsText(v.Parts)
	}
	if v.Period != (format.Date{}) {
		out.Period = v.Period.String()
	}
	return c.print(out, out.text)
}

// textError turns an error of a format into a usage error.
func textError(err error) error {
	var missing *format.KeyError
	if errors.As(err, &missing) {
		err = fmt.Errorf("%w; give it with --opaque-key %s=FILE", err, missing.Name)
	}
	return usageError{err}
}

// idParts are what is known of an ID or a text without a server. 64-bit numbers are strings, as in every answer.
type idParts struct {
	ID       *int64 `json:"id,omitempty,string"`
	Period   string `json:"period,omitempty"`
	Time     string `json:"time,omitempty"`
	Worker   *int64 `json:"worker,omitempty,string"`
	Sequence *int64 `json:"sequence,omitempty,string"`
}

func partsText(p timeid.Parts) idParts {
	return idParts{Time: time.UnixMilli(p.Time).UTC().Format(timeid.Format), Worker: &p.Worker, Sequence: &p.Sequence}
}

func (p idParts) text(w *tabwriter.Writer) {
	if p.ID != nil {
		field(w, "id", *p.ID)
	} else {
		put(w, "time\t%s\nworker\t%d\nsequence\t%d\n", p.Time, *p.Worker, *p.Sequence)
	}
	field(w, "period", p.Period)
}

// decodeTime prints the parts of a time-ordered ID. It needs no server.
func decodeTime(c *common, tag *marchv1.Tag, arg string) error {
	settings, err := setting.New(tag)
	if err == nil {
		err = settings.Validate()
	}
	if err != nil {
		return usageError{err}
	}
	// No program issues an ID that is further ahead of its own clock.
	p, err := partsOf(settings.Time.Layout(), arg, time.Now().Add(timeid.FurthestAhead).UnixMilli())
	if err != nil {
		return usageError{err}
	}
	return c.print(partsText(p), partsText(p).text)
}

// partsOf returns the parts of an ID, or of timeid.Wide of its text, which has 15 characters
// of radix 62 or 17 of radix 36. Its error is Invalid.
func partsOf(layout timeid.Layout, arg string, latest int64) (timeid.Parts, error) {
	if layout != timeid.Wide {
		id, err := parseID(arg)
		if err != nil {
			return timeid.Parts{}, err
		}
		return layout.DecomposeBefore(id, latest)
	}
	f, err := format.Parse("sortable(62)")
	if err == nil && len(arg) == 17 {
		f, err = format.Parse("sortable(36)")
	}
	if err != nil {
		return timeid.Parts{}, err
	}
	v, err := f.ParseText(arg)
	if err != nil {
		return timeid.Parts{}, err
	}
	return v.Parts, v.Parts.CheckBefore(latest)
}

// unknownOrigin returns why the room that leased an ID is not known, or why there is none.
func unknownOrigin(d *marchv1.DecodeResponse) string {
	rooms := strings.Join(d.GetRooms(), " or ")
	switch {
	case len(d.GetUnreadable()) > 0:
		why := "not known: layouts of its time are no longer kept, or the history is damaged (see `march verify`)"
		return strings.TrimSuffix(why+"; by the marks "+rooms, "; by the marks ")
	case d.GetMaybeLost():
		return "not known: it may have been leased in a history that a restore of etcd lost"
	case rooms != "":
		return "not known any longer; by the layouts of its time " + rooms
	case d.GetPassed():
		return "no room: it was skipped, and no room will lease it"
	case d.GetRoom() == "":
		return "no room, and none has its residue now"
	}
	return "no room yet"
}

func decodeText(w *tabwriter.Writer, d *marchv1.DecodeResponse) {
	if d.Id != nil {
		field(w, "id", d.GetId())
	}
	field(w, "period", d.GetPeriod())
	if p := d.GetTime(); p != nil {
		put(w, "time\t%s\nworker\t%d\nsequence\t%d\nroom\t%s\n", p.GetTime().AsTime().Format(timeid.Format),
			p.GetWorker(), p.GetSequence(), cmp.Or(p.GetRoom(), strings.Join(d.GetRooms(), " or "), "not known"))
		return
	}
	if o := d.GetOrigin(); o == nil {
		field(w, "leased by", unknownOrigin(d))
	} else {
		r := o.GetLayout().GetRooms()[o.GetRoom()]
		put(w, "leased by\troom %s [%d, %d)\n", o.GetRoom(), r.GetLower(), r.GetUpper())
		if d.SkippedTo != nil {
			put(w, "or skipped\tan operator had it go on at %d: see `march audit list`\n", d.GetSkippedTo())
		}
		put(w, "layout\t%d, boundary %d\ncurrent\t%s to %s\nblock\t%d\nresidue\t%d\n", o.GetLayout().GetVersion(),
			o.GetLayout().GetBoundary(), cellText(o.GetSince()), cmp.Or(cellText(o.GetUntil()), "now"), o.GetBlock(),
			o.GetResidue())
		if o.GetLayout().GetVersion() == d.GetVersion() {
			return
		}
	}
	room := "no room"
	if d.GetRoom() != "" {
		room = "room " + d.GetRoom()
	}
	put(w, "now\t%s, layout %d, block %d, residue %d\n", room, d.GetVersion(), d.GetBlock(), d.GetResidue())
}

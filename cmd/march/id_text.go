package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/setting"
)

// textFlags are the flags of the commands that write and read texts. Both need no server.
type textFlags struct {
	keys   []string
	period string
}

func (t *textFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&t.keys, "opaque-key", nil, opaqueKeyUsage)
}

// parse reads a description, with the keys. Its errors are usage errors; an error
// in the description shows the place.
func (t *textFlags) parse(description string) (*format.Format, error) {
	keys, err := readKeys(t.keys)
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
	cmd := &cobra.Command{
		Use:   "format FORMAT ID",
		Short: "Write an ID as a text",
		Long: `Write an ID as a text. The format says how, such as 'prefix(ORD-) | radix62(11)'.
It needs no server.`,
		Example: `  march id format 'prefix(ORD-) | radix62(11)' 198064472869310464
  march id format 'date(yyMMdd) | decimal(9) | damm' 5 --period 2026-11-22`,
		Args: exactly("a format", "an ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := t.parse(args[0])
			if err != nil {
				return err
			}
			if f.Domain().Parts {
				return usageError{allocator.Errorf(allocator.Invalid,
					"format: %v is of %v; allowed: formats of IDs", f, f.Domain())}
			}
			id, err := parseID(args[1])
			if err != nil {
				return usageError{err}
			}
			v := format.Value{ID: id}
			if t.period != "" {
				day, err := time.Parse(time.DateOnly, t.period)
				if err != nil {
					return usageError{allocator.Errorf(allocator.Invalid,
						"period: %q; allowed: its first day, such as 2026-11-22", t.period)}
				}
				v.Period = format.DateOf(day)
			}
			text, err := f.Append(nil, v)
			if err != nil {
				return textError(err)
			}
			return c.print(map[string]string{"text": string(text)}, func(w *tabwriter.Writer) {
				_, _ = fmt.Fprintf(w, "%s\n", text)
			})
		},
	}
	t.add(cmd)
	cmd.Flags().StringVar(&t.period, "period", "", "the first day of the tag's period, such as 2026-11-22; "+
		"needed if the format shows the period and the ID does not contain it")
	acceptNegative(cmd)
	return cmd
}

func newIDParse(c *common) *cobra.Command {
	t := &textFlags{}
	cmd := &cobra.Command{
		Use:   "parse FORMAT TEXT",
		Short: "Read the ID of a text",
		Long: `Read the ID of a text that has a format, such as 'prefix(ORD-) | radix62(11)'. A text
that the format does not write is refused. It needs no server.`,
		Example: `  march id parse 'prefix(ORD-) | radix62(11)' ORD-0Ed8W7BGa4e`,
		Args:    exactly("a format", "a text"),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.parseText(t, args[0], args[1])
		},
	}
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
	return c.printValue(f, v)
}

// textError turns an error of a format into a usage error.
func textError(err error) error {
	var missing *format.KeyError
	if errors.As(err, &missing) {
		err = fmt.Errorf("%w; give it with --opaque-key %s=FILE", err, missing.Name)
	}
	return usageError{err}
}

func (c *common) printValue(f *format.Format, v format.Value) error {
	out := idParts{}
	if f.Domain().Parts {
		out = partsText(v.Parts)
	} else {
		out.ID = &v.ID
	}
	if v.Period != (format.Date{}) {
		out.Period = v.Period.String()
	}
	return c.print(out, out.text)
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
		_, _ = fmt.Fprintf(w, "id\t%d\n", *p.ID)
	} else {
		_, _ = fmt.Fprintf(w, "time\t%s\nworker\t%d\nsequence\t%d\n", p.Time, *p.Worker, *p.Sequence)
	}
	if p.Period != "" {
		_, _ = fmt.Fprintf(w, "period\t%s\n", p.Period)
	}
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

// plainLine appends an ID, nil where it exists only as a text, and its text where there is
// one.
func plainLine(b []byte, id *int64, text string) []byte {
	if id != nil {
		b = strconv.AppendInt(b, *id, 10)
		if text != "" {
			b = append(b, '\t')
		}
	}
	return append(append(b, text...), '\n')
}

// jsonLine appends a NextResponse, as plainLine does.
func jsonLine(b []byte, id *int64, text string) []byte {
	b = append(b, '{')
	if id != nil {
		b = append(strconv.AppendInt(append(b, `"id":"`...), *id, 10), '"')
	}
	if text != "" {
		if id != nil {
			b = append(b, ',')
		}
		quoted, _ := json.Marshal(text) // a string has no error
		b = append(append(b, `"text":`...), quoted...)
	}
	return append(b, "}\n"...)
}

// unknownOrigin returns why the room that leased an ID is not known, or why there is none.
func unknownOrigin(d *marchv1.DecodeResponse) string {
	rooms := strings.Join(d.GetRooms(), " or ")
	switch {
	case len(d.GetUnreadable()) > 0 && rooms != "":
		return "not known: layouts of its time are no longer kept, or the history is damaged (see `march verify`); " +
			"by the marks " + rooms
	case len(d.GetUnreadable()) > 0:
		return "not known: layouts of its time are no longer kept, or the history is damaged (see `march verify`)"
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
		_, _ = fmt.Fprintf(w, "id\t%d\n", d.GetId())
	}
	if d.GetPeriod() != "" {
		_, _ = fmt.Fprintf(w, "period\t%s\n", d.GetPeriod())
	}
	if p := d.GetTime(); p != nil {
		room := cmp.Or(p.GetRoom(), strings.Join(d.GetRooms(), " or "), "not known")
		_, _ = fmt.Fprintf(w, "time\t%s\nworker\t%d\nsequence\t%d\nroom\t%s\n",
			p.GetTime().AsTime().Format(timeid.Format), p.GetWorker(), p.GetSequence(), room)
		return
	}
	if o := d.GetOrigin(); o == nil {
		_, _ = fmt.Fprintf(w, "leased by\t%s\n", unknownOrigin(d))
	} else {
		r := o.GetLayout().GetRooms()[o.GetRoom()]
		_, _ = fmt.Fprintf(w, "leased by\troom %s [%d, %d)\n", o.GetRoom(), r.GetLower(), r.GetUpper())
		if d.SkippedTo != nil {
			_, _ = fmt.Fprintf(w, "or skipped\tan operator had it go on at %d: see `march audit list`\n",
				d.GetSkippedTo())
		}
		_, _ = fmt.Fprintf(w, "layout\t%d, boundary %d\n", o.GetLayout().GetVersion(), o.GetLayout().GetBoundary())
		until := "now"
		if o.GetUntil() != nil {
			until = o.GetUntil().AsTime().Format(time.RFC3339)
		}
		_, _ = fmt.Fprintf(w, "current\t%s to %s\n", o.GetSince().AsTime().Format(time.RFC3339), until)
		_, _ = fmt.Fprintf(w, "block\t%d\n", o.GetBlock())
		_, _ = fmt.Fprintf(w, "residue\t%d\n", o.GetResidue())
		if o.GetLayout().GetVersion() == d.GetVersion() {
			return
		}
	}
	room := "no room"
	if d.GetRoom() != "" {
		room = "room " + d.GetRoom()
	}
	_, _ = fmt.Fprintf(w,
		"now\t%s, layout %d, block %d, residue %d\n", room, d.GetVersion(), d.GetBlock(), d.GetResidue())
}

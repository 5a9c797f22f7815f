package main

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
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

// opaqueKeyUsage is the usage of --opaque-key.
const opaqueKeyUsage = "NAME=FILE: a key of opaque numbers, as 'march key create' makes it; may be repeated"

// readKeys reads the keys of --opaque-key. Its errors are usage errors.
func readKeys(flags []string) (keys []format.Key, err error) {
	for _, flag := range flags {
		name, file, found := strings.Cut(flag, "=")
		if !found {
			return nil, usageError{allocator.Errorf(allocator.Invalid, "opaque-key: %q; allowed: NAME=FILE", flag)}
		}
		if slices.ContainsFunc(keys, func(k format.Key) bool { return k.Name() == name }) {
			return nil, usageError{allocator.Errorf(allocator.Invalid, "opaque-key: %s is named twice; allowed: one file for each key", name)}
		}
		key, err := readKey(name, file)
		if err != nil {
			return nil, usageError{fmt.Errorf("opaque-key: %w", err)}
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readKey reads the file of a key, which others must neither read nor write. A group may
// read it, as of a secret that Kubernetes mounts. Its errors are Invalid, and repeat
// nothing of the file.
func readKey(name, file string) (key format.Key, err error) {
	f, err := os.Open(file)
	if err != nil {
		return key, allocator.Errorf(allocator.Invalid, "%w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return key, allocator.Errorf(allocator.Invalid, "%w", err)
	}
	if mode := info.Mode().Perm(); mode&0o027 != 0 {
		return key, allocator.Errorf(allocator.Invalid, "%s has the mode %04o, so others may read or change the key; allowed: 0600 or 0640, say: chmod 600 %s", file, mode, file)
	}
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return key, allocator.Errorf(allocator.Invalid, "%w", err)
	}
	return format.ParseKey(name, string(text))
}

func newKey(c *common) *cobra.Command {
	cmd := group("key", "Create and check keys of opaque numbers", newKeyCreate(c), newKeyCheck(c))
	c.outputFlag(cmd)
	return cmd
}

func newKeyCreate(c *common) *cobra.Command {
	return &cobra.Command{
		Use:   "create FILE",
		Short: "Make a new key of opaque numbers, and print its check value",
		Long: `Make a new key of opaque numbers, which a tag's texts may be, and print its check
value, which the tag needs. The file must not exist yet. Give it to each room with
--opaque-key NAME=FILE, and keep a copy: without it no text leads back to its ID.`,
		Example: `  march key create orders-1.key`,
		Args:    exactly("a file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			if err := writeKey(args[0]); err != nil {
				return err
			}
			return c.printCheck(args[0])
		},
	}
}

func newKeyCheck(c *common) *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE",
		Short:   "Print the check value of a key, as a tag has it",
		Example: `  march key check orders-1.key`,
		Args:    exactly("a file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := c.checkOutput(); err != nil {
				return err
			}
			return c.printCheck(args[0])
		},
	}
}

// writeKey writes a new key to a file, which only its owner may read, and to the disk.
func writeKey(file string) (err error) {
	secret := make([]byte, format.KeySize)
	_, _ = rand.Read(secret) // it never fails
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return usageError{allocator.Errorf(allocator.Exists, "file: %s exists already; allowed: a new file, as texts of the old key would be lost", file)}
	}
	if err != nil {
		return usageError{allocator.Errorf(allocator.Invalid, "file: %w", err)}
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := fmt.Fprintf(f, "%x\n", secret); err != nil {
		return err
	}
	return f.Sync()
}

// printCheck prints the check value of a key. It does not depend on the key's name.
func (c *common) printCheck(file string) error {
	key, err := readKey("key", file)
	if err != nil {
		return usageError{fmt.Errorf("file: %w", err)}
	}
	if c.output == "json" {
		return json.NewEncoder(c.stdout).Encode(struct {
			KeyCheck string `json:"keyCheck"`
		}{key.CheckValue()})
	}
	_, err = fmt.Fprintf(c.stdout, "%s\n", key.CheckValue())
	return err
}

// syntaxError makes a usage error of a description's, which shows the place.
func syntaxError(err error) error {
	var syntax *format.SyntaxError
	if errors.As(err, &syntax) {
		return usageError{fmt.Errorf("%w\n%s", err, syntax.Caret())}
	}
	return err
}

// periodFlags say how the calendar divides the IDs of a tag that is to be created.
type periodFlags struct {
	unit, zone string
	digits     int32
}

func (p *periodFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&p.unit, "period", "", "count anew each day, month or year: the ID is the date in digits, and then a number of --period-digits digits")
	flags.Int32Var(&p.digits, "period-digits", 9, "with --period: how many digits the number has, 1 to 10 for a day, 12 for a month, 14 for a year")
	flags.StringVar(&p.zone, "time-zone", "UTC", "with --period: the IANA time zone in which periods begin, such as Asia/Shanghai")
}

// set puts what was given into a message. Its errors are usage errors.
func (p *periodFlags) set(cmd *cobra.Command, tag *marchv1.Tag) error {
	if p.unit == "" {
		for _, flag := range []string{"period-digits", "time-zone"} {
			if cmd.Flags().Changed(flag) {
				return usageError{allocator.Errorf(allocator.Invalid, "%s: given without --period; allowed: with --period day, month or year", flag)}
			}
		}
		return nil
	}
	unit, err := api.ParseWord[marchv1.PeriodUnit]("period", p.unit)
	if err != nil {
		return usageError{err}
	}
	tag.Period = &marchv1.Period{Unit: unit, Digits: p.digits, TimeZone: p.zone}
	return nil
}

// tagTextFlags say how the IDs of a tag that is to be created are texts.
type tagTextFlags struct {
	format, keyCheck string
	keys             []string
	digits           int
}

func (t *tagTextFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&t.format, "format", "", "how IDs are texts, such as 'prefix(ORD-) | radix62(11)'; it never changes, and the limit is by default what it has room for")
	flags.StringVar(&t.keyCheck, "key-check", "", "the check value of the format's opaque key: 16 hexadecimal digits")
	flags.StringArrayVar(&t.keys, "opaque-key", nil, "NAME=FILE: the format's opaque key itself, in the place of its check value")
	flags.IntVar(&t.digits, "digits", 0, "the limit is 10^DIGITS, for 1 to 18, and the texts are decimal(DIGITS) unless there is a --format, which must have room for them")
}

// set puts what was given into a message. Its errors are usage errors.
func (t *tagTextFlags) set(cmd *cobra.Command, tag *marchv1.Tag) error {
	description := t.format
	if cmd.Flags().Changed("digits") {
		switch {
		case t.digits < 1 || t.digits > 18:
			return usageError{allocator.Errorf(allocator.Invalid, "digits: %d; allowed: 1 to 18", t.digits)}
		case tag.Period != nil:
			return usageError{allocator.Errorf(allocator.Invalid, "digits: %d, with --period; allowed with a period: --period-digits", t.digits)}
		case tag.Limit != nil || tag.Time != nil:
			return usageError{allocator.Errorf(allocator.Invalid, "digits: %d, with --limit or of kind time; allowed: a counter without --limit, as --digits sets it", t.digits)}
		}
		limit := int64(1)
		for range t.digits {
			limit *= 10
		}
		tag.Limit = &limit
		description = cmp.Or(description, fmt.Sprintf("decimal(%d)", t.digits))
	}
	if cmd.Flags().Changed("key-check") {
		tag.KeyCheck = &t.keyCheck
	}
	if description == "" && !cmd.Flags().Changed("format") {
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
			return usageError{allocator.Errorf(allocator.Invalid, "opaque-key: %s; allowed: the format's key, once, and no --key-check", key.Name())}
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
			if err := c.checkOutput(); err != nil {
				return err
			}
			f, err := t.parse(args[0])
			if err != nil {
				return err
			}
			if f.Domain().Parts {
				return usageError{allocator.Errorf(allocator.Invalid, "format: %v is of %v; allowed: formats of IDs", f, f.Domain())}
			}
			id, err := parseID(args[1])
			if err != nil {
				return usageError{err}
			}
			v := format.Value{ID: id}
			if t.period != "" {
				day, err := time.Parse(time.DateOnly, t.period)
				if err != nil {
					return usageError{allocator.Errorf(allocator.Invalid, "period: %q; allowed: its first day, such as 2026-11-22", t.period)}
				}
				v.Period = format.DateOf(day)
			}
			text, err := f.Append(nil, v)
			if err != nil {
				return textError(err)
			}
			if c.output == "json" {
				return json.NewEncoder(c.stdout).Encode(struct {
					Text string `json:"text"`
				}{string(text)})
			}
			_, err = fmt.Fprintf(c.stdout, "%s\n", text)
			return err
		},
	}
	t.add(cmd)
	cmd.Flags().StringVar(&t.period, "period", "", "the first day of the tag's period, such as 2026-11-22; needed if the format shows the period and the ID does not contain it")
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
			if err := c.checkOutput(); err != nil {
				return err
			}
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

// printValue prints the value of a text.
func (c *common) printValue(f *format.Format, v format.Value) error {
	// 64-bit numbers are strings, as in every answer.
	out := struct {
		ID       *int64 `json:"id,omitempty,string"`
		Period   string `json:"period,omitempty"`
		Time     string `json:"time,omitempty"`
		Worker   *int64 `json:"worker,omitempty,string"`
		Sequence *int64 `json:"sequence,omitempty,string"`
	}{}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	if f.Domain().Parts {
		out.Time = time.UnixMilli(v.Parts.Time).UTC().Format(timeid.Format)
		out.Worker, out.Sequence = &v.Parts.Worker, &v.Parts.Sequence
		_, _ = fmt.Fprintf(w, "time\t%s\nworker\t%d\nsequence\t%d\n", out.Time, v.Parts.Worker, v.Parts.Sequence)
	} else {
		out.ID = &v.ID
		_, _ = fmt.Fprintf(w, "id\t%d\n", v.ID)
	}
	if v.Period != (format.Date{}) {
		out.Period = v.Period.String()
		_, _ = fmt.Fprintf(w, "period\t%s\n", out.Period)
	}
	if c.output == "json" {
		return json.NewEncoder(c.stdout).Encode(out)
	}
	return w.Flush()
}

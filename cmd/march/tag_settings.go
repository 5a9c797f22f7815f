package main

import (
	"cmp"
	"fmt"
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
		return usageError{allocator.Errorf(allocator.Invalid,
			"kind: counter, with settings of time-ordered IDs; allowed with these: time")}
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
			return usageError{allocator.Errorf(allocator.Invalid, "digits: %d; allowed: 1 to 18", t.digits)}
		case tag.Period != nil:
			return usageError{allocator.Errorf(allocator.Invalid,
				"digits: %d, with --period; allowed with a period: --period-digits", t.digits)}
		case tag.Limit != nil || tag.Time != nil:
			return usageError{allocator.Errorf(allocator.Invalid, "digits: %d, with --limit or of kind time; allowed: "+
				"a counter without --limit, as --digits sets it", t.digits)}
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
			return usageError{allocator.Errorf(allocator.Invalid,
				"opaque-key: %s; allowed: the format's key, once, and no --key-check", key.Name())}
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
	_, _ = fmt.Fprintf(w, "tag\t%s\n", t.GetName())
	if name := t.GetForeignName(); name != "" {
		_, _ = fmt.Fprintf(w, "name at doors\t%s\n", name)
	}
	_, _ = fmt.Fprintf(w, "kind\t%s\n", setting.KindOf(t))
	for _, s := range setting.Settings(setting.KindOf(t), true) {
		text := s.Text(t)
		if s.Path == "time.epoch_ms" {
			text = time.UnixMilli(t.GetTime().GetEpochMs()).UTC().Format(timeid.Format)
		}
		if text != "" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", s.Words(), text)
		}
	}
	if p := t.GetPeriod(); p != nil {
		_, _ = fmt.Fprintf(w, "now\t%s, IDs %d to %d; the next period begins at %s\n",
			p.GetCurrent(), p.GetFirst(), p.GetEnd()-1, p.GetEnds().AsTime().Format(time.RFC3339))
	}
	if t.GetPrescaleUntil() != nil {
		_, _ = fmt.Fprintf(w, "prescale\t%d until %s\n", t.GetPrescale(),
			t.GetPrescaleUntil().AsTime().Format(time.RFC3339))
	}
	if t.GetSkip() > 0 {
		_, _ = fmt.Fprintf(w, "skip\tall rooms to %d\n", t.GetSkip())
	}
	for _, room := range sortedKeys(t.GetSkips()) {
		_, _ = fmt.Fprintf(w, "skip\troom %s to %d\n", room, t.GetSkips()[room])
	}
	_, _ = fmt.Fprintf(w, "created\t%s\n", t.GetCreated().AsTime().Format(time.RFC3339))
}

func tagShowText(w *tabwriter.Writer, t *marchv1.GetTagResponse) {
	tagText(w, t.GetTag())
	if t.GetTag().GetTime() != nil {
		slicesText(w, t.GetSlices())
		return
	}
	_, _ = fmt.Fprintln(w, "\nROOM\tNEXT TO LEASE\tLAYOUT")
	for _, m := range t.GetMarks() {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\n", m.GetRoom(), m.GetNext(), m.GetVersion())
	}
	_, _ = fmt.Fprintln(w)
	list(w, setting.Chains, t.GetChains())
	if len(t.GetSilent()) > 0 {
		_, _ = fmt.Fprintf(w, "\nno answer from: %s\n", strings.Join(t.GetSilent(), ", "))
	}
}

package record_test

import (
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
)

const keyCheck = "0123456789abcdef"

// A tag's format can write each of its IDs, or is refused.
func TestFormatsOfTags(t *testing.T) {
	preset, err := timeid.PresetNamed("cosid")
	if err != nil {
		t.Fatal(err)
	}
	ordered, wide := record.NewTimeTag(preset.Layout), record.NewTimeTag(timeid.Wide)
	for _, c := range []struct {
		settings record.TagSettings
		says     string // empty if the format is accepted
	}{
		{record.TagSettings{Format: "", Limit: 1000}, ""},
		{record.TagSettings{Format: "decimal(3)", Limit: 1000}, ""},
		{record.TagSettings{Format: "decimal(3)", Limit: 1001},
			"limit: 1001; allowed with the format decimal(3): 1 to 1000"},
		{record.TagSettings{Format: "prefix(ORD-) | radix62(11)", Limit: allocator.MaxID}, ""},
		{record.TagSettings{Format: "radix62(10)", Limit: allocator.MaxID},
			"limit: 9223372036854775807; allowed with the format radix62(10): 1 to 839299365868340224"},
		{record.TagSettings{Format: "base62", Limit: 5}, "format: at column 1: base62 is no part"},
		{record.TagSettings{Format: "date(yyMMdd) | decimal(9)", Limit: 5},
			"format: date(yyMMdd) | decimal(9) has the date of a period; allowed: "},
		{record.TagSettings{Format: "date(yyMMdd) | period(day, 9) | decimal(9)", Limit: 5},
			"has period(day, 9); allowed: the period of the tag, which has none"},
		{record.TagSettings{Format: "date(yyMMdd) | period(day, 9) | decimal(9)", Start: 20000101_000000000,
			Limit: 20991231_999999999 + 1, Period: period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}}, ""},
		{record.TagSettings{Format: "date(yyMMdd) | period(day, 8) | decimal(8)", Limit: 5,
			Period: period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}},
			"allowed: the period of the tag, which has period(day, 9)"},
		{record.TagSettings{Format: "sortable(62)", Limit: 5},
			"format: sortable(62) writes time, worker and sequence of 44/20/16 bits; allowed: formats of 64-bit IDs"},
		{record.TagSettings{Format: "friendly(cosid, UTC)", Limit: 5},
			"format: friendly(cosid, UTC) is of time-ordered IDs; allowed for a counter: formats without friendly"},
		{record.TagSettings{Format: "friendly(cosid, UTC)", Time: &ordered}, ""},
		{record.TagSettings{Format: "friendly(leaf, UTC)", Time: &ordered},
			"format: friendly(leaf, UTC) is of another layout than the tag's"},
		{record.TagSettings{Format: "radix62(11)", Time: &ordered}, ""},
		{record.TagSettings{Format: "sortable(62)", Time: &ordered}, "allowed: formats of 64-bit IDs"},
		{record.TagSettings{Format: "prefix(S-) | sortable(36)", Time: &wide}, ""},
		{record.TagSettings{Format: "friendly(cosid-string, UTC, padded)", Time: &wide}, ""},
		{record.TagSettings{Time: &wide}, "format: none; allowed for IDs of 80 bits, which exist only as texts: " +
			"formats with sortable"},
		{record.TagSettings{Format: "radix62(11)", Time: &wide},
			"format: radix62(11) writes IDs 0 to 9223372036854775807; allowed for IDs of 80 bits"},
		{record.TagSettings{Format: "friendly(cosid, UTC)", Time: &wide}, "allowed for IDs of 80 bits"},
		{record.TagSettings{Format: "sortable(62)", Time: &wide, KeyCheck: keyCheck}, "allowed: none"},
		{record.TagSettings{Format: "decimal(18)", Time: &ordered}, "format: decimal(18) writes IDs up to " +
			"999999999999999999; allowed: one that writes all of the tag's, up to 9223372036854775807"},
		{record.TagSettings{Format: "decimal", Limit: 5, KeyCheck: keyCheck},
			"key_check: \"0123456789abcdef\"; allowed: none, as the format decimal needs no key"},
		{record.TagSettings{Limit: 5, KeyCheck: keyCheck},
			"key_check: \"0123456789abcdef\"; allowed: none, as the tag has no opaque format"},
		{record.TagSettings{Format: "opaque(k, 10^6) | decimal(6)", Limit: 1_000_000, KeyCheck: keyCheck}, ""},
		{record.TagSettings{Format: "opaque(k, 2^63) | decimal", Limit: allocator.MaxID, KeyCheck: keyCheck}, ""},
		{record.TagSettings{Format: "opaque(k, 10^6) | decimal(6)", Limit: 1_000_000},
			"key_check: none given; needed with the format opaque(k, 10^6) | decimal(6)"},
		{record.TagSettings{Format: "opaque(k, 10^6) | decimal(6)", Limit: 1_000_000, KeyCheck: keyCheck[1:]},
			"key_check: \"123456789abcdef\"; allowed: 16 hexadecimal digits"},
		{record.TagSettings{Format: "opaque(k, 10^6) | decimal(6)", Limit: 1_000_000,
			KeyCheck: strings.ToUpper(keyCheck)}, "allowed: 16 hexadecimal digits in lower case"},
		{record.TagSettings{Format: "opaque(k, 10^6) | decimal(6)", Limit: 999_999, KeyCheck: keyCheck},
			"limit: 999999; allowed with the format opaque(k, 10^6) | decimal(6): 1000000, " +
				"the size of its opaque numbers"},
		{record.TagSettings{Format: "opaque(k, 2^63) | decimal", Time: &ordered, KeyCheck: keyCheck}, ""},
		{record.TagSettings{Format: "opaque(k, 2^62) | decimal", Time: &ordered, KeyCheck: keyCheck},
			"writes IDs up to 4611686018427387903"},
	} {
		err := c.settings.CheckFormat()
		if c.says == "" && err != nil || c.says != "" && (allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), c.says)) {
			t.Errorf("%q, limit %d: got %v; want %q", c.settings.Format, c.settings.Limit, err, c.says)
		}
	}
}

// A tag of time-ordered IDs is stored with its format. A format that this program cannot parse
// does not make the tag unreadable.
func TestFormatsAreKept(t *testing.T) {
	for _, text := range []string{"friendly(cosid, UTC)", "part-of-a-later-release"} {
		value := strings.Replace(timeTag, `"largest_step"`, `"text_format":"`+text+`","largest_step"`, 1)
		if tag, again, err := record.AgainTag([]byte(value)); err != nil ||
			string(again) != value || tag.Format != text {
			t.Errorf("%v\n got %s\nwant %s", err, again, value)
		}
	}
}

// The limit of an opaque tag is the size of its domain.
func TestLimitsOfOpaqueTags(t *testing.T) {
	was := record.DefaultTag()
	was.Format, was.KeyCheck, was.Limit = "opaque(k, 10^6) | decimal", keyCheck, 1_000_000
	to := was
	to.Limit = 999_999
	if err := was.Changeable(to); allocator.KindOf(err) != allocator.Invalid ||
		!strings.Contains(err.Error(), "limit: cannot be changed (it is 1000000)") {
		t.Errorf("got %v", err)
	}
	to = was
	to.MaxSkew = 5
	if err := was.Changeable(to); err != nil {
		t.Error(err)
	}
}

// Programs that know no IDs of 80 bits refuse such tags: their values have a format of their
// own.
func TestWideTagsAreNewer(t *testing.T) {
	wide := record.NewTimeTag(timeid.Wide)
	settings := record.DefaultTag()
	settings.Time, settings.Format = &wide, "sortable(62)"
	if err := settings.Validate(); err != nil {
		t.Error(err)
	}
	value := record.Tag{Name: "event", TagSettings: settings}.Encode("n")
	if !strings.HasPrefix(string(value), `{"format":5,`) {
		t.Errorf("stored as %s", value)
	}
	narrow := *settings.Time
	narrow.TimeBits = 41
	narrow.WorkerBits, narrow.SequenceBits = 10, 12
	settings.Time = &narrow
	if value := (record.Tag{Name: "event", TagSettings: settings}).Encode("n"); !strings.HasPrefix(
		string(value), `{"format":3,`) {
		t.Errorf("stored as %s", value)
	}
}

// A limit is ten boundaries or more above the block of the tag's start.
func TestBlocksOfATag(t *testing.T) {
	for _, test := range []struct {
		start, limit int64
		says         string
	}{
		{1, 1000, ""},
		{99, 1000, ""},
		{0, 999, "limit: 999; allowed: 10 boundaries or more, from 1000 on"},
		{100, 1000, "limit: 1000; allowed: 10 boundaries or more, from 1100 on"},
		{950, 1000, "limit: 1000; allowed: 10 boundaries or more, from 1900 on"},
		{allocator.MaxID - 5, allocator.MaxID, "start: 9223372036854775802; allowed: " +
			"10 boundaries or more below the end of all IDs"},
	} {
		s := record.DefaultTag()
		s.Start, s.Limit = test.start, test.limit
		if err := s.CheckBlocks(100); (err == nil) != (test.says == "") ||
			err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%d to %d: %v; want %q", test.start, test.limit, err, test.says)
		}
	}
}

package format_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
)

// secret is a key for tests.
func secret(seed byte) []byte {
	b := make([]byte, format.KeySize)
	for i := range b {
		b[i] = seed + byte(i)
	}
	return b
}

func key(t testing.TB, name string, seed byte) format.Key {
	t.Helper()
	k, err := format.NewKey(name, secret(seed))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func parse(t testing.TB, description string, keys ...format.Key) *format.Format {
	t.Helper()
	f, err := format.Parse(description, keys...)
	if err != nil {
		t.Fatalf("%s: %v", description, err)
	}
	return f
}

// wantText wants that a format writes a value as a text, and reads it back.
func wantText(t *testing.T, f *format.Format, v format.Value, want string) {
	t.Helper()
	got, err := f.Append([]byte("before "), v)
	if err != nil || string(got) != "before "+want {
		t.Errorf("%v: %+v is %q, %v; want %q", f, v, got, err, want)
		return
	}
	if back, err := f.ParseText(want); back != v || err != nil {
		t.Errorf("%v: %q is read as %+v, %v; want %+v", f, want, back, err, v)
	}
	if least, most := f.Length(); len(want) < least || len(want) > most {
		t.Errorf("%v: %q has %d characters, want %d to %d", f, want, len(want), least, most)
	}
}

func id(n int64) format.Value { return format.Value{ID: n} }

func parts(time, worker, sequence int64) format.Value {
	return format.Value{Parts: timeid.Parts{Time: time, Worker: worker, Sequence: sequence}}
}

// TestPublished holds the formats to values that others published.
func TestPublished(t *testing.T) {
	const cosIDs = 198064472869310464 // 2021-06-23T05:17:30.192Z, worker 1, sequence 0
	november := format.Date{Year: 2026, Month: 11, Day: 22}
	for _, test := range []struct {
		description string
		value       format.Value
		text        string
	}{
		// CosId, RadixIdConverter and its subclasses.
		{"radix62(11)", id(0), "00000000000"},
		{"radix62(11)", id(math.MaxInt64), "AzL8n0Y58m7"},
		{"radix62(11)", id(cosIDs), "0Ed8W7BGa4e"},
		{"radix36(13)", id(math.MaxInt64), "1Y2P0IJ32E8E7"},
		{"radix36(13)", id(cosIDs), "01I67ZUPL8Q9S"},
		{"radix62", id(0), "0"},
		{"radix62", id(cosIDs), "Ed8W7BGa4e"},
		// Its friendly strings, at +08:00 and in UTC.
		{"friendly(cosid, +08:00)", id(cosIDs), "20210623131730192-1-0"},
		{"friendly(cosid, UTC)", id(198185268824510464), "20210623131730192-1-0"},
		{"friendly(cosid, +08:00, padded)", id(cosIDs), "20210623131730192-0001-0000"},
		// CosIdGenerator.
		{"sortable(62)", parts(1624425450192, 1, 0), "0Sb8Fduy0001000"},
		{"sortable(36)", parts(1624425450192, 1, 0), "0KQ90YZ8000010000"},
		{"friendly(cosid-string, +08:00, padded)", parts(1624425450192, 1, 0), "20210623131730192-0000001-00000"},
		// The order of CosId's IdConverterDecorator: prefix, date, group, number, suffix.
		{"prefix(ORD) | date(yyMMdd) | group(yyyy-MM-dd) | radix62(11) | suffix(-X)",
			format.Value{ID: cosIDs, Period: november}, "ORD261122-2026-11-22-0Ed8W7BGa4e-X"},
		// Its other order: group and date before prefix.
		{"date(yyMMdd) | prefix(ORD) | decimal(11)", format.Value{ID: 5, Period: november}, "261122-ORD00000000005"},
		// ISO/IEC 7812-1's usual example, and Damm's.
		{"decimal(10) | luhn", id(7992739871), "79927398713"},
		{"decimal | damm", id(572), "5724"},
		// Crockford's page and packages that follow it.
		{"crockford | crockford-check", id(1234), "16JD"},
		{"crockford(13)", id(math.MaxInt64), "7ZZZZZZZZZZZZ"},
		// Spanner: SELECT BIT_REVERSE(100, TRUE).
		{"reverse | decimal", id(100), "1369094286720630784"},
		{"reverse | decimal", id(1), "4611686018427387904"},
		// DESIGN 9: 20261122 * 10^9 + 5.
		{"date(yyyyMMdd) | period(day, 9) | decimal(9)", id(20261122_000000005), "20261122-000000005"},
	} {
		wantText(t, parse(t, test.description), test.value, test.text)
	}
}

// samples are formats of every part; keyed ones have the key k.
var samples = []string{
	"decimal", "decimal(1)", "decimal(12)", "decimal(19)", "radix62", "radix62(3)", "radix62(11)",
	"radix36", "radix36(13)", "radix36(1)", "crockford", "crockford(13)", "crockford(4) | crockford-check",
	"crockford | crockford-check | suffix(-X)", "prefix(ORD-) | radix62(11)",
	"prefix(\"a b\") | prefix(c) | decimal | suffix(\"\\\"\")",
	"decimal(18) | luhn", "decimal | luhn", "decimal(18) | damm", "decimal | damm", "radix36(12) | mod37-36",
	"radix36 | mod37-36", "decimal(9) | mod37-36 | suffix(Z)",
	"reverse | radix62(11)", "reverse(12) | decimal(4)", "reverse(53) | decimal | damm",
	"date(yyMMdd) | decimal(9)", "date(yyyy, \"\") | radix36", "group(yyyy-MM-dd) | decimal | luhn",
	"prefix(X) | group(yyyy/MM, .) | prefix(Y) | date(yyMM) | decimal(5) | damm",
	"date(ddMMyyyy) | period(day, 10) | decimal(10)", "date(yyMM) | period(month, 12) | radix36(8) | mod37-36",
	"date(yyyy) | period(year, 14) | crockford", "date(yy) | group(yyyyMM) | period(month, 6) | reverse(20) | decimal",
	"opaque(k, 10^12) | decimal(12)", "opaque(k, 10^6) | decimal | luhn", "opaque(k, 2^53) | radix62(10)",
	"opaque(k, 2^63, order) | radix62(11)", "opaque(k, 1000003) | radix36(4)",
	"date(yyMMdd, \"\") | period(day, 9) | opaque(k, 10^9) | decimal(9) | damm",
	"reverse(20) | opaque(k, 1048577, \"a tag\") | decimal(7)",
	"friendly(cosid, UTC)", "friendly(cosid, +08:00)", "friendly(leaf, +05:30, padded)",
	"friendly(cosid-second, -18:00)", "friendly(uid-generator, +18:00, epoch=1704067200000)",
	"friendly(31/10/22, UTC, epoch=0, unit=1s, order=worker-last)", "friendly(52/0/11, UTC, epoch=0)",
	"friendly(40/12/11, -03:00, epoch=0, unit=10ms, padded)",
	"prefix(T-) | friendly(48/0/15, +08:00, epoch=0) | suffix(.)",
	"friendly(cosid-string, UTC)", "friendly(cosid-string, +08:00, padded)", "sortable(62)",
	"prefix(A) | sortable(36) | suffix(B)",
}

func sampleFormats(t testing.TB) []*format.Format {
	t.Helper()
	all := make([]*format.Format, len(samples))
	for i, description := range samples {
		all[i] = parse(t, description, key(t, "k", 1))
	}
	return all
}

// ends returns the values at the ends of a format's domain.
func ends(f *format.Format) (inside, outside []format.Value) {
	d := f.Domain()
	if d.Parts {
		const time, worker, sequence = 1<<44 - 1, 1<<20 - 1, 1<<16 - 1
		return []format.Value{{}, parts(time, worker, sequence), parts(time, 0, 0),
				parts(0, worker, 0), parts(0, 0, sequence)},
			[]format.Value{id(1), parts(time+1, 0, 0), parts(0, worker+1, 0), parts(0, 0, sequence+1), parts(-1, 0, 0),
				parts(0, -1, 0), parts(0, 0, -1), {Period: format.Date{Year: 2026, Month: 1, Day: 1}}}
	}
	var first, last format.Date
	if d.Period {
		first, last = d.Dates[0], d.Dates[1]
		before := format.Date{Year: first.Year - 1, Month: first.Month, Day: first.Day}
		after := format.Date{Year: last.Year + 1, Month: last.Month, Day: last.Day}
		for _, p := range []format.Date{before, after, {}, {Year: 2026, Month: 1, Day: 32}, {Year: 2026, Month: 13,
			Day: 1}, {Year: 2026, Month: 2, Day: 29}, {Year: 2100, Month: 2, Day: 29}, {Year: 2026}} {
			outside = append(outside, format.Value{ID: d.Least, Period: p})
		}
	} else {
		outside = append(outside, format.Value{ID: d.Least, Period: format.Date{Year: 2026, Month: 1, Day: 1}})
	}
	inside = append(inside, format.Value{ID: d.Least, Period: first}, format.Value{ID: d.Largest, Period: last})
	outside = append(outside, format.Value{ID: -1, Period: first}, format.Value{ID: math.MinInt64, Period: first},
		format.Value{ID: d.Least, Period: first, Parts: timeid.Parts{Sequence: 1}})
	if d.Least > 0 {
		outside = append(outside, format.Value{ID: d.Least - 1, Period: first})
	}
	if d.Largest < math.MaxInt64 {
		outside = append(outside, format.Value{ID: d.Largest + 1, Period: first},
			format.Value{ID: math.MaxInt64, Period: first})
	}
	return inside, outside
}

// TestEnds: every format takes the ends of its domain, and refuses what lies behind them.
func TestEnds(t *testing.T) {
	for _, f := range sampleFormats(t) {
		inside, outside := ends(f)
		for _, v := range inside {
			text, err := f.Append(nil, v)
			if err != nil {
				t.Errorf("%v: %+v: %v", f, v, err)
				continue
			}
			wantText(t, f, v, string(text))
		}
		for _, v := range outside {
			dst := []byte("kept")
			got, err := f.Append(dst, v)
			if invalid := new(format.ValueError); !errors.As(err, &invalid) || invalid.Allowed == "" ||
				string(got) != "kept" || allocator.KindOf(err) != allocator.Invalid {
				t.Errorf("%v: %+v is %q, %v; want a *ValueError that says what is allowed", f, v, got, err)
			}
		}
	}
}

// TestLengths: the shortest and the longest text have the lengths that Length says.
func TestLengths(t *testing.T) {
	for _, f := range sampleFormats(t) {
		least, most := f.Length()
		if least < 1 || most < least || most > 100 {
			t.Errorf("%v: length %d to %d", f, least, most)
		}
	}
	for description, want := range map[string][2]int{
		"radix62(11)":                            {11, 11},
		"decimal":                                {1, 19},
		"prefix(ORD-) | radix62 | suffix(-)":     {6, 16},
		"friendly(cosid, UTC)":                   {21, 27},
		"friendly(cosid, UTC, padded)":           {27, 27},
		"friendly(cosid-second, UTC)":            {18, 27},
		"sortable(36)":                           {17, 17},
		"date(yyMMdd) | decimal(9) | damm":       {17, 17},
		"reverse(10) | decimal":                  {1, 4},
		"date(yyyy) | period(year, 3) | decimal": {6, 8},
	} {
		if least, most := parse(t, description).Length(); [2]int{least, most} != want {
			t.Errorf("%s: length %d to %d, want %v", description, least, most, want)
		}
	}
}

// slowText writes a number by big.Int, whose digits of radix 62 have lower case first.
func slowText(n int64, radix, width int) string {
	text := big.NewInt(n).Text(radix)
	if radix == 36 {
		text = strings.ToUpper(text)
	} else {
		text = strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z':
				return r - 'a' + 'A'
			case r >= 'A' && r <= 'Z':
				return r - 'A' + 'a'
			}
			return r
		}, text)
	}
	if radix == 32 { // digits are 0-9A-V here
		text = strings.Map(func(r rune) rune {
			n := strings.IndexRune("0123456789ABCDEFGHIJKLMNOPQRSTUV", r)
			return rune("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[n])
		}, text)
	}
	return strings.Repeat("0", max(0, width-len(text))) + text
}

// TestNumbers compares the digits with a second implementation.
func TestNumbers(t *testing.T) {
	names := map[int]string{10: "decimal", 32: "crockford", 36: "radix36", 62: "radix62"}
	rapid.Check(t, func(rt *rapid.T) {
		radix := rapid.SampledFrom([]int{10, 32, 36, 62}).Draw(rt, "radix")
		n := rapid.Int64Range(0, math.MaxInt64).Draw(rt, "id")
		description, width := names[radix], 0
		if rapid.Bool().Draw(rt, "padded") {
			width = rapid.IntRange(len(big.NewInt(n).Text(radix)),
				len(big.NewInt(math.MaxInt64).Text(radix))).Draw(rt, "width")
			description += fmt.Sprintf("(%d)", width)
		}
		wantText(t, parse(t, description), id(n), slowText(n, radix, width))
	})
}

// TestOther: texts of other formats, too short, too long or with a wrong character are
// refused, with the place.
func TestOther(t *testing.T) {
	for _, test := range []struct {
		description, text string
		offset            int
	}{
		{"radix62(11)", "", 0},
		{"radix62(11)", "0000000000", 0}, // CosId reads it; a text that lost a character is no ID
		{"radix62(11)", "000000000000", 0},
		{"radix62(11)", "AzL8n0Y58m8", 0}, // 2^63
		{"radix62(11)", "zzzzzzzzzzz", 0},
		{"radix62(11)", "0Ed8W7B-a4e", 7},
		{"radix62(11)", "0Ed8W7Bä4e", 7},
		{"radix36(13)", "01i67ZUPL8Q9S", 2}, // CosId refuses lower case, too
		{"radix36(13)", "1Y2P0IJ32E8E8", 0},
		{"radix62", "01", 0},
		{"radix62", "", 0},
		{"decimal", "-1", 0},
		{"decimal", "9223372036854775808", 0},
		{"decimal", "99999999999999999999999", 0},
		{"decimal", "+1", 0},
		{"decimal", " 1", 0},
		{"decimal", "1\n", 1},
		{"decimal", "１", 0},
		{"prefix(ORD-) | decimal", "ord-1", 0},
		{"prefix(ORD-) | decimal", "PAY-1", 0},
		{"prefix(ORD-) | decimal", "ORD-", 4},
		{"prefix(ORD-) | decimal", "OR", 0},
		{"decimal | suffix(-X)", "1-Y", 1},
		{"decimal | suffix(-X)", "-X", 0},
		{"prefix(AB) | decimal | suffix(BC)", "ABC", 2}, // they may not overlap
		{"decimal(10) | luhn", "79927398714", 10},
		{"decimal(10) | luhn", "79927398173", 10},
		{"decimal | damm", "4", 0},
		{"crockford | crockford-check", "16JE", 3},
		{"crockford(4)", "UUUU", 0},
		{"crockford(4)", "----", 0},
		{"crockford", "-", 0},
		{"date(yyMMdd) | decimal(2)", "261131-05", 0},
		{"date(yyMMdd) | decimal(2)", "26x122-05", 2},
		{"date(yyMMdd) | decimal(2)", "261122_05", 6},
		{"date(yyMMdd) | decimal(2)", "2611", 0},
		{"date(yyyy-MM) | decimal(2)", "2026.11-05", 4},
		{"date(yyMM) | group(yyyy) | decimal(2)", "2611-2025-05", 0},
		{"date(yyMMdd) | period(day, 2) | decimal(3)", "261122-100", 7},
		{"reverse(2) | decimal", "4", 0},
		{"friendly(cosid, UTC)", "20210623131730192-1", 0},
		{"friendly(cosid, UTC)", "20210623131730192-01-0", 18},
		{"friendly(cosid, UTC)", "20210623131730192-1024-0", 0},
		{"friendly(cosid, UTC)", "20210229131730192-1-0", 0},
		{"friendly(cosid, UTC)", "20210623131760192-1-0", 0},
		{"friendly(cosid, UTC)", "20191224155959999-1-0", 0}, // before the epoch
		{"friendly(cosid, UTC)", "20210623131730192-1-0-", 19},
		{"friendly(cosid, UTC)", "2021-1-0", 0},
		{"friendly(cosid, UTC, padded)", "20210623131730192-1-0", 18},
		{"friendly(30/0/0, UTC, epoch=0, unit=10ms)", "19700101000000015-0-0", 0},
		{"sortable(62)", "0Sb8Fduy000100", 0},
		{"sortable(62)", "zzzzzzzz0001000", 0},
		{"sortable(62)", "0Sb8Fduyzzzz000", 0},
		{"sortable(36)", "0Sb8Fduy00001000", 0},
	} {
		v, err := parse(t, test.description).ParseText(test.text)
		var refused *format.TextError
		if !errors.As(err, &refused) || refused.Offset != test.offset || refused.Allowed == "" ||
			allocator.KindOf(err) != allocator.Invalid || v != (format.Value{}) {
			t.Errorf("%s: %q is %+v, %v; want a *TextError at %d", test.description, test.text, v, err, test.offset)
		}
	}
}

// TestCrockford: reading corrects what the definition says, and nothing else.
func TestCrockford(t *testing.T) {
	f := parse(t, "prefix(P-) | crockford(6) | crockford-check")
	want, err := f.Append(nil, id(32*1024+1234))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(want), "P-" + strings.ToLower(string(want[2:])),
		strings.ReplaceAll(string(want[:8]), "0", "O") + string(want[8:]),
		strings.ReplaceAll(string(want[:8]), "1", "l") + string(want[8:]),
		"P-" + string(want[2:5]) + "-" + string(want[5:8]) + "-" + string(want[8:])} {
		if v, err := f.ParseText(text); v != id(32*1024+1234) || err != nil {
			t.Errorf("%q: %+v, %v", text, v, err)
		}
	}
	if v, err := f.ParseText("p-" + string(want[2:])); err == nil {
		t.Errorf("a prefix of another case is read as %+v", v)
	}
}

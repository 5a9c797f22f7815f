package format_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
)

// TestDescriptions: a description is printed back without needless spaces and quotes, and
// the samples as they are.
func TestDescriptions(t *testing.T) {
	for _, description := range samples {
		f := parse(t, description, key(t, "k", 1))
		if f.String() != description && !strings.Contains(description, "^") &&
			!strings.Contains(description, "1000003") {
			t.Errorf("%s is printed as %v", description, f)
		}
		if again := parse(t, f.String(), key(t, "k", 1)); again.String() != f.String() || again.Domain() != f.Domain() {
			t.Errorf("%s is printed as %v, then as %v", description, f, again)
		}
	}
	for description, want := range map[string]string{
		"  prefix( ORD- )|radix62( 11 ) ":                 "prefix(ORD-) | radix62(11)",
		`prefix("ORD-") | decimal`:                        "prefix(ORD-) | decimal",
		`prefix("a(\"\\") | decimal`:                      `prefix("a(\"\\") | decimal`,
		`date(yyMMdd, -) | decimal`:                       "date(yyMMdd) | decimal",
		`date(yyMMdd, "") | decimal`:                      `date(yyMMdd, "") | decimal`,
		"reverse(63) | decimal":                           "reverse | decimal",
		"opaque(k, 1000000) | decimal":                    "opaque(k, 10^6) | decimal",
		"opaque(k, 1048576) | decimal":                    "opaque(k, 2^20) | decimal",
		"opaque(k, 9223372036854775808) | decimal":        "opaque(k, 2^63) | decimal",
		"friendly(cosid, +00:00)":                         "friendly(cosid, UTC)",
		"friendly(cosid, Z, padded, epoch=1577203200000)": "friendly(cosid, UTC, epoch=1577203200000, padded)",
		"friendly(41/10/12, UTC, order=worker-middle, unit=1ms, " +
			"epoch=2019-12-24T16:00:00Z)": "friendly(41/10/12, UTC, epoch=1577203200000)",
	} {
		if f := parse(t, description); f.String() != want {
			t.Errorf("%s is printed as %v, want %s", description, f, want)
		}
	}
}

// TestSyntax: what is wrong in a description is named with its place.
func TestSyntax(t *testing.T) {
	for _, test := range []struct {
		description string // with ^ before the place
		text        string // in the message
	}{
		{"^", "prefix, opaque"},
		{"^radix63(11)", "allowed: date, group, prefix, opaque, period, reverse, crockford, decimal"},
		{"prefix(ORD-) | ^base62", "base62 is no part"},
		{"prefix(ORD-)^", "no part writes the number; allowed at the end: crockford, decimal"},
		{"prefix(ORD-) | ^", "the end in place of a part"},
		{"prefix(ORD-) ^radix62", `"r" after prefix; allowed: |`},
		{"prefix(^", "the end in place of an argument"},
		{"prefix(^) | decimal", "in place of an argument"},
		{"prefix(A^", "the end in the arguments of prefix; allowed: , or )"},
		{"prefix(A ^B) | decimal", "in quotes"},
		{`prefix(^"A`, "quotes that do not end"},
		{`prefix("A\^n") | decimal`, `allowed: " and \`},
		{`prefix(^"") | decimal`, "0 characters; allowed: 1 to 64"},
		{"prefix(^\xc3\xa4) | decimal", "\"\xc3\xa4\" in place of an argument of prefix; allowed: a word, " +
			"or a text in quotes"},
		{"prefix(\"^\xc3\xa4\") | decimal", "\"\xc3\xa4\" in quotes; allowed: printable ASCII"},
		{"decimal^\x00", "printable ASCII"},
		{"prefix(^" + strings.Repeat("x", 65) + ") | decimal", "65 characters"},
		{"^prefix(A, B) | decimal", "prefix has 2 arguments; allowed: prefix(TEXT)"},
		{"^prefix | decimal", "prefix has 0 arguments"},
		{"decimal | ^prefix(A)", "too far right"},
		{"decimal | ^decimal", "too far right"},
		{"decimal | luhn | ^damm", "one too many"},
		{"decimal | suffix(A) | ^luhn", "too far right"},
		{"decimal | suffix(A) | ^suffix(B)", "one too many"},
		{"date(yyMMdd) | ^date(yyMMdd) | decimal", "one too many"},
		{"reverse(9) | ^reverse(9) | decimal", "one too many"},
		{"^luhn | decimal", "luhn stands left of the number"},
		{"^suffix(A) | decimal", "left of the number"},
		{"decimal(^0)", "digits: 0; allowed: 1 to 19"},
		{"decimal(^20)", "allowed: 1 to 19"},
		{"radix62(^12)", "allowed: 1 to 11"},
		{"radix36(^14)", "allowed: 1 to 13"},
		{"crockford(^14)", "allowed: 1 to 13"},
		{"radix62(^011)", "digits: 011"},
		{"radix62(^+1)", "digits: +1"},
		{"radix62(11) | ^luhn", "allowed after: decimal"},
		{"radix62(11) | ^mod37-36", "allowed after: decimal, radix36"},
		{"decimal | ^crockford-check", "allowed after: crockford"},
		{"date(yy) | crockford | ^crockford-check", "with a date or group"},
		{"friendly(cosid, UTC) | ^luhn", "not defined"},
		{"sortable(36) | ^mod37-36", "not defined"},
		{"date(^MMdd) | decimal", "no field of the year"},
		{"date(^yydd) | decimal", "no field of the month"},
		{"date(^yyyyyy) | decimal", "two fields of the year"},
		{"date(^yyMMddHH) | decimal", `"HH" is no field`},
		{"date(^yyDDD) | decimal", "is no field"},
		{"date(^yyyy-MM-dd---) | decimal", "at most 12"},
		{`date(^"") | decimal`, "with a year"},
		{"date(yyMM, ^\"" + strings.Repeat("-", 65) + "\") | decimal", "0 to 64"},
		{"^period(day, 9) | decimal(9)", "no text shows the day; allowed: with a date or group"},
		{"date(yyMM) | ^period(day, 9) | decimal(9)", "texts show the month"},
		{"date(yyMMdd) | ^period(month, 9) | decimal(9)", "texts show the day"},
		{"date(yyMMdd) | period(^week, 9) | decimal", "allowed: day, month, year"},
		{"date(yyMMdd) | period(day, ^11) | decimal", "allowed: 1 to 10"},
		{"date(yyMM) | period(month, ^13) | decimal", "allowed: 1 to 12"},
		{"date(yyMMdd) | reverse(9) | ^period(day, 2) | decimal", "right of a permutation"},
		{"date(yyMMdd) | period(day, 9) | ^decimal(8)",
			"decimal has room for 0 to 99999999, and period makes up to 999999999"},
		{"reverse | ^decimal(12)", "room for 0 to 999999999999"},
		{"reverse | ^opaque(k, 10^12) | decimal", "opaque has room for"},
		{"reverse(^64) | decimal", "allowed: 1 to 63"},
		{"opaque(k, 1000000000000) | ^decimal(11)", "room"},
		{"opaque(^K, 10^12) | decimal", "key K"},
		{"opaque(k, ^999999) | decimal", "allowed: 1000000 to 2^63"},
		{"opaque(k, ^2^64) | decimal", "size 2^64"},
		{"opaque(k, ^10^19) | decimal", "size 10^19"},
		{"opaque(k, ^3^20) | decimal", "10^N or 2^N"},
		{"opaque(k, ^9223372036854775809) | decimal", "2^63"},
		{"opaque(k, ^99999999999999999999) | decimal", "2^63"},
		{"^reverse | friendly(cosid, UTC)", "reverse with friendly"},
		{"^reverse | sortable(62)", "reverse with sortable"},
		{"date(yy) | ^friendly(cosid, UTC)", "with a date or group"},
		{"date(yy) | ^sortable(62)", "with a date or group"},
		{"sortable(^64)", "allowed: 36, 62"},
		{"friendly(^nosuch, UTC)", "allowed: leaf, cosid"},
		{"friendly(^41/10, UTC, epoch=0)", "41/10/12"},
		{"friendly(^41/10/12, UTC)", "without an epoch"},
		{"friendly(^41/10/13, UTC, epoch=0)", "64 together"},
		{"friendly(cosid, ^Asia/Shanghai)", "summer time"},
		{"friendly(cosid, ^+18:01)", "from -18:00 to +18:00"},
		{"friendly(cosid, ^+8:00)", "zone +8:00"},
		{"friendly(cosid, UTC, ^bold)", "allowed: padded"},
		{"friendly(cosid, UTC, padded, ^padded)", "twice"},
		{"friendly(cosid, UTC, ^unit=1s)", "of bits"},
		{"friendly(cosid-string, UTC, ^epoch=0)", "but of cosid-string"},
		{"friendly(cosid, UTC, ^epoch=-1)", "epoch"},
		{"^friendly(1/0/0, +01:00, epoch=253402300799999)", "four digits"},
		{"decimal | suffix(" + strings.Repeat("x", 512-17) + "^x)", "allowed: up to 512"},
	} {
		description := strings.Replace(test.description, "^", "", 1)
		place := strings.Index(test.description, "^")
		f, err := format.Parse(description)
		var wrong *format.SyntaxError
		if !errors.As(err, &wrong) || f != nil || wrong.Offset != place ||
			!strings.Contains(wrong.Problem, test.text) ||
			wrong.Description != description || allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%s: %v, %v; want a *SyntaxError at %d with %q", description, f, err, place, test.text)
		}
	}
}

// TestCaret: the caret stands under the place, also in a long description with bytes that
// are no characters.
func TestCaret(t *testing.T) {
	for description, want := range map[string]string{
		"prefix(ORD-) | base62": "prefix(ORD-) | base62\n               ^",
		"":                      "\n^",
		"decimal | \xff":        "decimal | ?\n          ^",
		"prefix(" + strings.Repeat("x", 64) + ") | x | decimal": "prefix(" + strings.Repeat("x",
			64) + ") | x | decimal",
	} {
		_, err := format.Parse(description)
		var wrong *format.SyntaxError
		if !errors.As(err, &wrong) {
			t.Fatalf("%q: %v", description, err)
		}
		if len(description) > 60 {
			lines := strings.Split(wrong.Caret(), "\n")
			if len(lines) != 2 || lines[0][len(lines[1])-1] != 'x' || !strings.HasSuffix(lines[0], "| x | decimal") {
				t.Errorf("%q:\n%s", description, wrong.Caret())
			}
		} else if wrong.Caret() != want {
			t.Errorf("%q:\n%s\nwant\n%s", description, wrong.Caret(), want)
		}
	}
}

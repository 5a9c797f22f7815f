// Package words reads and writes numbers and durations, and hides the passwords of URLs, the same on a terminal, on a
// page and in files.
package words

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Grouped returns a whole number, of any type, with its digits in groups: "1,000".
func Grouped(n any) string {
	digits := fmt.Sprint(n)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return sign + b.String()
}

// Counted returns a number with what it counts: "1 tag", "1,000 tags".
func Counted(n any, what string) string {
	number := Grouped(n)
	if number != "1" {
		what += "s"
	}
	return number + " " + what
}

// Short returns a duration with one unit, rounded down: "11 min".
func Short(d time.Duration) string {
	switch {
	case d <= 0:
		return "0 s"
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// Lasts returns a long time with one unit, which may be longer than a time.Duration can hold. A tag with periods counts
// anew at the end of the present one, and lasts until then where no time is given; none stands for neither.
func Lasts(p *durationpb.Duration, ends *timestamppb.Timestamp, none string) string {
	const year = 365 * 24 * 3600
	switch s := p.GetSeconds(); {
	case p == nil && ends != nil:
		return "counts anew " + ends.AsTime().Format(time.DateOnly)
	case p == nil:
		return none
	case s >= 10_000*year:
		return "over 10,000 years"
	case s >= 2*year:
		return Counted(s/year, "year")
	}
	return Short(p.AsDuration())
}

// Plain returns a text that a caller chose, for a line of a log or of a table: as it is if all of it can be printed,
// otherwise in quotes, with escapes. It cuts what exceeds so many bytes.
func Plain(text string, most int) string {
	rest := ""
	if len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text, rest = text[:most], "..."
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		text = strconv.Quote(text)
	}
	return text + rest
}

// Whole says which numbers Parse reads.
const Whole = "a whole number up to 9223372036854775807, without leading zeros"

// Parse reads a whole number of so many bits. Leading zeros are refused, as other readers take them for octal.
func Parse(text string, bits int) (int64, error) {
	if digits := strings.TrimLeft(text, "+-"); len(digits) > 1 && digits[0] == '0' {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(text, 10, bits)
}

// userInfo is the user and the password in a URL. Passwords stand in files otherwise, of
// which a setting has only the path. A slash in a password is a mistake, and is hidden too.
var userInfo = regexp.MustCompile(`(//)(?:[^/?#,\s:]*:[^?#,\s]*|[^/?#,\s]*)@`)

// WithoutSecrets returns a text without the users and passwords of its URLs.
func WithoutSecrets(text string) string { return userInfo.ReplaceAllString(text, "${1}hidden@") }

// Masked returns a text with stars in place of the users and passwords of its URLs. It keeps its length.
func Masked(text string) string {
	return userInfo.ReplaceAllStringFunc(text, func(m string) string {
		return "//" + strings.Repeat("*", len(m)-len("//@")) + "@"
	})
}

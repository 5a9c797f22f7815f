package format

import (
	"errors"
	"fmt"
	"strings"

	"github.com/march-id/march/allocator/period"
)

// A unit is how long a period is.
type unit = period.Unit

const (
	noUnit = period.None
	year   = period.Year
	month  = period.Month
	day    = period.Day
)

// pattern writes a date in digits, as Java's DateTimeFormatter does: yyyy or yy, MM, dd,
// and separators. It is a prefix of texts, with a delimiter after it.
type pattern struct {
	text      string // the pattern itself
	delimiter string
	unit      unit // the finest field
	short     bool // yy: 2000 to 2099
}

const patternAllowed = "yyyy or yy, then MM, dd, such as yyMMdd, with one of - . / _ between or nothing"

// parsePattern checks that the fields are there once each, and each with those that it
// needs: dd needs MM, both need a year.
func parsePattern(text string) (pattern, error) {
	p := pattern{text: text}
	seen := map[unit]bool{}
	for rest := text; rest != ""; {
		field, u := "", noUnit
		for _, known := range []struct {
			field string
			unit  unit
		}{{"yyyy", year}, {"yy", year}, {"MM", month}, {"dd", day}} {
			if strings.HasPrefix(rest, known.field) {
				field, u = known.field, known.unit
				break
			}
		}
		switch {
		case u == noUnit && strings.IndexByte("-./_", rest[0]) >= 0:
			rest = rest[1:]
			continue
		case u == noUnit:
			return p, fmt.Errorf("pattern %q: %q is no field", short(text), short(rest))
		case seen[u]:
			return p, fmt.Errorf("pattern %q: two fields of the %v", short(text), u)
		}
		seen[u], p.short, p.unit = true, p.short || field == "yy", max(p.unit, u)
		rest = rest[len(field):]
	}
	for u := year; u <= p.unit; u++ {
		if !seen[u] {
			return p, fmt.Errorf("pattern %q: no field of the %v", short(text), u)
		}
	}
	if p.unit == noUnit || len(text) > maxPattern {
		return p, errors.New("pattern: one with a year and at most 12 characters is needed")
	}
	return p, nil
}

// maxPattern is the most characters that a pattern has.
const maxPattern = 12

// holds reports whether the pattern can write the period that begins with d.
func (p *pattern) holds(d Date) bool {
	return p.unit.Starts(d) && (!p.short || d.Year >= 2000 && d.Year <= 2099)
}

// append writes a date that the pattern holds, without the delimiter.
func (p *pattern) append(dst []byte, d Date) []byte {
	for i := 0; i < len(p.text); {
		switch p.text[i] {
		case 'y':
			if p.short {
				dst = radix10.pad(dst, uint64(d.Year%100), 2)
				i += 2
			} else {
				dst = radix10.pad(dst, uint64(d.Year), 4)
				i += 4
			}
		case 'M':
			dst = radix10.pad(dst, uint64(d.Month), 2)
			i += 2
		case 'd':
			dst = radix10.pad(dst, uint64(d.Day), 2)
			i += 2
		default:
			dst = append(dst, p.text[i])
			i++
		}
	}
	return dst
}

// parse reads a date at the front of text[from:].
func (p *pattern) parse(text string, from int) (Date, error) {
	if len(text)-from < len(p.text) {
		return Date{}, refuse(text, min(from, len(text)), p.text, "the period ends early")
	}
	d := Date{Month: 1, Day: 1}
	for i := 0; i < len(p.text); {
		field := 2
		var into *int
		switch p.text[i] {
		case 'y':
			if into = &d.Year; !p.short {
				field = 4
			}
		case 'M':
			into = &d.Month
		case 'd':
			into = &d.Day
		default:
			if text[from+i] != p.text[i] {
				return Date{}, refuse(text, from+i, p.text, "%s in the period", character(text, from+i))
			}
			i++
			continue
		}
		n, err := number{radix10, field}.parse(text[:from+i+field], from+i, from+i+field)
		if err != nil {
			return Date{}, refuse(text, from+i, p.text, "no digits of the period")
		}
		*into = int(n)
		i += field
	}
	if p.short {
		d.Year += 2000
	}
	if !p.holds(d) {
		return Date{}, refuse(text, from, p.text, "the calendar has no %v", d)
	}
	return d, nil
}

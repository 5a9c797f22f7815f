package format

import (
	"errors"
	"fmt"
	"strings"
)

// unit is how long a period is. The zero value is none.
type unit uint8

const (
	noUnit unit = iota
	year
	month
	day
)

var unitNames = [...]string{noUnit: "none", year: "year", month: "month", day: "day"}

func (u unit) String() string { return unitNames[u] }

// unitNamed returns the unit of a name, or noUnit.
func unitNamed(name string) unit {
	for u := year; u <= day; u++ {
		if unitNames[u] == name {
			return u
		}
	}
	return noUnit
}

// starts reports whether a period of the unit begins with d.
func (u unit) starts(d Date) bool {
	return d.valid() && (u >= day || d.Day == 1) && (u >= month || d.Month == 1)
}

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
	return p.unit.starts(d) && (!p.short || d.Year >= 2000 && d.Year <= 2099)
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
				return Date{}, refuse(text, from+i, p.text, "%q in the period", text[from+i:from+i+1])
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

// period is the step that takes the period out of an ID's high digits:
//
//	ID = period * 10^digits + n
//
// where period is the date in digits: 2026, 202611 or 20261122.
type period struct {
	unit   unit
	digits int
	size   uint64 // 10^digits
}

// maxDigits is the most digits that leave room for the year 9999 in an int64.
var maxDigits = [...]int{year: 14, month: 12, day: 10}

// split returns the period of an ID and its number in the period.
func (p *period) split(id uint64) (d Date, n uint64) {
	high, n := id/p.size, id%p.size
	d = Date{Month: 1, Day: 1}
	if p.unit == day {
		d.Day, high = int(high%100), high/100
	}
	if p.unit >= month {
		d.Month, high = int(high%100), high/100
	}
	d.Year = int(min(high, lastYear+1)) // too large stays too large
	return d, n
}

// join is split's inverse.
func (p *period) join(d Date, n uint64) uint64 {
	high := uint64(d.Year)
	if p.unit >= month {
		high = high*100 + uint64(d.Month)
	}
	if p.unit == day {
		high = high*100 + uint64(d.Day)
	}
	return high*p.size + n
}

package format

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
)

// Value is what a format writes as a text. Which of its fields a format takes, its Domain
// says; the others must be zero, because the text would lose them.
type Value struct {
	ID     int64        // of every format without Parts: 0 to 2^63-1
	Period Date         // the first day of the tag's period, of a format with a date or group part
	Parts  timeid.Parts // of a format of the 80-bit strings: their IDs are no int64
}

// Date is a day of the calendar. The zero value is none.
type Date = period.Date

// DateOf returns the day of a time, in the time's own zone.
func DateOf(t time.Time) Date { return period.DateOf(t) }

// Domain is the set of values that a format takes.
type Domain struct {
	Least, Largest int64 // of Value.ID; both 0 where Parts is true
	// Dates are the first and the last period of which there are texts; zero where the
	// texts have no period.
	Dates [2]Date
	// Period says that Value.Period must be given. Where a format has dates without it, the
	// ID has the period in its high digits.
	Period bool
	// Parts says that the format takes Value.Parts in place of Value.ID.
	Parts bool
}

// String returns the domain for people.
func (d Domain) String() string {
	text := fmt.Sprintf("IDs %d to %d", d.Least, d.Largest)
	if d.Parts {
		text = "time, worker and sequence of " + wideBits
	}
	if d.Dates != [2]Date{} {
		text += fmt.Sprintf(" of periods from %v to %v", d.Dates[0], d.Dates[1])
	}
	return text
}

// maxID is the largest number that a text stands for.
const maxID = math.MaxInt64

// ParseText returns the value of a text. It reads what Append writes and nothing else, but
// for the corrections of Crockford's base 32: lower case, O for 0, I and L for 1, and
// hyphens. Its error is a *TextError; where a key is not there, a *KeyError.
func (f *Format) ParseText(text string) (Value, error) {
	if f.missing != "" {
		return Value{}, &KeyError{f.missing}
	}
	var c covered
	d, from, err := f.readLeft(text, &c)
	if err != nil {
		return Value{}, err
	}
	to := len(text) - len(f.right)
	if to < from || text[to:] != f.right {
		return Value{}, refuse(text, max(from, to), fmt.Sprintf("%q at the end", f.right), "another suffix")
	}
	if f.sortable != nil || f.friendly != nil {
		return f.readParts(text, from, to)
	}
	end := to
	if f.check != noCheck {
		if end = to - 1; end <= from {
			return Value{}, refuse(text, from, f.body.radix.name()+" and its check character", "the text ends early")
		}
	}
	n, err := f.body.parse(text, from, end)
	if err != nil {
		return Value{}, err
	}
	if f.check != noCheck {
		var digits [len(zeros)]byte
		c.add(f.body.append(digits[:0], n))
		if f.check.fold(text[end]) != f.check.of(c.bytes[:c.n], n) {
			return Value{}, refuse(text, end, "the text as it was issued",
				"the check character (%s) does not match: a character is wrong, or two are swapped", f.check.name())
		}
	}
	return f.give(text, from, d, n)
}

// readLeft reads what stands before the number, and returns the period and where the
// number begins.
func (f *Format) readLeft(text string, c *covered) (d Date, at int, err error) {
	var parts [2]Date // one date and one group, at most
	var units [2]unit
	count := 0
	for _, p := range f.left {
		literal := p.literal
		if p.pattern != nil {
			if parts[count], err = p.pattern.parse(text, at); err != nil {
				return d, at, err
			}
			c.digits(text[at : at+len(p.pattern.text)])
			at += len(p.pattern.text)
			units[count], literal = p.pattern.unit, p.pattern.delimiter
			if p.pattern.unit == f.unit {
				d = parts[count]
			}
			count++
		}
		if !strings.HasPrefix(text[at:], literal) {
			return d, at, refuse(text, at, fmt.Sprintf("%q", literal), "another prefix")
		}
		at += len(literal)
	}
	for i := range count {
		if units[i].First(d) != parts[i] {
			return d, at, refuse(text, 0, "one", "two different periods, %v and %v", d, parts[i])
		}
	}
	return d, at, nil
}

// give makes a value of a text's period and number: the permutations backward.
func (f *Format) give(text string, from int, d Date, n uint64) (Value, error) {
	largest := f.body.largest()
	for i := len(f.permutations) - 1; i >= 0 && n <= largest; i-- {
		if largest = f.permutations[i].largest(); n <= largest {
			n = f.permutations[i].backward(n)
		}
	}
	if n > min(largest, f.top) {
		return Value{}, refuse(text, from, "texts of "+f.domain.String(), "a number that no ID has")
	}
	v := Value{ID: int64(n)}
	if f.inID() {
		v.ID = f.period.Join(d, int64(n))
	} else {
		v.Period = d
	}
	return v, nil
}

// readParts reads the text of a time-ordered ID.
func (f *Format) readParts(text string, from, to int) (v Value, err error) {
	var p timeid.Parts
	if f.sortable != nil {
		p, err = f.sortable.parse(text, from, to)
	} else {
		p, err = f.friendly.parse(text, from, to)
	}
	if err != nil {
		return Value{}, err
	}
	if f.domain.Parts {
		v.Parts, err = p, checkWide(p)
	} else {
		v.ID, err = f.friendly.layout.Compose(p)
	}
	if err != nil {
		problem, allowed, _ := strings.Cut(err.Error(), "; allowed: ")
		return Value{}, refuse(text, from, allowed, "%s", problem)
	}
	return v, nil
}

package format

import (
	"fmt"
	"strconv"

	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
)

// Format maps values to texts and back without loss. It does not change, and any number of
// goroutines may use it. The zero value is not valid: Parse makes formats.
type Format struct {
	description string

	left         []piece       // of the text, before the number
	right        string        // after the number and its check
	unit         unit          // of the texts' period
	period       period.Period // where the ID has the period, without a zone; or zero
	permutations []permutation
	body         number    // or
	friendly     *friendly // one of these
	sortable     *sortable
	check        check

	// These follow from the fields above.
	domain      Domain
	top         uint64 // the largest number, of a period if there is one
	least, most int    // length of the texts
	plain       bool   // only literals and a number
	lead        string // all literals of left, where plain
	missing     string // the name of a key
}

// piece is one part left of the number: a literal, or a date.
type piece struct {
	literal string
	pattern *pattern // or nil
}

// complete fills in what follows from the parts.
func (f *Format) complete() {
	f.plain = f.unit == noUnit && len(f.permutations) == 0 && f.friendly == nil &&
		f.sortable == nil && f.check == noCheck
	for _, p := range f.left {
		if p.pattern != nil {
			f.least += len(p.pattern.text) + len(p.pattern.delimiter)
		}
		f.lead += p.literal
	}
	f.least += len(f.lead) + len(f.right)
	if f.check != noCheck {
		f.least++
	}
	f.most = f.least
	f.top = f.body.largest()
	for i := len(f.permutations) - 1; i >= 0; i-- {
		f.top = f.permutations[i].largest()
		if name := f.permutations[i].missing(); name != "" {
			f.missing = name
		}
	}
	f.domain = Domain{Largest: int64(f.top), Period: f.unit != noUnit && !f.inID()}
	if f.unit != noUnit {
		f.domain.Dates = f.dates()
	}
	if f.inID() {
		f.top = uint64(f.period.Size()) - 1
		f.domain.Least, f.domain.Largest = f.period.Join(f.domain.Dates[0], 0),
			f.period.Join(f.domain.Dates[1], int64(f.top))
	}
	switch {
	case f.friendly != nil:
		least, most := f.friendly.length()
		f.least, f.most = f.least+least, f.most+most
		f.domain.Largest, f.domain.Parts = f.friendly.most, f.friendly.wide
	case f.sortable != nil:
		f.least, f.most = f.least+f.sortable.length(), f.most+f.sortable.length()
		f.domain.Largest, f.domain.Parts = 0, true
	case f.body.width > 0:
		f.least, f.most = f.least+f.body.width, f.most+f.body.width
	default:
		largest := f.top
		if len(f.permutations) > 0 {
			largest = f.permutations[len(f.permutations)-1].largest()
		}
		f.least, f.most = f.least+1, f.most+f.body.radix.length(largest)
	}
}

// dates returns the first and the last period that all patterns hold.
func (f *Format) dates() [2]Date {
	first, last := Date{Year: 1, Month: 1, Day: 1}, Date{Year: period.LastYear, Month: 12, Day: 31}
	for _, p := range f.left {
		if p.pattern != nil && p.pattern.short {
			first.Year, last.Year = 2000, 2099
		}
	}
	if f.unit < day {
		last.Day = 1
	}
	if f.unit < month {
		last.Month = 1
	}
	return [2]Date{first, last}
}

// inID reports whether the ID has the period in its high digits.
func (f *Format) inID() bool { return f.period != period.Period{} }

// Period returns the period that IDs have in their high digits, without its zone; zero for
// none.
func (f *Format) Period() period.Period { return f.period }

// String returns the description: of all that mean the same, the one without needless
// spaces and quotes. Parse reads it as the same format.
func (f *Format) String() string { return f.description }

// Key returns the name of the key that the format needs, empty for none.
func (f *Format) Key() string {
	for _, s := range f.permutations {
		if o, is := s.(*opaque); is {
			return o.key
		}
	}
	return ""
}

// Layout returns the layout of the IDs of a format with a friendly part. Of other formats,
// and of the strings of 80 bits, it returns false.
func (f *Format) Layout() (timeid.Layout, bool) {
	if f.friendly == nil || f.friendly.wide {
		return timeid.Layout{}, false
	}
	return f.friendly.layout, true
}

// Domain returns the values that the format takes.
func (f *Format) Domain() Domain { return f.domain }

// Length returns how many characters (all ASCII) the shortest and the longest text has.
// Hyphens that people put into Crockford's numbers do not count.
func (f *Format) Length() (least, most int) { return f.least, f.most }

// Append appends the text of a value, and allocates nothing where dst has room for it. For
// a value outside of the domain it returns dst as it was, and a *ValueError; where a key
// is not there, a *KeyError.
func (f *Format) Append(dst []byte, v Value) ([]byte, error) {
	if f.plain && v.Period == (Date{}) && v.Parts == (timeid.Parts{}) && uint64(v.ID) <= f.top {
		dst = f.body.append(append(dst, f.lead...), uint64(v.ID))
		return append(dst, f.right...), nil
	}
	d, n, err := f.take(v)
	if err != nil {
		return dst, err
	}
	return f.append(dst, v, d, n), nil
}

// take checks a value, and returns its period and the number that the text will have.
func (f *Format) take(v Value) (d Date, n uint64, err error) {
	switch {
	case f.missing != "":
		return d, 0, &KeyError{f.missing}
	case f.domain.Parts && v.ID != 0:
		return d, 0, &ValueError{"id", strconv.FormatInt(v.ID, 10), "none, as the format takes " + f.domain.String()}
	case !f.domain.Parts && v.Parts != timeid.Parts{}:
		return d, 0, &ValueError{"parts", fmt.Sprintf("%+v", v.Parts), "none, as the format takes " + f.domain.String()}
	case !f.domain.Period && v.Period != Date{}:
		return d, 0, &ValueError{"period", v.Period.String(), "none, as the format takes it from the ID or has none"}
	case f.domain.Parts:
		return d, 0, checkWide(v.Parts)
	case v.ID < f.domain.Least || v.ID > f.domain.Largest:
		return d, 0, &ValueError{"id", strconv.FormatInt(v.ID, 10),
			fmt.Sprintf("%d to %d", f.domain.Least, f.domain.Largest)}
	}
	d, n = v.Period, uint64(v.ID)
	if f.inID() {
		var in int64
		d, in = f.period.Split(v.ID)
		n = uint64(in)
	}
	if f.unit != noUnit && !f.holds(d) {
		is := d.String()
		if d == (Date{}) {
			is = "none"
		}
		return d, 0, &ValueError{"period", is, fmt.Sprintf("a day with which a period (%v) begins, from %v to %v",
			f.unit, f.domain.Dates[0], f.domain.Dates[1])}
	}
	for _, s := range f.permutations {
		n = s.forward(n)
	}
	return d, n, nil
}

// holds reports whether d is the start of a period of which there are texts.
func (f *Format) holds(d Date) bool {
	return f.unit.Starts(d) && d.Year >= f.domain.Dates[0].Year && d.Year <= f.domain.Dates[1].Year
}

// append writes a value that take checked.
func (f *Format) append(dst []byte, v Value, d Date, n uint64) []byte {
	var c covered
	for _, p := range f.left {
		if p.pattern == nil {
			dst = append(dst, p.literal...)
			continue
		}
		from := len(dst)
		dst = p.pattern.append(dst, p.pattern.unit.First(d))
		c.digits(string(dst[from:]))
		dst = append(dst, p.pattern.delimiter...)
	}
	switch {
	case f.sortable != nil:
		dst = f.sortable.append(dst, v.Parts)
	case f.friendly != nil && f.friendly.wide:
		dst = f.friendly.append(dst, v.Parts)
	case f.friendly != nil:
		parts, _ := f.friendly.layout.Decompose(int64(n)) // take checked the number
		dst = f.friendly.append(dst, parts)
	default:
		from := len(dst)
		dst = f.body.append(dst, n)
		if f.check != noCheck {
			c.add(dst[from:])
			dst = append(dst, f.check.of(c.bytes[:c.n], n))
		}
	}
	return append(dst, f.right...)
}

// covered is what a check character protects: the digits of dates and of the number.
type covered struct {
	bytes [2*maxPattern + len(zeros)]byte
	n     int
}

func (c *covered) add(text []byte) { c.n += copy(c.bytes[c.n:], text) }

// digits adds a date without its separators.
func (c *covered) digits(date string) {
	for i := range len(date) {
		if date[i] >= '0' && date[i] <= '9' {
			c.bytes[c.n] = date[i]
			c.n++
		}
	}
}

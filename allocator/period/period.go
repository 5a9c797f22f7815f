// Package period divides the IDs of a tag by the calendar: a tag with a period counts anew
// each day, month or year in its time zone.
//
// The period is in the high digits of an ID:
//
//	ID = period * 10^digits + n
//
// where period is the date in digits (2026, 202611 or 20261122) and n counts from 0 to
// 10^digits - 1. So a new period is only a larger base of leases, which is always safe, and
// no ID comes twice whatever clocks say: a clock decides only which period an instance
// thinks it is in.
//
// The package depends on the standard library only.
package period

import (
	"archive/zip"
	_ "embed" // the time zones
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"
)

// Period is how a tag's IDs are divided. The zero value does not divide them. Periods are
// comparable: two are the same where all fields are.
type Period struct {
	Unit   Unit `json:"unit"`
	Digits int  `json:"digits"` // of n, 1 to Unit.MaxDigits
	// an IANA time zone, as the Go release has it; "" where only ID arithmetic is needed
	Zone string `json:"time_zone"`
}

// MaxDigits is the most digits that leave room for the year 9999 in an int64.
func (u Unit) MaxDigits() int { return [...]int{None: 0, Year: 14, Month: 12, Day: 10}[u] }

// Size returns how many IDs a period has: 10^Digits.
func (p Period) Size() int64 {
	size := int64(1)
	for range p.Digits {
		size *= 10
	}
	return size
}

// Validate checks unit, digits and zone.
func (p Period) Validate() error {
	switch {
	case p == (Period{}):
		return nil
	case p.Unit < Year || p.Unit > Day:
		return fmt.Errorf("period: unit %d; allowed: day, month, year", p.Unit)
	case p.Digits < 1 || p.Digits > p.Unit.MaxDigits():
		return fmt.Errorf("period_digits: %d; allowed with a period of a %v: 1 to %d", p.Digits,
			p.Unit, p.Unit.MaxDigits())
	}
	if _, err := location(p.Zone); err != nil {
		return fmt.Errorf("time_zone: %q; allowed: the name of an IANA time zone, such as UTC, "+
			"Asia/Shanghai or Europe/Berlin", p.Zone)
	}
	return nil
}

// zoneinfo are the time zones of the Go release (`make zones`). Hosts have other releases, and zones such as right/UTC
// that others lack: a tag would then have another period in each process.
//
//go:embed zoneinfo.zip
var zoneinfo string

// zones are the time zones that were loaded: a zone never changes while a process runs, and
// there are some hundreds.
var zones sync.Map // by name: *time.Location

func location(name string) (*time.Location, error) {
	if known, ok := zones.Load(name); ok {
		if zone, ok := known.(*time.Location); ok {
			return zone, nil
		}
	}
	all, err := zip.NewReader(strings.NewReader(zoneinfo), int64(len(zoneinfo)))
	if err != nil {
		return nil, err
	}
	data, err := fs.ReadFile(all, name)
	if err != nil {
		return nil, err
	}
	zone, err := time.LoadLocationFromTZData(name, data)
	if err == nil {
		zones.Store(name, zone)
	}
	return zone, err
}

// Split returns the date in the high digits of an ID, which may be none of the calendar,
// and the ID's number within its period.
func (p Period) Split(id int64) (d Date, n int64) {
	size := p.Size()
	high, n := id/size, id%size
	d = Date{Month: 1, Day: 1}
	if p.Unit >= Day {
		d.Day, high = int(high%100), high/100
	}
	if p.Unit >= Month {
		d.Month, high = int(high%100), high/100
	}
	d.Year = int(min(high, LastYear+1)) // too large stays too large
	return d, n
}

// Join is Split's inverse.
func (p Period) Join(d Date, n int64) int64 {
	high := int64(d.Year)
	if p.Unit >= Month {
		high = high*100 + int64(d.Month)
	}
	if p.Unit >= Day {
		high = high*100 + int64(d.Day)
	}
	return high*p.Size() + n
}

// String writes the period as `day, 9 digits, Asia/Shanghai`.
func (p Period) String() string { return fmt.Sprintf("%v, %d digits, %s", p.Unit, p.Digits, p.Zone) }

// Span is one period of a tag.
type Span struct {
	Date         Date      // its first day
	First, End   int64     // its IDs, End exclusive
	Begins, Ends time.Time // Ends exclusive
	unit         Unit
}

// String writes the period in digits and with dashes: 2026, 2026-11 or 2026-11-22.
func (s Span) String() string {
	text := s.Date.String()
	return text[:[...]int{None: 0, Year: 4, Month: 7, Day: 10}[s.unit]]
}

// At returns the period that a time lies in. The Period must be valid, and not zero.
func (p Period) At(t time.Time) Span {
	zone, err := location(p.Zone)
	if err != nil {
		zone = time.UTC // Validate refuses it
	}
	d := DateOf(t.In(zone))
	d.Year = min(max(d.Year, 1), LastYear)
	return p.span(p.Unit.First(d), zone)
}

// Of returns the period of an ID: the first one that has the ID or a larger one. It returns
// false after the last period.
func (p Period) Of(id int64) (Span, bool) {
	zone, err := location(p.Zone)
	if err != nil {
		zone = time.UTC
	}
	d, _ := p.Split(id)
	// The calendar has no such day: the first one after it begins.
	switch {
	case d.Year < 1:
		d = Date{1, 1, 1}
	case d.Month < 1:
		d.Month, d.Day = 1, 1
	case d.Month > 12:
		d = Date{d.Year + 1, 1, 1}
	case d.Day < 1:
		d.Day = 1
	case !d.Valid():
		d = Month.next(Date{d.Year, d.Month, 1})
	}
	if d.Year > LastYear {
		return Span{}, false
	}
	return p.span(d, zone), true
}

func (p Period) span(d Date, zone *time.Location) Span {
	first := p.Join(d, 0)
	return Span{
		Date: d, First: first, End: first + p.Size(), unit: p.Unit,
		Begins: begins(d, zone), Ends: begins(p.Unit.next(d), zone),
	}
}

// begins returns when a day begins in a zone. That is not midnight where the clocks are set
// forward at midnight.
func begins(d Date, zone *time.Location) time.Time {
	at := time.Date(d.Year, time.Month(d.Month), d.Day, 0, 0, 0, 0, zone)
	if DateOf(at) != d {
		_, at = at.ZoneBounds()
	}
	return at
}

// MarshalText implements encoding.TextMarshaler: day, month or year.
func (u Unit) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (u *Unit) UnmarshalText(text []byte) error {
	if *u = ParseUnit(string(text)); *u == None {
		return fmt.Errorf("period: %q; allowed: day, month, year", text)
	}
	return nil
}

// Unit is how long a period is. The zero value is none.
type Unit uint8

// The units, the longest first.
const (
	None Unit = iota
	Year
	Month
	Day
)

var unitNames = [...]string{None: "none", Year: "year", Month: "month", Day: "day"}

func (u Unit) String() string { return unitNames[u] }

// ParseUnit returns the unit of a name, and None for a name that is none's.
func ParseUnit(name string) Unit {
	for u := Year; u <= Day; u++ {
		if unitNames[u] == name {
			return u
		}
	}
	return None
}

// Starts reports whether a period of the unit begins with d.
func (u Unit) Starts(d Date) bool {
	return d.Valid() && (u >= Day || d.Day == 1) && (u >= Month || d.Month == 1)
}

// First returns the first day of the period of d.
func (u Unit) First(d Date) Date {
	if u < Day {
		d.Day = 1
	}
	if u < Month {
		d.Month = 1
	}
	return d
}

// next returns the first day of the period after the one that begins with d.
func (u Unit) next(d Date) Date {
	at := time.Date(d.Year, time.Month(d.Month), d.Day, 12, 0, 0, 0, time.UTC)
	switch u {
	case Year:
		at = at.AddDate(1, 0, 0)
	case Month:
		at = at.AddDate(0, 1, 0)
	default:
		at = at.AddDate(0, 0, 1)
	}
	return DateOf(at)
}

// LastYear is the last year that four digits hold.
const LastYear = 9999

// Date is a day of the calendar. The zero value is none.
type Date struct {
	Year  int // 1 to LastYear
	Month int // 1 to 12
	Day   int // 1 to 31
}

// DateOf returns the day of a time, in the time's own zone.
func DateOf(t time.Time) Date {
	year, month, day := t.Date()
	return Date{Year: year, Month: int(month), Day: day}
}

// String writes the date as 2026-11-22.
func (d Date) String() string { return fmt.Sprintf("%04d-%02d-%02d", d.Year, d.Month, d.Day) }

// Valid reports whether the calendar has the day.
func (d Date) Valid() bool {
	return d.Year >= 1 && d.Year <= LastYear && d.Month >= 1 && d.Month <= 12 && d.Day >= 1 &&
		d.Day <= daysOf(d.Year, d.Month)
}

// daysOf returns how many days a month of the Gregorian calendar has.
func daysOf(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

package format

import (
	"fmt"
	"math"
	"time"

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
type Date struct {
	Year  int // 1 to 9999
	Month int // 1 to 12
	Day   int // 1 to 31
}

// DateOf returns the day of a time, in the time's own zone.
func DateOf(t time.Time) Date {
	year, month, day := t.Date()
	return Date{Year: year, Month: int(month), Day: day}
}

// String returns the date as 2026-11-22.
func (d Date) String() string { return fmt.Sprintf("%04d-%02d-%02d", d.Year, d.Month, d.Day) }

// valid reports whether the calendar has the day.
func (d Date) valid() bool {
	return d.Year >= 1 && d.Year <= lastYear && d.Month >= 1 && d.Month <= 12 && d.Day >= 1 && d.Day <= daysOf(d.Year, d.Month)
}

// lastYear is the last year that four digits hold.
const lastYear = 9999

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

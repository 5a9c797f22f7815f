package period

import (
	"fmt"
	"time"
)

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

package format

import (
	"fmt"
	"math"
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

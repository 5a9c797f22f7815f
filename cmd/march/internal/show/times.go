package show

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// Lasts shows how long something lasts: a long time in one unit, and - for none.
func Lasts(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return Years(d.GetSeconds())
}

// Years shows a long time in one unit.
func Years(seconds int64) string {
	const day, year = 24 * 3600, 365 * 24 * 3600
	switch {
	case seconds >= 10_000*year:
		return "over 10000 years"
	case seconds >= 2*year:
		return fmt.Sprintf("%d years", seconds/year)
	case seconds >= 2*day:
		return fmt.Sprintf("%d days", seconds/day)
	}
	return (time.Duration(seconds) * time.Second).String()
}

// Duration shows a short time, and - for none.
func Duration(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	if d.AsDuration() >= time.Second {
		return d.AsDuration().Round(time.Second).String()
	}
	return d.AsDuration().Round(10 * time.Microsecond).String()
}

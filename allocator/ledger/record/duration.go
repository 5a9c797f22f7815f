package record

import (
	"cmp"
	"time"
)

// Duration is a length of time as it is stored: "10m0s", say. Empty is zero.
type Duration string

// DurationOf returns d as it is stored.
func DurationOf(d time.Duration) Duration { return Duration(d.String()) }

// Duration returns the length of time of a valid value.
func (d Duration) Duration() time.Duration {
	length, _ := time.ParseDuration(string(cmp.Or(d, "0s"))) // Validate of the enclosing value has parsed d
	return length
}

// MarshalText writes an empty duration as zero.
func (d Duration) MarshalText() ([]byte, error) { return []byte(cmp.Or(d, "0s")), nil }

func (d Duration) validate() error {
	_, err := time.ParseDuration(string(cmp.Or(d, "0s")))
	return err
}

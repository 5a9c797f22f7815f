package record

import (
	"encoding/hex"
	"fmt"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/period"
)

// checkDigits is the length of a key's check value.
const checkDigits = 16

// CheckFormat checks that the tag's format can write each of the tag's IDs. It is called when a
// tag is created or its limit changes, and not when a tag is read: a format with a part of a
// later release is no damage. Its error is Invalid.
func (s TagSettings) CheckFormat() error {
	if s.Format == "" && s.Time != nil && s.Time.Wide() {
		return allocator.Errorf(allocator.Invalid,
			"format: none; allowed for IDs of 80 bits, which exist only as texts: formats with sortable, "+
				"or friendly(cosid-string, ZONE)")
	}
	if s.Format == "" {
		if s.KeyCheck != "" {
			return allocator.Errorf(allocator.Invalid,
				"key_check: %q; allowed: none, as the tag has no opaque format", s.KeyCheck)
		}
		return nil
	}
	f, err := format.Parse(s.Format)
	if err != nil {
		return err
	}
	switch d := f.Domain(); {
	case d.Parts && s.Time != nil && s.Time.Wide():
		return s.checkKey(f)
	case s.Time != nil && s.Time.Wide():
		return allocator.Errorf(allocator.Invalid,
			"format: %v writes %v; allowed for IDs of 80 bits: formats with sortable, "+
				"or friendly(cosid-string, ZONE)", f, d)
	case d.Parts:
		return allocator.Errorf(allocator.Invalid, "format: %v writes %v; allowed: formats of 64-bit IDs", f, d)
	case d.Period:
		return allocator.Errorf(allocator.Invalid,
			"format: %v has the date of a period; allowed: with the part period(day|month|year, DIGITS), "+
				"which takes it from the ID", f)
	case f.Period() != s.withoutZone() && f.Period() != period.Period{}:
		return allocator.Errorf(allocator.Invalid,
			"format: %v has period(%v, %d); allowed: the period of the tag, which has %s", f, f.Period().Unit,
			f.Period().Digits, s.periodPart())
	}
	if err := s.checkKey(f); err != nil {
		return err
	}
	layout, friendly := f.Layout()
	d := f.Domain()
	switch {
	case s.Time == nil && friendly:
		return allocator.Errorf(allocator.Invalid,
			"format: %v is of time-ordered IDs; allowed for a counter: formats without friendly", f)
	case s.Time == nil && s.Start < d.Least:
		return allocator.Errorf(allocator.Invalid, "start: %d; allowed with the format %v: %d to %d",
			s.Start, f, d.Least, d.Largest)
	case s.Time == nil && f.Key() != "" && s.Limit != FormatLimit(f):
		return allocator.Errorf(allocator.Invalid,
			"limit: %d; allowed with the format %v: %d, the size of its opaque numbers", s.Limit, f, FormatLimit(f))
	case s.Time == nil && s.Limit-1 > d.Largest:
		return allocator.Errorf(allocator.Invalid, "limit: %d; allowed with the format %v: %d to %d", s.Limit,
			f, s.Start+1, FormatLimit(f))
	case s.Time != nil && friendly && layout != s.Time.Layout():
		return allocator.Errorf(allocator.Invalid,
			"format: %v is of another layout than the tag's; allowed: friendly with the tag's preset, or its bits, "+
				"epoch, unit and order", f)
	case s.Time != nil && !friendly && s.Time.Layout().Largest() > d.Largest:
		return allocator.Errorf(allocator.Invalid,
			"format: %v writes IDs up to %d; allowed: one that writes all of the tag's, up to %d", f,
			d.Largest, s.Time.Layout().Largest())
	}
	return nil
}

// withoutZone returns the tag's period in the terms of a format.
func (s TagSettings) withoutZone() period.Period {
	return period.Period{Unit: s.Period.Unit, Digits: s.Period.Digits}
}

// periodPart returns the part of a format for the tag's period.
func (s TagSettings) periodPart() string {
	if s.Period == (period.Period{}) {
		return "none"
	}
	return fmt.Sprintf("period(%v, %d)", s.Period.Unit, s.Period.Digits)
}

// FormatLimit returns the largest limit of a counter that a format can write.
func FormatLimit(f *format.Format) int64 {
	return min(f.Domain().Largest, allocator.MaxID-1) + 1
}

// checkKey checks that the check value is set if the format needs a key.
func (s TagSettings) checkKey(f *format.Format) error {
	switch raw, err := hex.DecodeString(s.KeyCheck); {
	case f.Key() == "" && s.KeyCheck != "":
		return allocator.Errorf(allocator.Invalid,
			"key_check: %q; allowed: none, as the format %v needs no key", s.KeyCheck, f)
	case f.Key() == "":
	case s.KeyCheck == "":
		return allocator.Errorf(allocator.Invalid, "key_check: none given; needed with the format %v: "+
			"the check value of key %s, as `march key create` and `march key check` print it", f, f.Key())
	case err != nil || len(s.KeyCheck) != checkDigits || hex.EncodeToString(raw) != s.KeyCheck:
		return allocator.Errorf(allocator.Invalid, "key_check: %q; allowed: %d hexadecimal digits in lower case, "+
			"as `march key create` and `march key check` print them", s.KeyCheck, checkDigits)
	}
	return nil
}

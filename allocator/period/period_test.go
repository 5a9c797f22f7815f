package period_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator/period"
)

func TestAt(t *testing.T) {
	for _, test := range []struct {
		p           period.Period
		at          string
		first       int64
		begins, end string
		name        string
	}{
		{period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}, "2026-11-22T23:59:59Z", 20261122_000000000,
			"2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-22"},
		{period.Period{Unit: period.Day, Digits: 9, Zone: "Asia/Shanghai"}, "2026-11-22T16:00:00Z", 20261123_000000000,
			"2026-11-23T00:00:00+08:00", "2026-11-24T00:00:00+08:00", "2026-11-23"},
		{period.Period{Unit: period.Month, Digits: 12, Zone: "UTC"}, "2026-12-31T12:00:00Z", 202612_000000000000,
			"2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z", "2026-12"},
		{period.Period{Unit: period.Year, Digits: 14, Zone: "UTC"}, "2026-02-28T12:00:00Z", 2026_00000000000000,
			"2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "2026"},
		// A day of 23 hours, one of 25, and one that begins at one o'clock.
		{period.Period{Unit: period.Day, Digits: 1, Zone: "Europe/Berlin"}, "2026-03-29T12:00:00Z", 202603290,
			"2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", "2026-03-29"},
		{period.Period{Unit: period.Day, Digits: 1, Zone: "Europe/Berlin"}, "2026-10-25T00:30:00Z", 202610250,
			"2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00", "2026-10-25"},
		{period.Period{Unit: period.Day, Digits: 1, Zone: "America/Sao_Paulo"}, "2018-11-04T12:00:00Z", 201811040,
			"2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00", "2018-11-04"},
		{period.Period{Unit: period.Day, Digits: 10, Zone: "UTC"}, "9999-12-31T12:00:00Z", 99991231_0000000000,
			"9999-12-31T00:00:00Z", "10000-01-01T00:00:00Z", "9999-12-31"},
	} {
		if err := test.p.Validate(); err != nil {
			t.Errorf("%+v: %v", test.p, err)
		}
		at, err := time.Parse(time.RFC3339, test.at)
		if err != nil {
			t.Fatal(err)
		}
		s := test.p.At(at)
		if s.First != test.first || s.End != test.first+test.p.Size() || s.String() != test.name ||
			s.Begins.Format(time.RFC3339) != test.begins || s.Ends.Format(time.RFC3339) != test.end {
			t.Errorf("%+v at %s: %v from %d to %d, %v to %v", test.p, test.at, s, s.First, s.End, s.Begins, s.Ends)
		}
		for _, id := range []int64{s.First, s.First + 1, s.End - 1} {
			if of, ok := test.p.Of(id); !ok || of != s {
				t.Errorf("%+v: ID %d is of %v", test.p, id, of)
			}
		}
	}
}

// Each instant lies in one period, and periods follow each other without a gap.
func TestPeriodsFollowEachOther(t *testing.T) {
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Shanghai", "Asia/Beirut",
		"Pacific/Apia", "Australia/Lord_Howe"} {
		for unit := period.Year; unit <= period.Day; unit++ {
			p := period.Period{Unit: unit, Digits: 3, Zone: zone}
			at := time.Date(2010, 1, 1, 12, 0, 0, 0, time.UTC)
			for last := p.At(at); last.Ends.Year() < 2030; {
				next := p.At(last.Ends)
				if zone == "Pacific/Apia" && unit == period.Day && last.String() == "2011-12-29" {
					// Samoa went over the 30th, so that day has no instant.
					if next.String() != "2011-12-31" {
						t.Errorf("%v follows %v", next, last)
					}
				} else if !next.Begins.Equal(last.Ends) || next.First < last.End {
					t.Fatalf("%s: %v from %v follows %v to %v", zone, next, next.Begins, last, last.Ends)
				}
				if before := p.At(last.Ends.Add(-1)); before != last {
					t.Fatalf("%s: %v lies in %v, not in %v", zone, last.Ends.Add(-1), before, last)
				}
				last = next
			}
		}
	}
}

// IDs of days that no calendar has are of the next period.
func TestOf(t *testing.T) {
	day := period.Period{Unit: period.Day, Digits: 2, Zone: "UTC"}
	month := period.Period{Unit: period.Month, Digits: 2, Zone: "UTC"}
	for _, test := range []struct {
		p    period.Period
		id   int64
		want int64
	}{
		{day, 0, 1_01_01_00}, {day, 2026_02_29_00, 2026_03_01_00}, {day, 2026_02_28_99, 2026_02_28_00},
		{day, 2026_02_00_07, 2026_02_01_00},
		{day, 2026_13_07_00, 2027_01_01_00}, {day, 2026_00_31_00, 2026_01_01_00}, {day, 2026_12_32_99, 2027_01_01_00},
		{month, 2026_13_00, 2027_01_00}, {month, 2026_00_99, 2026_01_00},
	} {
		if s, ok := test.p.Of(test.id); !ok || s.First != test.want {
			t.Errorf("ID %d is of %v from %d, want %d", test.id, s, s.First, test.want)
		}
	}
	for _, id := range []int64{9999_12_32_00, 10000_01_01_00, math.MaxInt64} {
		if s, ok := day.Of(id); ok {
			t.Errorf("ID %d is of %v", id, s)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, p := range []period.Period{
		{Unit: period.Day, Digits: 0, Zone: "UTC"}, {Unit: period.Day, Digits: 11, Zone: "UTC"},
		{Unit: period.Year, Digits: 15, Zone: "UTC"},
		{Unit: period.Day, Digits: 9}, {Unit: period.Day, Digits: 9, Zone: "Local"},
		{Unit: period.Day, Digits: 9, Zone: "Mars/Olympus"}, {Digits: 9},
		{Unit: period.Day, Digits: 9, Zone: "right/UTC"}, {Unit: period.Day, Digits: 9, Zone: "../zoneinfo/UTC"},
		{Unit: period.Day + 1, Digits: 9, Zone: "UTC"},
	} {
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "allowed") {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if err := (period.Period{}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestZonesOfTheHost: zones that only a host has count for nothing, as other hosts lack them.
func TestZonesOfTheHost(t *testing.T) {
	host := t.TempDir()
	const fixed = "TZif\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + // no version
		"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x04" + // counts
		"\x00\x00\x0e\x10\x00\x00UTX\x00" // one hour ahead
	if err := os.WriteFile(filepath.Join(host, "Mars"), []byte(fixed), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ZONEINFO", host)
	if _, err := time.LoadLocation("Mars"); err != nil {
		t.Fatalf("the host lacks its zone: %v", err)
	}
	if err := (period.Period{Unit: period.Day, Digits: 9, Zone: "Mars"}).Validate(); err == nil {
		t.Error("a zone of one host is allowed")
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(uint8(3), uint8(9), int64(20261122_000000001))
	f.Fuzz(func(t *testing.T, unit, digits uint8, id int64) {
		p := period.Period{Unit: period.Unit(unit%3 + 1), Zone: "UTC"}
		p.Digits = int(digits)%p.Unit.MaxDigits() + 1
		id &= math.MaxInt64
		if d, n := p.Split(id); d.Year <= period.LastYear && p.Join(d, n) != id {
			t.Errorf("%+v: %d is %v and %d, which are %d", p, id, d, n, p.Join(d, n))
		}
		if s, ok := p.Of(id); ok && (s.End <= id || s.First%p.Size() != 0 || !p.Unit.Starts(s.Date)) {
			t.Errorf("%+v: %d is of %v, up to %d", p, id, s, s.End)
		}
	})
}

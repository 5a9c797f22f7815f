package format_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
)

// roundTrip wants that a format either refuses a value with a typed error, or writes a
// text that it reads as the same value.
func roundTrip(t *testing.T, f *format.Format, v format.Value) {
	t.Helper()
	text, err := f.Append([]byte("kept "), v)
	if err != nil {
		if !errors.As(err, new(*format.ValueError)) || string(text) != "kept " {
			t.Fatalf("%v: %+v: %q, %v", f, v, text, err)
		}
		return
	}
	wantText(t, f, v, strings.TrimPrefix(string(text), "kept "))
}

// FuzzValue: every format takes each value of its domain there and back, and refuses each
// other one.
func FuzzValue(f *testing.F) {
	f.Add(0, int64(1), 2026, 11, 22, int64(0), int64(0), int64(0), false)
	f.Add(30, int64(20261122_0000000005), 0, 0, 0, int64(0), int64(0), int64(0), false)
	f.Add(50, int64(0), 0, 0, 0, int64(1624425450192), int64(1), int64(0), true)
	all := sampleFormats(f)
	f.Fuzz(func(t *testing.T, which int, n int64, year, month, day int, time, worker, sequence int64, fit bool) {
		chosen := all[uint(which)%uint(len(all))]
		v := format.Value{ID: n, Period: format.Date{Year: year, Month: month, Day: day},
			Parts: timeid.Parts{Time: time, Worker: worker, Sequence: sequence}}
		if fit { // most random values are outside of the domain
			v = fitted(chosen.Domain(), v)
		}
		roundTrip(t, chosen, v)
	})
}

// fitted moves a value toward a domain.
func fitted(d format.Domain, v format.Value) format.Value {
	if d.Parts {
		return parts(v.Parts.Time&(1<<44-1), v.Parts.Worker&(1<<20-1), v.Parts.Sequence&(1<<16-1))
	}
	v.Parts = timeid.Parts{}
	if !d.Period {
		v.Period = format.Date{}
	} else {
		v.Period.Year = 2000 + int(uint(v.Period.Year)%100)
		v.Period.Month = 1 + int(uint(v.Period.Month)%12)
		v.Period.Day = 1 + int(uint(v.Period.Day)%28)
	}
	v.ID = d.Least + int64(uint64(v.ID)%(uint64(d.Largest-d.Least)+1))
	return v
}

// FuzzText: what a format reads, it writes as the same text; of Crockford's corrections as
// a text that it reads as the same value.
func FuzzText(f *testing.F) {
	all := sampleFormats(f)
	for i, sample := range all {
		inside, _ := ends(sample)
		for _, v := range inside {
			text, err := sample.Append(nil, v)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(i, string(text))
			f.Add(i+1, string(text)) // a text of another format
		}
	}
	f.Fuzz(func(t *testing.T, which int, text string) {
		chosen := all[uint(which)%uint(len(all))]
		v, err := chosen.ParseText(text)
		if err != nil {
			if wrong := new(format.TextError); !errors.As(err, &wrong) || wrong.Offset < 0 ||
				wrong.Offset > len(text) || v != (format.Value{}) {
				t.Fatalf("%v: %q: %+v, %v", chosen, text, v, err)
			}
			return
		}
		back, err := chosen.Append(nil, v)
		if err != nil {
			t.Fatalf("%v: %q is read as %+v, which is refused: %v", chosen, text, v, err)
		}
		if string(back) == text {
			return
		}
		again, err := chosen.ParseText(string(back))
		if err != nil || again != v || !strings.Contains(chosen.String(), "crockford") {
			t.Fatalf("%v: %q is read as %+v, written as %q, read as %+v, %v", chosen, text, v, back, again, err)
		}
	})
}

// FuzzDescription: a description is refused with its place, or describes a format that is
// printed in one way and takes values there and back.
func FuzzDescription(f *testing.F) {
	for _, description := range samples {
		f.Add(description, int64(1))
	}
	f.Add(`prefix("a\\") | base62`, int64(math.MaxInt64))
	k := key(f, "k", 1)
	f.Fuzz(func(t *testing.T, description string, n int64) {
		parsed, err := format.Parse(description, k)
		if err != nil {
			wrong := new(format.SyntaxError)
			if !errors.As(err, &wrong) || wrong.Offset < 0 || wrong.Offset > len(description) ||
				wrong.Problem == "" || wrong.Caret() == "" {
				t.Fatalf("%q: %v", description, err)
			}
			return
		}
		again, err := format.Parse(parsed.String(), k)
		if err != nil || again.String() != parsed.String() || again.Domain() != parsed.Domain() {
			t.Fatalf("%q is printed as %q, and that as %v, %v", description, parsed, again, err)
		}
		if _, err := parsed.Append(nil, format.Value{}); errors.As(err, new(*format.KeyError)) {
			return
		}
		inside, outside := ends(parsed)
		for _, v := range append(inside, fitted(parsed.Domain(), id(n))) {
			roundTrip(t, parsed, v)
		}
		for _, v := range inside {
			if _, err := parsed.Append(nil, v); err != nil {
				t.Fatalf("%v: %+v: %v", parsed, v, err)
			}
		}
		for _, v := range outside {
			if text, err := parsed.Append(nil, v); err == nil {
				t.Fatalf("%v: %+v is %s, outside of the domain", parsed, v, text)
			}
		}
	})
}

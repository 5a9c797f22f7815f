package format_test

import (
	"math/rand/v2"
	"testing"

	"github.com/march-id/march/allocator/format"
)

// TestISO7064 holds mod 37,36 to a published Global Release Identifier, A1-2425G-ABC1234002-M.
// No number is as long.
func TestISO7064(t *testing.T) {
	if got := format.Mod37("A12425GABC1234002"); got != 'M' {
		t.Errorf("the check character is %c, want M", got)
	}
}

// TestChecksFind: each check refuses every text with one character wrong, and with two
// neighbours swapped as often as its definition says.
func TestChecksFind(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct {
		description, alphabet string
		missed                float64 // of swapped neighbours, at most
	}{
		{"decimal(12) | luhn", "0123456789", 0.025}, // 09 and 90: 2 of 90 pairs
		{"decimal(12) | damm", "0123456789", 0},
		{"date(yyMMdd) | decimal(9) | damm", "0123456789", 0},
		{"date(yyMMdd) | decimal(9) | luhn", "0123456789", 0.025},
		{"radix36(10) | mod37-36", "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", 0.03},
		{"crockford(10) | crockford-check", "0123456789ABCDEFGHJKMNPQRSTVWXYZ*~$=U", 0},
	} {
		f := parse(t, test.description)
		swaps, missed := 0, 0
		for range 300 {
			v := format.Value{ID: random.Int64N(f.Domain().Largest + 1)}
			if f.Domain().Period {
				v.Period = format.Date{Year: 2000 + random.IntN(100), Month: 1 + random.IntN(12),
					Day: 1 + random.IntN(28)}
			}
			text, err := f.Append(nil, v)
			if err != nil {
				t.Fatal(err)
			}
			for i := range text {
				right := text[i]
				for _, wrong := range []byte(test.alphabet) {
					if text[i] = wrong; wrong == right {
						continue
					}
					if got, err := f.ParseText(string(text)); err == nil {
						t.Fatalf("%v: %s (wrong at %d) is read as %+v", f, text, i, got)
					}
				}
				text[i] = right
				if i == 0 || text[i-1] == right {
					continue
				}
				text[i-1], text[i] = text[i], text[i-1]
				swaps++
				if _, err := f.ParseText(string(text)); err == nil {
					missed++
				}
				text[i-1], text[i] = text[i], text[i-1]
			}
		}
		if float64(missed) > test.missed*float64(swaps) {
			t.Errorf("%v: %d of %d swapped neighbours were not found", f, missed, swaps)
		}
	}
}

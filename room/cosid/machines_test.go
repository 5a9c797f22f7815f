package cosid

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/machine"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"PT5M": 5 * time.Minute, "PT1H30M0.5S": 90*time.Minute + 500*time.Millisecond, "P1D": 24 * time.Hour,
		"P2DT1S": 48*time.Hour + time.Second,
		"pt1s":   time.Second, "PT0S": 0, "PT2562047788015H12M55.807S": machine.Forever,
		"P99999999999D": machine.Forever,
	} {
		if got, ok := parseDuration(text); !ok || got != want {
			t.Errorf("%s: %v, %v; want %v", text, got, ok, want)
		}
	}
	for _, bad := range []string{
		"", "P", "PT", "P1", "PT1", "5M", "PTM", "PT1M1H", "PT1M1M", "P1DT", "PT-5M", "-PT5M", "PT+5M", "PT1.5H",
		"PT1e9S", "PTnanS", "PTinfS", "PT0x1S", "PT1_0S",
		"P1Y", "P1W", "PT1S ", "PT1S1", "PT99999999999999999999999999999999999999S",
	} {
		if got, ok := parseDuration(bad); ok {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	f.Add("PT2562047788015H12M55.807S")
	f.Add("P1DT2H3M4.5S")
	f.Fuzz(func(t *testing.T, text string) {
		if d, ok := parseDuration(text); d < 0 || !ok && d != 0 {
			t.Errorf("%q is %v", text, d)
		}
	})
}

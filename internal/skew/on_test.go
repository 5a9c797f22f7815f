//go:build chaos

package skew

import (
	"path/filepath"
	"testing"
	"time"
)

// A process goes by the clock in its file, and by another one soon after that is written.
func TestNowFollowsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clock")
	t.Setenv(Variable, path)
	now := Now()
	reads := func(want time.Duration) {
		t.Helper()
		time.Sleep(2 * readEvery)
		if off := time.Until(now()); off < want-time.Minute || off > want+time.Minute {
			t.Errorf("the clock is off by %v, want %v", off, want)
		}
	}
	reads(0)
	if err := (Clock{Ahead: time.Hour}).Write(path); err != nil {
		t.Fatal(err)
	}
	reads(time.Hour)
	if err := (Clock{}).Write(path); err != nil {
		t.Fatal(err)
	}
	reads(0)
}

func TestNowIsTheComputers(t *testing.T) {
	t.Setenv(Variable, "")
	if Now() != nil {
		t.Error("a process without a file has a clock of its own")
	}
}

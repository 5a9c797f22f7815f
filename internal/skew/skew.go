// Package skew gives a process a wrong clock, so that a test can show what time-ordered
// IDs it issues then. Only binaries that are built with the tag chaos have such clocks. In
// all others Now returns nil, for the computer's clock.
//
// The environment variable MARCH_CLOCK=FILE names a file with a Clock, which another
// process writes, and changes while this one runs. As long as the file does not exist the
// clock is right.
package skew

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"time"
)

// Variable is the environment variable that names the file.
const Variable = "MARCH_CLOCK"

// Clock is a clock that may be wrong. The zero value is right.
type Clock struct {
	// Since is when Rate begins to count.
	Since time.Time `json:"since"`
	// Ahead is how far the clock is ahead at Since, negative for behind.
	Ahead time.Duration `json:"ahead"`
	// Gains is what the clock gains in each second after Since: -1s has it stand still,
	// and 1s has it run at double speed.
	Gains time.Duration `json:"gains"`
	// Jumps is how far each look at the clock may be off, both ways.
	Jumps time.Duration `json:"jumps"`
}

// At returns what the clock shows at a time.
func (c Clock) At(now time.Time) time.Time {
	now = now.Round(0) // a wrong clock has nothing monotonic
	shown := now.Add(c.Ahead + time.Duration(now.Sub(c.Since).Seconds()*float64(c.Gains)))
	if c.Jumps > 0 {
		shown = shown.Add(rand.N(2*c.Jumps) - c.Jumps)
	}
	return shown
}

// Write has the processes with the file path go by the clock.
func (c Clock) Write(path string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	// A process never reads half of it.
	if err := os.WriteFile(path+".new", text, 0o640); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

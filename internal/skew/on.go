//go:build chaos

package skew

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Now returns the process's clock, nil for the computer's.
func Now() func() time.Time {
	path := os.Getenv(Variable)
	if path == "" {
		return nil
	}
	f := &follower{path: path}
	return f.now
}

// readEvery is how soon a process notices another clock.
const readEvery = 5 * time.Millisecond

// follower goes by the clock in a file.
type follower struct {
	path string
	mu   struct {
		sync.Mutex
		clock Clock
		read  time.Time
	}
}

func (f *follower) now() time.Time {
	now := time.Now()
	f.mu.Lock()
	if now.Sub(f.mu.read) >= readEvery {
		f.mu.clock, f.mu.read = f.load(), now
	}
	clock := f.mu.clock
	f.mu.Unlock()
	return clock.At(now)
}

// load reads the file. A process whose clock cannot be read shows nothing, so it ends.
func (f *follower) load() (c Clock) {
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Variable, err)
		os.Exit(2)
	}
	return c
}

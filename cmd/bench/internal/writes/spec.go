package writes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Spec describes a simulation. Each time is a whole number of seconds.
type Spec struct {
	Rooms     int // 2 to 64, with equal ranges
	Instances int // in all, spread over the rooms as evenly as possible; Rooms or more
	Tags      int // each used in every room, by one instance of it; 1 or more
	// Rate is how many IDs per second callers take of a tag in a room, evenly. So no chain
	// leases more at once than this rate needs, and refills are as frequent as they can be. A
	// multiple of 5.
	Rate int64
	// Reserve is the reserve of the tags; 0 for the default.
	Reserve time.Duration

	Spread time.Duration // callers begin within it, after a minute in which instances start
	Settle time.Duration // nothing is counted then
	Count  time.Duration // how long writes are counted
	Move   time.Duration // how long writes are counted after a move; 0 for no move
}

// Validate checks the bounds above.
func (s Spec) Validate() error {
	var errs []error
	check := func(ok bool, what string, is any, allowed string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %v; allowed: %s", what, is, allowed))
		}
	}
	check(s.Rooms >= 2 && s.Rooms <= 64, "rooms", s.Rooms, "2 to 64")
	check(s.Instances >= s.Rooms, "instances", s.Instances, "as many as rooms, or more")
	check(s.Tags >= 1, "tags", s.Tags, "1 or more")
	check(s.Rate > 0 && s.Rate%callsPerSecond == 0, "rate", s.Rate, fmt.Sprintf("a multiple of %d", callsPerSecond))
	for name, d := range map[string]time.Duration{"reserve": s.Reserve, "settle": s.Settle, "move": s.Move} {
		check(d >= 0 && d%time.Second == 0, name, d, "whole seconds, 0 or more")
	}
	for name, d := range map[string]time.Duration{"spread": s.Spread, "count": s.Count} {
		check(d > 0 && d%time.Second == 0, name, d, "whole seconds, 1 or more")
	}
	return errors.Join(errs...)
}

// callsPerSecond is how often a caller asks for a tag in a room.
const callsPerSecond = 5

// Pairs returns how many (tag, room) pairs are in use.
func (s Spec) Pairs() int { return s.Rooms * s.Tags }

// Outcome is the result of a simulation.
type Outcome struct {
	Series Series // from the first second on
	Steady int    // the first counted second; Spec.Count later the layout moves
}

// Simulation is the program that simulates.
type Simulation struct{ dir string }

// Build builds the simulation, which needs the Go command and the source code. The
// caller closes it.
func Build(ctx context.Context) (*Simulation, error) {
	dir, err := os.MkdirTemp("", "march-writes-")
	if err != nil {
		return nil, err
	}
	s := &Simulation{dir}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", s.program(), "github.com/march-id/march/cmd/bench/internal/writes") //nolint:gosec // this package
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the simulation: %w: %s", err, said), s.Close())
	}
	return s, nil
}

func (s *Simulation) program() string { return filepath.Join(s.dir, "writes.test") }

// Close removes the program.
func (s *Simulation) Close() error { return os.RemoveAll(s.dir) }

// Run simulates. Its error is that of Validate, or reports what the simulation found wrong.
func (s *Simulation) Run(ctx context.Context, spec Spec) (o Outcome, err error) {
	if err := spec.Validate(); err != nil {
		return o, err
	}
	what, err := json.Marshal(spec)
	if err != nil {
		return o, err
	}
	file, err := os.CreateTemp(s.dir, "outcome-")
	if err != nil {
		return o, err
	}
	defer func() { _ = file.Close() }()
	cmd := exec.CommandContext(ctx, s.program(), "-test.run=^TestSpec$", "-test.timeout=30m", "-spec", string(what), "-outcome", file.Name()) //nolint:gosec // just built
	// A run needs a few hundred megabytes and a lot of time.
	cmd.Env = append(os.Environ(), "GOGC=300")
	if said, err := cmd.CombinedOutput(); err != nil {
		return o, fmt.Errorf("simulation: %w: %s", err, said)
	}
	err = json.NewDecoder(file).Decode(&o)
	return o, err
}

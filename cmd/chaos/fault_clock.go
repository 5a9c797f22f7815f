package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/internal/skew"
)

// clockFaults make an instance lease windows and issue time-ordered IDs by a wrong clock.
func clockFaults() []fault {
	return []fault{
		{"clock ahead", "an instance's clock is an hour ahead", wrongClock(skew.Clock{Ahead: time.Hour})},
		{"clock ahead with consent", "an instance starts with a clock that is an hour ahead, " +
			"and with an operator's consent", clockAgreed},
		{"clock back", "an instance's clock goes an hour back", wrongClock(skew.Clock{Ahead: -time.Hour})},
		{"clock a little back", "an instance's clock goes a second back", wrongClock(skew.Clock{Ahead: -time.Second})},
		{"clock frozen", "an instance's clock stands still", wrongClock(skew.Clock{Gains: -time.Second})},
		{"clock at double speed", "an instance's clock runs at double speed",
			wrongClock(skew.Clock{Gains: time.Second})},
		{"clock jumping", "an instance's clock is off by up to 3 s, each time it looks",
			wrongClock(skew.Clock{Jumps: 3 * time.Second})},
	}
}

// wrongClock gives an instance a wrong clock while it runs. In half of the cases the instance
// is killed meanwhile, so that the next process begins with that clock, in the same ms.
func wrongClock(clock skew.Clock) func(context.Context, *driver, *rand.Rand) (*injury, error) {
	return func(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
		s, err := d.instance(r)
		if err != nil {
			return nil, err
		}
		clock := clock
		clock.Since = time.Now()
		lasts, restarts := between(r, time.Second, 6*time.Second), r.IntN(2) == 0
		if err := s.SetClock(clock); err != nil {
			return nil, err
		}
		i := &injury{target: s.ID, lasts: lasts, end: func(context.Context) error { return s.SetClock(skew.Clock{}) }}
		if restarts {
			i.detail = "restarted"
			err = restart(s)
		}
		return i, err
	}
}

// clockAgreed makes an instance start with a clock that an operator consented to. The process
// ends before the clock is right again: until then its generators would wait for an hour.
func clockAgreed(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	s, err := d.instance(r)
	if err != nil {
		return nil, err
	}
	s.Environment("MARCH_AGREE_CLOCK=true")
	if err := errors.Join(s.SetClock(skew.Clock{Ahead: time.Hour}), restart(s)); err != nil {
		return nil, err
	}
	return &injury{target: s.ID, lasts: between(r, 2*time.Second, 6*time.Second), end: func(context.Context) error {
		s.Environment()
		return errors.Join(s.SetClock(skew.Clock{}), restart(s))
	}}, nil
}

// restart kills an instance, and starts it again at once.
func restart(s *cluster.Server) error {
	if err := s.Down(); err != nil {
		return fmt.Errorf("kill %s: %w", s.ID, err)
	}
	s.Keep(true)
	return nil
}

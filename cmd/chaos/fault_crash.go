package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/internal/crash"
)

// crashWithin bounds how long a process may take to reach its crash point.
const crashWithin = 6 * time.Second

// crashAt makes a server die at a named point of its own code. It is started to reach that
// point for the n-th time, and then once more, to live.
func crashAt(where crash.Where, choose choose) func(context.Context, *driver, *rand.Rand) (*injury, error) {
	return func(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
		s, err := choose(d, r)
		if err != nil {
			return nil, err
		}
		if d.isPaused(s) {
			return nil, fmt.Errorf("%w: %s is stopped", errSkip, s.ID)
		}
		var points []string
		for _, p := range crash.Points() {
			if p.In == where {
				points = append(points, p.Name)
			}
		}
		most := 8
		if where == crash.Console { // a console does not do much
			most = 2
		}
		point, n := pick(r, points), 1+r.IntN(most)
		if err := s.Down(); err != nil {
			return nil, err
		}
		s.Environment(fmt.Sprintf("MARCH_CRASH=%s:%d", point, n))
		s.Keep(true)
		err = cluster.Poll(ctx, s.Name+" to start", s.Running)
		s.Expect()
		s.Environment()
		if err != nil {
			return nil, err
		}
		detail := fmt.Sprintf("%s, time %d", point, n)
		select {
		case <-s.Ended():
		case <-ctx.Done():
		case <-time.After(crashWithin):
			detail += ": it did not come by there"
			if err := s.Kill(); err != nil {
				return nil, err
			}
		}
		return &injury{target: s.ID, detail: detail, end: func(context.Context) error { return nil }}, nil
	}
}

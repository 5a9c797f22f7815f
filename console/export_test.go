package console

import (
	"context"
	"time"
)

// SilentAfter sets after how long an instance counts as silent. Call it before the console
// runs.
func (s *Server) SilentAfter(d time.Duration) {
	s.heartbeats.silentAfter = func(int) time.Duration { return d }
}

// LookAtEnds takes note of when the time bits of tags end.
func (s *Server) LookAtEnds(ctx context.Context) error { return s.lookAtEnds(ctx) }

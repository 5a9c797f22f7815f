package console

import "time"

// SilentAfter sets after how long an instance is silent. It is for a console that
// does not run yet.
func (s *Server) SilentAfter(d time.Duration) {
	s.heartbeats.silentAfter = func(int) time.Duration { return d }
}

package console

import "time"

// SilentAfter sets after how long an instance counts as silent. Call it before the console
// runs.
func (s *Server) SilentAfter(d time.Duration) {
	s.heartbeats.silentAfter = func(int) time.Duration { return d }
}

package timeid

import "time"

// Trusted returns how long the generator, from now on, goes by the computer's monotonic clock
// alone.
func (g *Generator) Trusted() time.Duration {
	return time.Duration(g.ends.Load()) - time.Since(g.base)
}

package timeid

import "time"

// Trusted returns for how long the generator goes by the computer's monotonic clock
// alone from now on.
func (g *Generator) Trusted() time.Duration {
	return time.Duration(g.ends.Load()) - time.Since(g.base)
}

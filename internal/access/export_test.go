package access

import "context"

// ForgetAttempts forgets all wrong tokens, so that a test may give more than an address may.
func (g *Gate) ForgetAttempts() {
	g.attempts.mu.Lock()
	defer g.attempts.mu.Unlock()
	g.attempts.mu.by = nil
}

// EndLost ends calls that last, as Run does.
func (g *Gate) EndLost(ctx context.Context) { g.endLost(ctx) }

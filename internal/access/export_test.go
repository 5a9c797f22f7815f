package access

import "context"

// CheckIdentities reads a file of identities without the files that it names.
func CheckIdentities(path string, content []byte) error {
	_, err := readIdentities(path, content)
	return err
}

// ForgetAttempts forgets all wrong tokens, so that a test may give more than an address may.
func (g *Gate) ForgetAttempts() {
	g.attempts.mu.Lock()
	defer g.attempts.mu.Unlock()
	g.attempts.mu.by = nil
}

// EndLost ends calls that last, as Run does.
func (g *Gate) EndLost(ctx context.Context) { g.endLost(ctx) }

// Ended returns how many sessions and subjects the gate remembers as logged out.
func (g *Gate) Ended() (sessions, subjects int) {
	g.ended.mu.RLock()
	defer g.ended.mu.RUnlock()
	return len(g.ended.mu.ids), len(g.ended.mu.of)
}

package access

// ForgetAttempts forgets all wrong tokens, so that a test may give more than an address may.
func (g *Gate) ForgetAttempts() {
	g.attempts.mu.Lock()
	defer g.attempts.mu.Unlock()
	g.attempts.mu.by = nil
}

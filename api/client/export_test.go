package client

import "time"

// Tags returns how many tags are in memory.
func (c *Client) Tags() int { return len(c.tags()) }

// DropUnused drops the tags without a handle that were unused for after.
func (c *Client) DropUnused(after time.Duration) {
	for _, t := range c.tags() {
		c.dropIfUnusedFor(t, after)
	}
}

// WithClock returns options with a clock of time-ordered IDs, in Unix ms.
func WithClock(o Options, clock func() int64) Options {
	o.clock = clock
	return o
}

// Clone gives one client the workers of another, as a clone of its process has them.
func Clone(from, to *Client) {
	for _, w := range from.workers() {
		clone := to.worker(w.bits)
		w.mu.Lock()
		number, nonce, window, renewAt, renewTick := w.mu.number, w.mu.nonce, w.mu.window, w.mu.renewAt, w.mu.renewTick
		w.mu.Unlock()
		clone.mu.Lock()
		clone.forget()
		clone.mu.lender = to.pool.mu.endpoints[0]
		clone.mu.number, clone.mu.nonce, clone.mu.window, clone.mu.renewAt, clone.mu.renewTick = number,
			nonce, window, renewAt, renewTick
		for d := range clone.mu.tags {
			clone.generate(d)
		}
		clone.mu.Unlock()
	}
}

// Asked returns the addresses that the client asks now: the room's own, then others.
func (c *Client) Asked() (addresses []string) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	for _, e := range c.pool.mu.endpoints {
		addresses = append(addresses, e.address)
	}
	return addresses
}

// IDsOf returns the IDs of a room's answer to NextMany.
var IDsOf = idsOf

// RunOf reads a room's answer to NextRun.
var RunOf = runOf

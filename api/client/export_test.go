package client

import "time"

// Tags returns how many tags are in memory.
func (c *Client) Tags() int { return len(c.tags()) }

// DropUnused drops the tags without a handle that were unused for after.
func (c *Client) DropUnused(after time.Duration) {
	for _, h := range c.tags() {
		c.dropIfUnusedFor(h, after)
	}
}

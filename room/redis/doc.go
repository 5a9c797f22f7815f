// Package redis is the door for clients of Redis: it speaks RESP3 and RESP2 and answers
// INCR, INCRBY and what clients send when they connect, so that a service that counts in
// Redis takes its IDs from a room unchanged.
//
// Invariants: an ID that was taken is answered once, or lost with its connection, a gap;
// INCRBY answers the last of as many consecutive IDs as it asks for, or an error, never
// fewer; what a client sends is bounded before it is kept; commands that arrive together
// are answered together, in their order.
//
// The texts of errors are those of Redis 7.0 where Redis has such an error: clients compare
// them.
package redis

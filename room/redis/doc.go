// Package redis is the door for clients of Redis. It speaks RESP3 and RESP2, and answers
// INCR, INCRBY and the commands that clients send when they connect. So a service that
// counts in Redis can take its IDs from a room without a change.
//
// Invariants: an ID that was taken is answered once, or lost with its connection, which
// leaves a gap; INCRBY takes as many consecutive IDs as it asks for and answers the last
// one, or an error, never fewer; a client's input is bounded before it is stored;
// commands that arrive together are answered together, in their order; a connection has one
// owner at a time, its goroutine or, on Linux while its client counts, a loop.
//
// The texts of errors are those of Redis 7.0 where Redis has such an error: clients compare
// them.
package redis

// Package crash makes a process die at a named point of its own code, so that a test
// can show the state that a crash there leaves behind. Only binaries that are built
// with the tag chaos can do that. In all others On is a constant false and Here is an
// empty function, which the compiler removes.
//
// The environment variable MARCH_CRASH=NAME:N makes the process end by SIGKILL when it
// passes the point NAME for the N-th time. It prints one line on stderr; it flushes and
// closes nothing, and tells no other process.
package crash

// Where is what runs when a point is passed.
type Where string

// The programs that have points.
const (
	Room    Where = "room"    // a room's instance
	Console Where = "console" // a console, or a command that changes the layout by itself
	Recover Where = "recover" // the command that makes a cluster lease again
)

// Point is a point of the code.
type Point struct {
	Name string
	In   Where
}

// The names of the points.
const (
	BeforeLease = "before-lease" // a segment or a window is computed, the transaction not sent
	AfterLease  = "after-lease"  // the transaction is done; no memory has it
	BeforeUse   = "before-use"   // the segment is ours, and remembered; the chain does not have it
	BeforeReply = "before-reply" // IDs are taken from the chain; the caller does not have them
	AfterChange = "after-change" // a layout is changed; its caller does not know
	AfterMove   = "after-move"   // a move of a migration is made; nothing else is noted of it
	AfterRaise  = "after-raise"  // a recover raised some keys, marks say, and goes on with others
)

// Points returns all points.
func Points() []Point {
	return []Point{
		{BeforeLease, Room}, {AfterLease, Room}, {BeforeUse, Room}, {BeforeReply, Room},
		{AfterChange, Console}, {AfterMove, Console},
		{AfterRaise, Recover},
	}
}

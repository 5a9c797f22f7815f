package timeid

import (
	"fmt"
	"time"

	"github.com/march-id/march/allocator"
)

// ErrClosed is the error of a generator's methods after Close. As a chain's, it is allocator.ErrClosed.
var ErrClosed = &allocator.Error{Kind: allocator.Unavailable, Msg: "generator of time-ordered IDs closed",
	Err: allocator.ErrClosed}

// WindowError says that the clock is outside the generator's window. Its Kind is Unavailable:
// Extend, or time, makes IDs possible again.
type WindowError struct {
	Worker int64
	Now    int64  // the clock, Unix ms
	Window Window // the generator's
	Early  bool   // the clock is before the window's first whole tick, and not after its last
	First  int64  // if Early: when that tick begins, Unix ms
}

func (e *WindowError) Error() string {
	where := "has no tick left: retry once it is extended"
	if e.Early {
		where = "has not begun: retry then"
	}
	return fmt.Sprintf("the clock is at %s, and the window of worker %d, %s to %s, %s",
		date(e.Now), e.Worker, date(e.Window.From), date(e.Window.Until), where)
}

func (e *WindowError) Unwrap() error { return allocator.Unavailable }

// RollbackError says that the clock is further behind the last ID than the policy allows. Its
// Kind is Unavailable.
type RollbackError struct {
	Policy  Rollback
	Now     int64         // the clock, Unix ms
	Last    int64         // the start of the last ID's tick, Unix ms, after Now
	Allowed time.Duration // MaxWait of Wait, MaxAhead of Offset, 0 of Fail
}

func (e *RollbackError) Error() string {
	return fmt.Sprintf("the clock went back: it is at %s, %d ms behind the last ID's %s; allowed (%v): %v; "+
		"retry when the clock has caught up",
		date(e.Now), e.Last-e.Now, date(e.Last), e.Policy, e.Allowed)
}

func (e *RollbackError) Unwrap() error { return allocator.Unavailable }

// OverflowError says that a tick's sequence is full, and that the clock did not reach the next
// tick in time: it stands still. Its Kind is Unavailable.
type OverflowError struct {
	Now     int64         // the clock, Unix ms
	PerTick int64         // how many IDs a tick has
	Waited  time.Duration // how long the caller waited for a later tick
}

func (e *OverflowError) Error() string {
	return fmt.Sprintf("all %d IDs of the tick are issued, and in %v the clock did not go on from %s; "+
		"retry when it runs",
		e.PerTick, e.Waited, date(e.Now))
}

func (e *OverflowError) Unwrap() error { return allocator.Unavailable }

// EndError says that the layout's time bits are used up. Its Kind is Exhausted.
type EndError struct {
	Now  int64 // the clock, Unix ms
	End  int64 // Layout.End
	Bits int   // Layout.TimeBits
}

func (e *EndError) Error() string {
	return fmt.Sprintf("the %d time bits were used up at %s, and the clock is at %s; "+
		"a layout with a newer epoch or more bits is needed",
		e.Bits, date(e.End), date(e.Now))
}

func (e *EndError) Unwrap() error { return allocator.Exhausted }

// NoWindowError says why a caller's process gets no window for a worker of its own. Its Kind is
// the cause's. The room's own worker still serves the tag.
type NoWindowError struct{ Err error }

func (e *NoWindowError) Error() string {
	return fmt.Sprintf("no window for the caller: %v; Next, NextBatch and Stream issue the tag's IDs", e.Err)
}

// Unwrap returns the cause, which has the Kind.
func (e *NoWindowError) Unwrap() error { return e.Err }

package worker

import (
	"fmt"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// BusyError says that no worker is free yet, or that the pinned one is not. Its Kind is
// Unavailable: a Take at Until finds one.
type BusyError struct {
	Worker record.WorkerID   // the one that is free soonest
	By     record.InstanceID // its owner; empty if the epoch lets no window begin yet
	Until  time.Time         // when it is free, by this process's clock
	Pinned bool              // this instance takes no other one
	Gone   bool              // the process that has it is no longer registered
	Beat   time.Time         // that process's last heartbeat, by its own clock; zero if it is not known
}

func (e *BusyError) Error() string {
	at := e.Until.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	if e.By == "" {
		return fmt.Sprintf("no window of a worker begins before %s: a recover went on without an instance that may "+
			"issue until then", at)
	}
	only, other := "", ", and no other is free sooner"
	if e.Pinned {
		only, other = ", the only one that this instance takes (--worker),", ""
	}
	if e.Gone {
		return fmt.Sprintf("worker %v%s is instance %s's until %s, although that process is gone%s: waiting until then",
			e.Worker, only, e.By, at, other)
	}
	if !e.Beat.IsZero() {
		at += ", and longer while that process runs (its last heartbeat is of " +
			e.Beat.UTC().Format(time.RFC3339) + ")"
	}
	if e.Pinned {
		other = ": stop that one, or give one of the two another number"
	}
	return fmt.Sprintf("worker %v%s is instance %s's until %s%s", e.Worker, only, e.By, at, other)
}

// Unwrap returns the Kind.
func (e *BusyError) Unwrap() error { return allocator.Unavailable }

// CallersError says that none of the workers for callers is free. Its Kind is TooMany. A caller
// does not wait for one, as the room can issue with its own worker.
type CallersError struct {
	Room    allocator.Room
	Bits    int
	Workers int64 // that callers of the room may have
}

func (e *CallersError) Error() string {
	if e.Workers == 0 {
		return fmt.Sprintf("room %s has no worker of %d bits for callers; march room --client-workers sets how many, "+
			"up to half of its slice", e.Room, e.Bits)
	}
	return fmt.Sprintf("all %d workers of %d bits that callers of room %s may have are in use; "+
		"march room --client-workers sets how many, up to half of its slice",
		e.Workers, e.Bits, e.Room)
}

// Unwrap returns the Kind.
func (e *CallersError) Unwrap() error { return allocator.TooMany }

// MovedError says that the room's slice no longer has a worker. Its Kind is NoRange.
// The room takes another worker, then gives this one back, then reports the layout.
type MovedError struct {
	Worker  record.WorkerID
	Room    allocator.Room
	Version int64 // of the layout
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("worker %v is not in the slice of room %s in layout version %d: another one is to be taken",
		e.Worker, e.Room, e.Version)
}

// Unwrap returns the Kind.
func (e *MovedError) Unwrap() error { return allocator.NoRange }

// LostError says that another process has the worker, or that a recover or an operator took it
// away. Its Kind is Conflict. The window may be used to its end, unless the instance was told
// to drop it (ledger.Instance.OnDrop).
type LostError struct {
	Worker record.WorkerID
	By     record.InstanceID // the new owner; empty if the worker was taken away
}

func (e *LostError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("worker %v was taken away from this process: another one is to be taken", e.Worker)
	}
	return fmt.Sprintf("worker %v is instance %s's by now: another one is to be taken", e.Worker, e.By)
}

// Unwrap returns the Kind.
func (e *LostError) Unwrap() error { return allocator.Conflict }

package recovery

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// Config says how to recover.
type Config struct {
	Actor string
	// Apply does it; otherwise nothing is changed, no instance is barred, and the
	// report says what would be done.
	Apply bool
	// Ask asks an instance for its memory.
	Ask Ask
	// Memories are those of journals.
	Memories []record.Memory
	// Without are instances to go on without.
	Without []record.InstanceID
	// Skip are tags of which a mark cannot be read, to be left as they are.
	Skip []allocator.Tag
	// Wait is how long to wait, before halting, for instances that etcd has
	// forgotten to register again.
	Wait time.Duration
	// Margin is how many steps of each tag are left free for instances that recover
	// goes on without; nil for 1 + 2 * age of the backup / reserve for each of them,
	// by the least reserve of all tags, and at most 10 minutes.
	Margin *int64
	// Layout is which layout to go on with where etcd has an older one than an
	// instance knows.
	Layout LayoutChoice
	// Given is the layout of LayoutGiven.
	Given allocator.Layout
	// Progress, if it is not nil, is called now and then, from several goroutines.
	Progress func(Progress)
}

// Ask asks an instance for its memory. It calls use with each part of the marks
// that the instance remembers, and returns the rest.
type Ask func(ctx context.Context, s record.SeenInstance, q record.Question, use record.UseMarks) (record.Memory, error)

// LayoutChoice says which layout a recover puts in force.
type LayoutChoice string

// The choices. Undecided refuses to recover where the layouts differ.
const (
	LayoutUndecided LayoutChoice = ""
	LayoutStored    LayoutChoice = "stored" // the one that etcd has
	LayoutKnown     LayoutChoice = "known"  // the latest that any instance knows
	LayoutGiven     LayoutChoice = "given"  // Config.Given
)

// Progress is how far a recover is.
type Progress struct {
	Doing string
	Done  int64 // of what Doing counts
	Of    int64 // how much there is, 0 where that is not known
}

// Report is what a recover saw and did.
type Report struct {
	UUID       string
	Halt       record.Halt // that was in force; zero where there was none
	Answered   []record.InstanceID
	LeftBefore []record.InstanceID // that left in good order before the backup
	Missing    []Missing
	Unreadable []record.KeyError // keys that cannot be read
	Beat       time.Time         // when etcd was last known to be there, by the restored store
	Margin     int64             // of this recover, in steps
	Total      int64             // of all recovers
	AtLimit    []allocator.Tag   // that the margin takes to their limits, or above
	Stored     record.Layout     // that etcd has; zero where it cannot be read
	Known      allocator.Layout
	Layout     allocator.Layout // that is put in force, with its version
	Higher     int64            // marks that a memory knows to be higher than etcd's
	Raised     int64            // of these
	Workers    int64            // that a memory knew to be leased for longer, and that were raised
	Halted     time.Duration    // from recover's own halt to the new epoch
	Epoch      string           // empty before it is done
	NotBefore  time.Time        // no window of a worker begins earlier in the new epoch; zero where any may
}

// Missing is a process whose memory is not known. Only the margin covers its
// leases since the backup, and it may still issue the IDs that it holds.
type Missing struct {
	ID          record.InstanceID
	Incarnation string
	Why         string
	Without     bool // the operator said to go on without it
}

package recovery

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
)

// Config are the settings of a recover.
type Config struct {
	Actor string
	// Apply recovers. Without it nothing is changed, no instance is barred, and the
	// report says what a recover would do.
	Apply bool
	// Ask asks an instance for its memory.
	Ask Ask
	// Named says that Ask speaks only with the instance that it is to ask, which proves its
	// name. Then no answer counts that names another instance.
	Named bool
	// Memories are those of journals.
	Memories []record.Memory
	// Without are instances to go on without.
	Without []record.InstanceID
	// Stopped are instances to go on without, of which the machine has been off since before this
	// recover began.
	Stopped []record.InstanceID
	// Off asks the operator if the machine of an instance that did not answer, and is not named above, is off:
	// then the instance counts as one of Stopped, otherwise as one of Without. Its error ends the
	// recover, with nothing changed. nil refuses to go on.
	Off func(context.Context, *Report, Lost) (bool, error)
	// Skip are tags with a mark that cannot be read, to leave as they are.
	Skip []allocator.Tag
	// Wait is how long to wait, before halting, for instances that etcd has
	// forgotten to register again.
	Wait time.Duration
	// Margin is how many steps of each tag are left free for instances that recover
	// goes on without; nil for two for each of them if a mirror saw all that they leased. If
	// none did, recover does not go on without a margin.
	Margin *int64
	// Witnesses are the mirrors to ask, each under a name of its own.
	Witnesses []Witness
	// Console asks the consoles at an address, if etcd has one: under that name it is a witness, too.
	// It may be nil.
	Console func(address string) AskMirror
	// NoMirrors are names of witnesses that are not asked.
	NoMirrors []string
	// Layout is which layout to go on with if an instance knows a later one than
	// etcd has.
	Layout LayoutChoice
	// Given is the layout of LayoutGiven.
	Given allocator.Layout
	// Progress, if not nil, is called from time to time, from several goroutines.
	Progress func(Progress)
}

// Ask asks an instance for its memory. It calls use with each part of the marks
// that the instance remembers, and returns the rest.
type Ask func(ctx context.Context, s record.SeenInstance, q record.Question, use record.UseMarks) (record.Memory, error)

// LayoutChoice is which layout a recover puts in force.
type LayoutChoice string

// The choices. Undecided refuses to recover if the layouts differ.
const (
	LayoutUndecided LayoutChoice = ""
	LayoutStored    LayoutChoice = "stored" // the one that etcd has
	LayoutKnown     LayoutChoice = "known"  // the latest that any instance knows
	LayoutGiven     LayoutChoice = "given"  // Config.Given
)

// Progress is the progress of a recover.
type Progress struct {
	Doing string
	Done  int64 // how many are done
	Of    int64 // how many there are, 0 if that is not known
}

// Report is the result of a recover.
type Report struct {
	UUID       string
	Halt       record.Halt // the halt that was in force; zero if there was none
	Answered   []record.InstanceID
	LeftBefore []record.InstanceID // instances that left in good order before the backup
	Missing    []Missing
	Mirrors    []Witnessed
	Jumps      []string          // marks that mirrors alone raise by more than max_jump
	Unreadable []record.KeyError // keys that cannot be read
	Beat       time.Time         // when etcd was last known to be there, by the restored store
	Margin     int64             // of this recover, in steps
	Total      int64             // of all recovers
	AtLimit    []allocator.Tag   // tags that the margin takes to their limits, or above
	// BeyondPeriod are tags of which the margin leaves no ID in the present period.
	BeyondPeriod []allocator.Tag
	PutBack      []allocator.Tag // that only mirrors know: they are deleted ones now
	Machines     int64           // machine IDs that a mirror saw in later use than the store
	// Hourly says that there are tags with a period, and that older builds may lease of them: these
	// lay margins right only where clocks are right within an hour. See record.Epoch.Margins.
	Hourly  bool
	Stored  record.Layout // the layout in etcd; zero if it cannot be read
	Known   allocator.Layout
	Layout  allocator.Layout // the layout that is put in force, with its version
	Higher  int64            // marks that are higher in a memory than in etcd
	Raised  int64            // how many of these were raised
	Workers int64            // raised workers: a memory had a later end than etcd
	Halted  time.Duration    // from recover's own halt to the new epoch
	Epoch   string           // empty before the new epoch begins
	// no window of a worker begins earlier in the new epoch; zero if there is no such bound
	NotBefore time.Time
	// Waits says why that is not sooner; empty if there is no such bound.
	Waits string
}

// Lost is an instance of which processes did not answer.
type Lost struct {
	ID      record.InstanceID
	Why     string
	Beat    time.Time // the last heartbeat that a mirror saw; zero for none
	Answers bool      // a later process answered, without the memory of an earlier one
}

// Missing is a process whose memory is not known. Only the margin covers its
// leases since the backup, and it may still issue the IDs that it holds.
type Missing struct {
	ID          record.InstanceID
	Incarnation string // empty if no process of the instance is known
	Why         string
	Without     bool      // the operator lets recover go on without it
	Beat        time.Time // its last heartbeat that a mirror saw, by its own clock; zero for none
}

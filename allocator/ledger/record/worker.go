package record

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

const (
	// LongestWindow bounds how far a window may end after the clock of the instance that leases
	// it: twice the largest reserve of a worker.
	LongestWindow = 20 * time.Minute
	// MaxAhead is how far apart the clocks of a cluster may be. An instance that is further
	// ahead of the median takes no window without an operator's consent.
	MaxAhead = timeid.DefaultMaxAhead
)

// WorkerID names a worker: a number among the 2^Bits workers of a width.
type WorkerID struct {
	Bits   int   `json:"bits"`          // 0 to timeid.MaxBits-1
	Number int64 `json:"number,string"` // from 0, below 2^Bits
}

// String returns the worker as the end of its key, without the padding: 10/7.
func (id WorkerID) String() string { return fmt.Sprintf("%d/%d", id.Bits, id.Number) }

// Valid reports whether such a worker exists.
func (id WorkerID) Valid() bool {
	return id.Bits >= 0 && id.Bits < timeid.MaxBits && id.Number >= 0 && id.Number < 1<<id.Bits
}

// WorkerIn names a room's key of a worker, or of a machine ID; one that all rooms wrote has no room.
type WorkerIn struct {
	Room allocator.Room `json:"room,omitempty"`
	WorkerID
}

// Worker is the stored value of a worker's key: the process that has the worker, and its time.
// Within [From, Until) no other process may use the worker. The key stays after the window is
// over: the next owner begins at Until at the earliest.
type Worker struct {
	Room        allocator.Room     `json:"room"`
	Instance    allocator.Instance `json:"instance"`
	Incarnation string             `json:"incarnation"`
	From        int64              `json:"from,string"`  // Unix ms, inclusive; where this process began
	Until       int64              `json:"until,string"` // Unix ms, exclusive, From at least
	Stamp       Stamp              `json:"stamp"`        // the epoch and the layout that the window was leased under
	Clock       int64              `json:"clock,string"` // the owner's clock when it asked for the end, Unix ms
	// Caller says that the owner took the worker for a caller's process. That process may issue
	// until the window's end, whatever happens to the owner.
	Caller bool `json:"caller,omitempty"`
	// FreeOf is the not_before of an epoch of which the number is free: see Free. Only layouts with
	// the formats of generation 2 have it.
	FreeOf int64 `json:"free_of,string,omitempty"`
}

// format: a program that does not know about callers' workers must not read the value.
func (w *Worker) format() int {
	if w.Caller {
		return baseFormat + 1
	}
	return baseFormat
}

// Window returns the time for which the worker is leased.
func (w Worker) Window() timeid.Window { return timeid.Window{From: w.From, Until: w.Until} }

// ID returns the owner's name in the cluster.
func (w Worker) ID() InstanceID { return NewInstanceID(w.Room, w.Instance) }

// Free reports whether the number need not wait for the not_before of an epoch. The recover that
// chose not_before frees a number whose owner answered it, in a window that ended so late that no
// instance which was left out took the number. Any other first window begins at not_before or
// later. So a number stays free of it for good: each put under an epoch repeats its not_before, and
// before the formats of generation 2 the stamp says as much of its own epoch.
func (w Worker) Free(epoch string, notBefore int64) bool {
	return w.FreeOf == notBefore || w.Stamp.Epoch == epoch
}

// Raised returns the key that covers both w and o: the one with the later end. A recover writes
// it when it learns of o from a memory.
func (w Worker) Raised(o Worker) Worker {
	if o.Until > w.Until {
		return o
	}
	return w
}

// Validate checks the names and numbers. Its errors are Invalid and name the field.
func (w Worker) Validate() error {
	if _, err := allocator.ParseRoom(string(w.Room)); err != nil {
		return err
	}
	if _, err := allocator.ParseInstance(string(w.Instance)); err != nil {
		return err
	}
	switch {
	case w.Incarnation == "":
		return allocator.Errorf(allocator.Invalid, "incarnation: empty; allowed: the process's")
	case w.From < 0 || w.From > timeid.LatestEpoch:
		return allocator.Errorf(allocator.Invalid, "from: %d; allowed: 0 to %d (Unix ms)",
			w.From, int64(timeid.LatestEpoch))
	case w.Until < w.From || w.Until > timeid.LatestEpoch:
		return allocator.Errorf(allocator.Invalid, "until: %d; allowed: from (%d) to %d (Unix ms)", w.Until,
			w.From, int64(timeid.LatestEpoch))
	case w.Stamp.Epoch == "" || w.Stamp.Revision < 1:
		return allocator.Errorf(allocator.Invalid,
			"stamp: epoch %q, layout revision %d; allowed: an epoch and a revision from 1",
			w.Stamp.Epoch, w.Stamp.Revision)
	case w.Clock < 0 || w.Clock > timeid.LatestEpoch:
		return allocator.Errorf(allocator.Invalid, "clock: %d; allowed: 0 to %d (Unix ms)",
			w.Clock, int64(timeid.LatestEpoch))
	}
	if w.FreeOf < 0 || w.FreeOf > timeid.LatestEpoch {
		return allocator.Errorf(allocator.Invalid, "free_of: %d; allowed: 0 to %d (Unix ms)",
			w.FreeOf, int64(timeid.LatestEpoch))
	}
	return nil
}

// Encode returns the stored value of the worker.
func (w Worker) Encode() []byte { return Encode(&w) }

// Lease is a worker of a width, in a snapshot or in a memory.
type Lease struct {
	WorkerID
	Worker

	// Goes says that the owner, which accepted the barrier of a recover, goes on in the window: it
	// ends later than twice MaxAhead after that. Only answers to a barrier have it.
	Goes bool `json:"-"`
}

// In names the key of the lease.
func (l Lease) In() WorkerIn { return WorkerIn{l.Room, l.WorkerID} }

// SortLeases sorts workers by width, number and room.
func SortLeases(leases []Lease) {
	slices.SortFunc(leases, func(a, b Lease) int {
		return cmp.Or(cmp.Compare(a.Bits, b.Bits), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Room, b.Room))
	})
}

// ValidateLeases checks workers from outside. Its errors are Invalid.
func ValidateLeases(leases []Lease) error {
	for _, l := range leases {
		if !l.Valid() {
			return allocator.Errorf(allocator.Invalid, "worker: %d of %d bits; allowed: 0 to 2^bits-1, of 0 to %d bits",
				l.Number, l.Bits, timeid.MaxBits-1)
		}
		if err := l.Validate(); err != nil {
			return allocator.Errorf(allocator.Invalid, "worker %v: %w", l.WorkerID, err)
		}
	}
	return nil
}

// maxMachineText bounds the namespace and the instance ID of a machine, in bytes.
const maxMachineText = 255

// Machine is the stored value of a machine ID's key: the CosId client that has the number. The
// key stays when the client gives the number back.
type Machine struct {
	Namespace string `json:"namespace"`
	Instance  string `json:"instance"`    // the client's own name: HOST:PORT, say
	Stable    bool   `json:"stable"`      // the client keeps the number
	Last      int64  `json:"last,string"` // when the client certainly had the number last, Unix ms
	Returned  bool   `json:"returned"`    // the client gave it back
}

// Encode returns the stored value of the machine.
func (m Machine) Encode() []byte { return Encode(&m) }

// Validate checks the names and the time. Its errors are Invalid and name the field.
func (m Machine) Validate() error {
	for _, text := range [][2]string{{"namespace", m.Namespace}, {"instanceId", m.Instance}} {
		if text[1] == "" || len(text[1]) > maxMachineText || !utf8.ValidString(text[1]) {
			return allocator.Errorf(allocator.Invalid, "%s: %.40q; allowed: 1 to %d bytes of UTF-8",
				text[0], text[1], maxMachineText)
		}
	}
	if m.Last < 0 || m.Last > timeid.LatestEpoch {
		return allocator.Errorf(allocator.Invalid, "last: %d; allowed: 0 to %d (Unix ms)",
			m.Last, int64(timeid.LatestEpoch))
	}
	return nil
}

package record

import (
	"cmp"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// InstanceID names an instance in the cluster: room/instance.
type InstanceID string

// NewInstanceID returns the name of an instance in the cluster.
func NewInstanceID(room allocator.Room, name allocator.Instance) InstanceID {
	return InstanceID(string(room) + "/" + string(name))
}

// Registration is the stored value of an instance's registration.
type Registration struct {
	kept
	Incarnation string    `json:"incarnation"`
	Address     string    `json:"address"`
	Build       string    `json:"build"`
	Formats     int       `json:"formats,omitempty"` // the newest generation that the build knows; absent means 1
	Version     int64     `json:"version,string"`    // of the layout that it serves
	Started     time.Time `json:"started"`
	Hold        Duration  `json:"hold"` // how long it goes on under a layout that was not confirmed again
	// Epoch is the last one that this was written under, empty if it was not known. Lost has
	// the earlier processes of this name under that epoch whose memory this process does not
	// have.
	Epoch string   `json:"epoch,omitempty"`
	Lost  []string `json:"lost,omitempty"`
	// Unconfirmed is set while the instance leases nothing because no operator has confirmed
	// its marks: see unconfirmed.go.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
	// Leaving is set by the last write of a clean stop, before the registration is deleted:
	// other instances see that the instance leases nothing any longer.
	Leaving bool `json:"leaving,omitempty"`
	// Covers has the earlier processes of a leaving instance whose leases etcd has, too, as the
	// instance made sure: see Leave.
	Covers []string `json:"covers,omitempty"`
	// Pin is the number of the instance's workers of time-ordered IDs, counted from the lower
	// end of its room's slice; nil if it takes any. A plan keeps the number in the slice.
	Pin *int64 `json:"pin,string,omitempty"`
	// Keeps names the doors whose clients keep IDs without limit: a plan warns that such
	// clients go on with residues that the room loses.
	Keeps []string `json:"keeps,omitempty"`
	// AdminAddress is where operators' calls are answered, empty if at Address.
	AdminAddress string `json:"admin_address,omitempty"`
}

// Operators returns the address at which operators' calls are answered.
func (v *Registration) Operators() string { return cmp.Or(v.AdminAddress, v.Address) }

// Knows returns the newest generation of stored formats that the instance's build knows.
func (v *Registration) Knows() int { return max(v.Formats, 1) }

// Validate checks the hold and the pin.
func (v *Registration) Validate() error {
	if v.Pin != nil && *v.Pin < 0 {
		return allocator.Errorf(allocator.Invalid, "pin: %d; allowed: 0 or more", *v.Pin)
	}
	return v.Hold.validate()
}

// Instance is an instance in etcd: its registration, and its data in other keys of the same
// snapshot.
type Instance struct {
	Room allocator.Room
	Name allocator.Instance
	Registration
	LastSeen time.Time // when its last heartbeat was sent, by its clock; zero if it has none
	// Beat changes with each heartbeat and with each process. A console that sees the same Beat
	// for some time counts the instance as silent for that time.
	Beat string
	// Stale is set if the instance has reported no layout of the epoch in force. A restore
	// brought an old registration back, or a recover began an epoch since. The instance may
	// still serve a layout of an earlier epoch.
	Stale bool
	// Unreadable is why its registration cannot be read, nil if it can. Then only its name is
	// known. It counts as registered, and as an instance that has not reported.
	Unreadable error

	RegistrationKV store.KV
	BeatKV         store.KV // without a value if there is none
	EpochKV        store.KV // of the same snapshot
}

// ID returns the instance's name in the cluster.
func (r Instance) ID() InstanceID { return NewInstanceID(r.Room, r.Name) }

// Reported returns the version of the layout that the instance reported under the epoch in
// force, 0 if it reported none. A report of an earlier epoch does not count, as the instance
// may since have leased under layouts that etcd has forgotten.
func (r Instance) Reported() int64 {
	if r.Stale {
		return 0
	}
	return r.Version
}

// Under stores the epoch under which the registration is written. It does nothing if epoch is
// empty, because leasing is halted or the epoch is not known. It drops the lost processes of an
// earlier epoch: `march recover` has gone on without them.
func (v *Registration) Under(epoch string) {
	if epoch != "" && epoch != v.Epoch {
		v.Epoch, v.Lost = epoch, nil
	}
}

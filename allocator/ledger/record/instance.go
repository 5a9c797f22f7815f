package record

import (
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

// Registration is what an instance's registration is stored as.
type Registration struct {
	kept
	Incarnation string    `json:"incarnation"`
	Address     string    `json:"address"`
	Build       string    `json:"build"`
	Version     int64     `json:"version,string"` // of the layout it serves
	Started     time.Time `json:"started"`
	Hold        Duration  `json:"hold"` // for how long it goes on under a layout that was not confirmed again
	// Epoch is the last one that this was written under, empty where that was not known.
	// Lost are the earlier processes of this name under it whose memory this one does not
	// have.
	Epoch string   `json:"epoch,omitempty"`
	Lost  []string `json:"lost,omitempty"`
	// Unconfirmed is set where the instance leases nothing before an operator has
	// confirmed its marks: see unconfirmed.go.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
	// Leaving is set as the last write of a clean stop, before the registration goes:
	// the instance leases nothing any longer, and other instances see that.
	Leaving bool `json:"leaving,omitempty"`
	// Pin is the number of the instance's workers of time-ordered IDs, counted from the
	// lower end of its room's slice; nil where it takes any. A plan does not take the
	// number away.
	Pin *int64 `json:"pin,string,omitempty"`
	// Keeps names the doors whose clients keep IDs for as long as they like: a plan says
	// that such clients go on with residues that the room loses.
	Keeps []string `json:"keeps,omitempty"`
}

// Validate checks the hold and the pin.
func (v *Registration) Validate() error {
	if v.Pin != nil && *v.Pin < 0 {
		return allocator.Errorf(allocator.Invalid, "pin: %d; allowed: 0 or more", *v.Pin)
	}
	return v.Hold.validate()
}

// Instance is an instance as etcd knows it: its registration, and what other keys of the
// same snapshot say of it.
type Instance struct {
	Room allocator.Room
	Name allocator.Instance
	Registration
	LastSeen time.Time // when its last heartbeat was sent, by its clock; zero when it is not there
	// Beat changes with each heartbeat and with each process: an instance is silent
	// for as long as a console sees the same.
	Beat string
	// Stale is set where the instance has reported no layout of the epoch in force: a
	// restore has brought an old registration back, or a recover began an epoch since, and
	// the instance may still serve a layout from before it.
	Stale bool
	// Unreadable is why its registration cannot be read, nil where it can: then no
	// more is known than its name. It counts as registered, and as an instance that
	// has not reported.
	Unreadable error

	RegistrationKV store.KV
	BeatKV         store.KV // without a value where there is none
	EpochKV        store.KV // as it was in the same snapshot
}

// ID returns the instance's name in the cluster.
func (r Instance) ID() InstanceID { return NewInstanceID(r.Room, r.Name) }

// Reported returns the version of the layout that the instance reported under the epoch in
// force, 0 where it reported none: a report of an earlier epoch does not count, as the
// instance may have leased under layouts since that etcd has forgotten.
func (r Instance) Reported() int64 {
	if r.Stale {
		return 0
	}
	return r.Version
}

// ParseInstance reads a registration; with an error the record has the name, where
// the key has one.
func (k Keys) ParseInstance(kv store.KV) (Instance, error) { return readAs[Instance](k, kv) }

func readInstance(key KeyParts, kv store.KV) (any, error) {
	i := Instance{Room: key.Room, Name: key.Instance, RegistrationKV: kv}
	i.Unreadable = Decode(kv, &i.Registration)
	return i, i.Unreadable
}

// Under notes the epoch under which the registration is written. It does nothing if
// epoch is empty, as it is while leasing is halted or the epoch is not known. It drops
// the lost processes of an earlier epoch: `march recover` has gone on without them.
func (v *Registration) Under(epoch string) {
	if epoch != "" && epoch != v.Epoch {
		v.Epoch, v.Lost = epoch, nil
	}
}

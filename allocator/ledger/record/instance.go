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

// Instance is an instance as etcd knows it.
type Instance struct {
	Room     allocator.Room
	Name     allocator.Instance
	Address  string        // where it serves gRPC, host:port
	Build    string        // the program's version
	Hold     time.Duration // see Registration
	Version  int64         // of the layout it serves
	Started  time.Time
	LastSeen time.Time // when its last heartbeat was sent, by its clock; zero when it is not there
	// Beat changes with each heartbeat and with each process: an instance is silent
	// for as long as a console sees the same.
	Beat string
	// Epoch is the one under which the registration was written, empty where that was not
	// known. Stale is set where the instance has reported no layout of the epoch in force:
	// a restore has brought an old registration back, or a recover began an epoch since, and
	// the instance may still serve a layout from before it.
	Epoch string
	Stale bool
	// Unconfirmed: it started without its journal, which is required, and leases
	// nothing before its marks are confirmed.
	Unconfirmed bool
	// Unreadable is why its registration cannot be read, nil where it can: then no
	// more is known than its name. It counts as registered, and as an instance that
	// has not reported.
	Unreadable error

	// Incarnation is the process's, its own.
	Incarnation string

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
func (k Keys) ParseInstance(kv store.KV) (Instance, error) {
	key, err := k.Parse(kv.Key)
	if err != nil {
		return Instance{}, err
	}
	var v Registration
	err = Decode(kv, &v)
	var hold time.Duration
	if err == nil {
		hold, err = time.ParseDuration(v.Hold)
	}
	if err != nil {
		err = Unreadable(kv.Key, err)
		return Instance{Room: key.Room, Name: key.Instance, Unreadable: err, RegistrationKV: kv}, err
	}
	return Instance{
		Room: key.Room, Name: key.Instance, Address: v.Address, Build: v.Build, Hold: hold,
		Version: v.Version, Started: v.Started, Unconfirmed: v.Unconfirmed, Incarnation: v.Incarnation, RegistrationKV: kv,
		Epoch: v.Epoch,
	}, nil
}

// Under notes the epoch under which the registration is written. It does nothing if
// epoch is empty, as it is while leasing is halted or the epoch is not known. It drops
// the lost processes of an earlier epoch: `march recover` has gone on without them.
func (v *Registration) Under(epoch string) {
	if epoch != "" && epoch != v.Epoch {
		v.Epoch, v.Lost = epoch, nil
	}
}

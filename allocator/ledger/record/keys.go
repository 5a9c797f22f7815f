// Package record defines everything that March stores in etcd. It has the keys of a
// cluster. For each kind of key it has the struct, its encoding, and the checks that a
// value must pass before the program believes it. Package ledger, which is the protocol,
// decides when a value may be written.
//
// All keys are under /march/<cluster>/. Values are JSON, with int64 as strings. Each value
// carries a format number: the lowest format that can hold it. A reader that needs a value
// of an unknown format fails; a reader that lists values passes over it and names its key.
// Unknown fields are kept when a value is written again. In marks, workers, machines, tokens,
// layouts and the epoch, which say which IDs may be issued, an unknown field is refused. So
// two versions of the program can run beside each other.
package record

import (
	"fmt"
	"strings"

	"github.com/march-id/march/allocator"
)

// Keys makes and parses the keys of one cluster. It is the prefix of these keys,
// /march/<cluster>/.
type Keys string

// root is the prefix of the keys of all clusters.
const root = "/march/"

// NewKeys checks the cluster's name, which follows the rules of a room's name.
func NewKeys(cluster string) (Keys, error) {
	if _, err := allocator.ParseRoom(cluster); err != nil {
		return "", allocator.Errorf(allocator.Invalid,
			"cluster: %q is not a name; allowed: [a-z0-9][a-z0-9-]{0,62}", cluster)
	}
	return Keys(root + cluster + "/"), nil
}

// Identity names the key of the cluster's uuid and the ID of its etcd cluster.
func (k Keys) Identity() string { return string(k) + "identity" }

// Epoch names the key that every lease compares.
func (k Keys) Epoch() string { return string(k) + "epoch" }

// Answered names the key of the processes whose memory the last recover used.
func (k Keys) Answered() string { return string(k) + "answered" }

// Layout names the key of the layout in force.
func (k Keys) Layout() string { return string(k) + "layout" }

// Beat names the key that says how far etcd's raft log was.
func (k Keys) Beat() string { return string(k) + "beat" }

// Settings names the key of the settings of the whole cluster.
func (k Keys) Settings() string { return string(k) + "settings" }

// Layouts is the prefix of the history of layouts.
func (k Keys) Layouts() string { return string(k) + "layouts/" }

// LayoutAt names the key of a layout of the history.
func (k Keys) LayoutAt(version int64) string { return k.Layouts() + padded(version) }

// Tags is the prefix of all tags.
func (k Keys) Tags() string { return string(k) + "tags/" }

// Tag names the key of a tag's settings.
func (k Keys) Tag(tag allocator.Tag) string { return k.Tags() + string(tag) }

// ParseTag returns the tag of a key. Its error is Invalid.
func (k Keys) ParseTag(key string) (allocator.Tag, error) {
	return allocator.ParseTag(strings.TrimPrefix(key, k.Tags()))
}

// ofRoom returns the prefix of a kind's keys of one room, or of all rooms.
func (k Keys) ofRoom(kind string, room allocator.Room) string {
	if room == "" {
		return string(k) + kind + "/"
	}
	return string(k) + kind + "/" + string(room) + "/"
}

// Marks is the prefix of a room's marks, or of all marks if room is empty.
func (k Keys) Marks(room allocator.Room) string { return k.ofRoom("marks", room) }

// Mark names the key of a room's mark of a tag.
func (k Keys) Mark(room allocator.Room, tag allocator.Tag) string {
	return k.Marks(room) + string(tag)
}

// Registrations is the prefix of a room's registered instances, or of all if room is empty.
func (k Keys) Registrations(room allocator.Room) string { return k.ofRoom("rooms", room) }

// Registration names the key of an instance's registration.
func (k Keys) Registration(room allocator.Room, name allocator.Instance) string {
	return k.Registrations(room) + string(name)
}

// Heartbeats is the prefix of a room's heartbeats, or of all if room is empty.
func (k Keys) Heartbeats(room allocator.Room) string { return k.ofRoom("alive", room) }

// Alive names the key of an instance's heartbeat.
func (k Keys) Alive(room allocator.Room, name allocator.Instance) string {
	return k.Heartbeats(room) + string(name)
}

// Tokens is the prefix of a room's tokens of what its instances kept, or of all if room is empty.
func (k Keys) Tokens(room allocator.Room) string { return k.ofRoom("kept", room) }

// Token names the key of the token of what a process of an instance kept.
func (k Keys) Token(room allocator.Room, name allocator.Instance) string {
	return k.Tokens(room) + string(name)
}

// Consoles is the prefix of the processes of consoles that `march recover` asks for their mirrors.
func (k Keys) Consoles() string { return string(k) + "consoles/" }

// Console names the key of a console's process.
func (k Keys) Console(ulid string) string { return k.Consoles() + ulid }

// Windows is the prefix of a room's windows of workers, or of all rooms' if room is empty.
func (k Keys) Windows(room allocator.Room) string { return k.ofRoom("windows", room) }

// Window names the key of a room's window of a worker. It pads the number to 19 digits, so that a
// slice of workers is one interval of keys.
func (k Keys) Window(room allocator.Room, id WorkerID) string { return k.Windows(room) + id.Padded() }

// Holders is the prefix of a room's holders of ordered tags, or of all if room is empty.
func (k Keys) Holders(room allocator.Room) string { return k.ofRoom("holders", room) }

// Holder names the key of the holder of an ordered tag in a room.
func (k Keys) Holder(room allocator.Room, tag allocator.Tag) string {
	return k.Holders(room) + string(tag)
}

// Workers is the prefix of the keys that all rooms wrote for workers before the formats of
// generation 2.
func (k Keys) Workers() string { return string(k) + "workers/" }

// Worker names the key of a worker that all rooms wrote before the formats of generation 2.
func (k Keys) Worker(id WorkerID) string { return k.Workers() + id.Padded() }

// HasWindow reports whether a key is one of a worker.
func (k Keys) HasWindow(key string) bool {
	return strings.HasPrefix(key, k.Windows("")) || strings.HasPrefix(key, k.Workers())
}

// Clients is the prefix of a room's machine IDs of CosId's clients, or of all rooms' if room is
// empty.
func (k Keys) Clients(room allocator.Room) string { return k.ofRoom("clients", room) }

// Client names the key of a room's machine ID, padded as in Window.
func (k Keys) Client(room allocator.Room, id WorkerID) string { return k.Clients(room) + id.Padded() }

// Machines is the prefix of the machine IDs that all rooms wrote before the formats of
// generation 2.
func (k Keys) Machines() string { return string(k) + "machines/" }

// Machine names the key of a machine ID that all rooms wrote before the formats of generation 2.
func (k Keys) Machine(id WorkerID) string { return k.Machines() + id.Padded() }

// Audits is the prefix of the audit entries, which sort by time.
func (k Keys) Audits() string { return string(k) + "audit/" }

// Audit names the key of an audit entry.
func (k Keys) Audit(ulid string) string { return k.Audits() + ulid }

// Refusals is the prefix of the entries of refused calls, which sort by time.
func (k Keys) Refusals() string { return string(k) + "refusals/" }

// Rings are the prefixes of the entries of the audit: of changes and of refusals.
func (k Keys) Rings() []string { return []string{k.Audits(), k.Refusals()} }

// IsRing reports whether the keys of a kind are entries of the audit.
func IsRing(kind string) bool { return kind == "audit" || kind == "refusals" }

// Oldest names the key that says from where on the entries of a ring are kept.
func (k Keys) Oldest(ring string) string {
	return string(k) + "oldest/" + strings.TrimSuffix(strings.TrimPrefix(ring, string(k)), "/")
}

// Migrations is the prefix of the migrations, which sort by time.
func (k Keys) Migrations() string { return string(k) + "migrations/" }

// Migration names the key of a migration.
func (k Keys) Migration(ulid string) string { return k.Migrations() + ulid }

// ActiveMigration names the one migration that is under way.
func (k Keys) ActiveMigration() string { return string(k) + "migration" }

// padded returns a version or a worker's number with 19 digits, so that etcd lists them
// in order.
func padded(n int64) string { return fmt.Sprintf("%019d", n) }

// Padded returns the worker as the end of its key.
func (id WorkerID) Padded() string { return fmt.Sprintf("%02d/%s", id.Bits, padded(id.Number)) }

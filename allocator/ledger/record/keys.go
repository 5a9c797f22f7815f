// Package record defines everything that March stores in etcd. It has the keys of a
// cluster. For each kind of key it has the struct, its encoding, and the checks that a
// value must pass before the program believes it. Package ledger, which is the protocol,
// decides when a value may be written.
//
// All keys are under /march/<cluster>/. Values are JSON, with int64 as strings. Each value
// carries a format number: the lowest format that can hold it. A reader that needs a value
// of an unknown format fails; a reader that lists values passes over it and names its key.
// Unknown fields are kept when a value is written again. In marks, workers, machines, tokens,
// holders, layouts and the epoch, which say which IDs may be issued, an unknown field is refused.
// So two versions of the program can run beside each other.
package record

import (
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
func (k Keys) Identity() string { return k.key(IdentityKey, KeyParts{}) }

// Epoch names the key that every lease compares.
func (k Keys) Epoch() string { return k.key(EpochKey, KeyParts{}) }

// Answered names the key of the processes whose memory the last recover used.
func (k Keys) Answered() string { return k.key(AnsweredKey, KeyParts{}) }

// Layout names the key of the layout in force.
func (k Keys) Layout() string { return k.key(LayoutKey, KeyParts{}) }

// Beat names the key that says how far etcd's raft log was.
func (k Keys) Beat() string { return k.key(BeatKey, KeyParts{}) }

// Settings names the key of the settings of the whole cluster.
func (k Keys) Settings() string { return k.key(SettingsKey, KeyParts{}) }

// ActiveMigration names the one migration that is under way.
func (k Keys) ActiveMigration() string { return k.key(MigrationKey, KeyParts{}) }

// LayoutAt names the key of a layout of the history.
func (k Keys) LayoutAt(version int64) string { return k.key(Layouts, KeyParts{version: version}) }

// Tag names the key of a tag's settings.
func (k Keys) Tag(tag allocator.Tag) string { return k.key(Tags, KeyParts{Tag: tag}) }

// Mark names the key of a room's mark of a tag.
func (k Keys) Mark(room allocator.Room, tag allocator.Tag) string {
	return k.key(Marks, KeyParts{Room: room, Tag: tag})
}

// Registration names the key of an instance's registration.
func (k Keys) Registration(room allocator.Room, name allocator.Instance) string {
	return k.key(Registrations, KeyParts{Room: room, Instance: name})
}

// Alive names the key of an instance's heartbeat.
func (k Keys) Alive(room allocator.Room, name allocator.Instance) string {
	return k.key(Heartbeats, KeyParts{Room: room, Instance: name})
}

// Token names the key of the token of what a process of an instance kept.
func (k Keys) Token(room allocator.Room, name allocator.Instance) string {
	return k.key(Tokens, KeyParts{Room: room, Instance: name})
}

// Console names the key of a console's process.
func (k Keys) Console(ulid string) string { return k.key(Consoles, KeyParts{ulid: ulid}) }

// Window names the key of a room's window of a worker.
func (k Keys) Window(room allocator.Room, id WorkerID) string {
	return k.key(Windows, KeyParts{Room: room, Worker: id})
}

// Client names the key of a room's machine ID.
func (k Keys) Client(room allocator.Room, id WorkerID) string {
	return k.key(Clients, KeyParts{Room: room, Worker: id})
}

// Holder names the key of the holder of an ordered tag in a room, or of all rooms if room is empty.
func (k Keys) Holder(room allocator.Room, tag allocator.Tag) string {
	if room == "" {
		return k.key(Orders, KeyParts{Tag: tag})
	}
	return k.key(Holders, KeyParts{Room: room, Tag: tag})
}

// Worker names the key of a worker that all rooms wrote before the formats of generation 2.
func (k Keys) Worker(id WorkerID) string { return k.key(Workers, KeyParts{Worker: id}) }

// Machine names the key of a machine ID that all rooms wrote before the formats of generation 2.
func (k Keys) Machine(id WorkerID) string { return k.key(Machines, KeyParts{Worker: id}) }

// Migration names the key of a migration.
func (k Keys) Migration(ulid string) string { return k.key(Migrations, KeyParts{ulid: ulid}) }

// Rings are the prefixes of the entries of the audit: of changes and of refusals.
func (k Keys) Rings() []string { return []string{k.All(Audits), k.All(Refusals)} }

// Oldest names the key that says from where on the entries of a ring are kept.
func (k Keys) Oldest(ring string) string {
	return k.key(OldestKeys, KeyParts{ring: strings.TrimSuffix(strings.TrimPrefix(ring, string(k)), "/")})
}

// Tag returns the tag of a key with settings or a mark, or "" for any other key.
func (e *KeyError) Tag() allocator.Tag {
	cluster, _, _ := strings.Cut(strings.TrimPrefix(e.Key, root), "/")
	keys, err := NewKeys(cluster)
	if err != nil {
		return ""
	}
	p, err := keys.Parse(e.Key)
	if err != nil {
		return ""
	}
	return p.Tag
}

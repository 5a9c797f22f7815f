package record

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// A Kind is a kind of keys: the first part of them.
type Kind string

// The kinds. An instance has its registration and its heartbeat in keys of its room. Workers and Machines are the
// windows and the clients of all rooms before the formats of generation 2.
const (
	IdentityKey  Kind = "identity"
	EpochKey     Kind = "epoch"
	LayoutKey    Kind = "layout"
	AnsweredKey  Kind = "answered"
	BeatKey      Kind = "beat"
	SettingsKey  Kind = "settings"
	MigrationKey Kind = "migration"

	Layouts       Kind = "layouts"
	Tags          Kind = "tags"
	Marks         Kind = "marks"
	Registrations Kind = "rooms"
	Heartbeats    Kind = "alive"
	Tokens        Kind = "kept"
	Consoles      Kind = "consoles"
	Windows       Kind = "windows"
	Clients       Kind = "clients"
	Holders       Kind = "holders"
	Orders        Kind = "orders"
	Workers       Kind = "workers"
	Machines      Kind = "machines"
	Migrations    Kind = "migrations"
	Audits        Kind = "audit"
	Refusals      Kind = "refusals"
	OldestKeys    Kind = "oldest"
)

// kind is what is known of the keys of a kind.
type kind struct {
	name  Kind
	parts []part // the parts after the first; none if the kind has a single key
	read  func(KeyParts, store.KV) (any, error)

	byRoom    bool // rooms write its keys: each its own ones if the keys name a room
	byConsole bool // consoles write its keys
	kept      bool // a key of the kind, once written, is never deleted
	passes    bool // its keys only say that something lives or is under way
	old       bool // no room writes its keys once the formats of generation 2 are turned on
}

// kinds are all kinds of keys. What a damaged key stops is in damages.
var kinds = []kind{
	{name: IdentityKey, read: reads[Identity], byConsole: true, kept: true},
	{name: EpochKey, read: reads[Epoch], byRoom: true, byConsole: true, kept: true},
	{name: LayoutKey, read: readLayout, byConsole: true, kept: true},
	{name: AnsweredKey, read: reads[Answered]},
	{name: BeatKey, read: reads[Beat], byRoom: true, byConsole: true, passes: true},
	{name: SettingsKey, read: reads[ClusterSettings], byConsole: true},
	{name: MigrationKey, read: reads[ActiveMigration], byConsole: true, passes: true},
	{name: Layouts, parts: []part{ofVersion}, read: readLayout, byConsole: true},
	{name: Tags, parts: []part{ofTag}, read: readTag, byConsole: true},
	{name: Marks, parts: []part{ofRoom, ofTag}, read: readMark, byRoom: true, byConsole: true, kept: true},
	{name: Registrations, parts: []part{ofRoom, ofInstance}, read: readInstance, byRoom: true, byConsole: true},
	{name: Heartbeats, parts: []part{ofRoom, ofInstance}, read: reads[Heartbeat], byRoom: true, byConsole: true,
		passes: true},
	{name: Tokens, parts: []part{ofRoom, ofInstance}, read: reads[Token], byRoom: true},
	{name: Consoles, parts: []part{ofULID}, read: reads[Console], byConsole: true, passes: true},
	{name: Windows, parts: []part{ofRoom, ofWidth, ofNumber}, read: readWindow, byRoom: true, kept: true},
	{name: Clients, parts: []part{ofRoom, ofWidth, ofNumber}, read: reads[Machine], byRoom: true, kept: true},
	{name: Holders, parts: []part{ofRoom, ofTag}, read: readHolder, byRoom: true, kept: true},
	{name: Orders, parts: []part{ofTag}, read: readHolder, byRoom: true, kept: true},
	{name: Workers, parts: []part{ofWidth, ofNumber}, read: reads[Worker], byRoom: true, kept: true, old: true},
	{name: Machines, parts: []part{ofWidth, ofNumber}, read: reads[Machine], byRoom: true, kept: true, old: true},
	{name: Migrations, parts: []part{ofULID}, read: readMigration, byConsole: true},
	{name: Audits, parts: []part{ofULID}, read: readAudit, byRoom: true, byConsole: true},
	{name: Refusals, parts: []part{ofULID}, read: readAudit, byRoom: true, byConsole: true},
	{name: OldestKeys, parts: []part{ofRing}, read: reads[Oldest], byRoom: true, byConsole: true},
}

// row returns the row of a kind, the zero value if there is none.
func (name Kind) row() kind {
	at := slices.IndexFunc(kinds, func(is kind) bool { return is.name == name })
	if at < 0 {
		return kind{}
	}
	return kinds[at]
}

// OfWorkers reports whether the keys of a kind are windows of workers.
func (name Kind) OfWorkers() bool { return name == Windows || name == Workers }

// All is the prefix of the keys of a kind.
func (k Keys) All(of Kind) string { return string(k) + string(of) + "/" }

// In is the prefix of a room's keys of a kind, or of all rooms' if room is empty.
func (k Keys) In(room allocator.Room, of Kind) string {
	if room == "" {
		return k.All(of)
	}
	return k.All(of) + string(room) + "/"
}

// keys is the interval of the keys of a kind.
func (is kind) keys(k Keys) store.Interval {
	if len(is.parts) == 0 {
		return store.Interval{Key: string(k) + string(is.name)}
	}
	return store.Prefix(k.All(is.name))
}

// key makes the key of a kind with these parts.
func (k Keys) key(of Kind, p KeyParts) string { return k.keyOf(of.row(), p) }

func (k Keys) keyOf(is kind, p KeyParts) string {
	b := append([]byte(k), is.name...)
	for _, part := range is.parts {
		b = append(append(b, '/'), part.text(p)...)
	}
	return string(b)
}

// KindOf returns the kind of a key by its first part, "" if there is none.
func (k Keys) KindOf(key string) Kind { return k.rowOf(key).name }

func (k Keys) rowOf(key string) kind {
	rest, ok := strings.CutPrefix(key, string(k))
	if !ok {
		return kind{}
	}
	name, _, _ := strings.Cut(rest, "/")
	return Kind(name).row()
}

// Parse is the reverse of key. Its error is a KeyError.
func (k Keys) Parse(key string) (KeyParts, error) {
	is := k.rowOf(key)
	p := KeyParts{Kind: is.name}
	texts := strings.Split(strings.TrimPrefix(key, string(k)), "/")[1:]
	bad := is.name == "" || len(texts) != len(is.parts)
	for i := 0; !bad && i < len(texts); i++ {
		bad = is.parts[i].read(&p, texts[i]) != nil
	}
	if bad || k.keyOf(is, p) != key {
		return KeyParts{}, &KeyError{Key: key, Err: errors.New("not a key of this program")}
	}
	return p, nil
}

// Damage returns the parts of a key that cannot be read. Its kind has a slash and more where the key stops something
// else than the other keys of its kind: see package problem. version is that of the layout in force, 0 if it is not
// known, and migration the one that is under way. Processes read the layout of that version and the one before it.
func (k Keys) Damage(key string, version int64, migration string) KeyParts {
	p, _ := k.Parse(key)
	switch {
	case p.Kind == Layouts && p.version == version:
		p.Kind += "/in force"
	case p.Kind == Layouts && p.version == version-1:
		p.Kind += "/before it"
	case p.Kind == Migrations && p.ulid == migration:
		p.Kind += "/under way"
	}
	return p
}

// Read decodes a key and its value, of any kind: an Identity, Epoch, Layout, Answered, Beat,
// ClusterSettings, ActiveMigration, Tag, Mark, Instance, Heartbeat, Token, Console, Worker, Machine, Holder,
// Migration or AuditEntry. Its error is a KeyError.
func (k Keys) Read(kv store.KV) (KeyParts, any, error) {
	p, err := k.Parse(kv.Key)
	if err != nil {
		return p, nil, err
	}
	v, err := p.Kind.row().read(p, kv)
	return p, v, err
}

// ReadAs is Read for a key whose kind is known. With an error the value has what the key says.
func ReadAs[T any](k Keys, kv store.KV) (T, error) {
	_, v, err := k.Read(kv)
	is, _ := v.(T)
	return is, err
}

// Known returns the beginning of each kind's keys: the whole key, or a prefix that ends in a
// slash.
func (k Keys) Known() (all []string) {
	for _, is := range kinds {
		all = append(all, is.keys(k).Key)
	}
	return all
}

// DecodeTag reads a living tag. Its name comes from the key. Its error is NotFound if the tag was
// deleted, otherwise a KeyError.
func (k Keys) DecodeTag(kv store.KV) (Tag, error) {
	t, err := ReadAs[Tag](k, kv)
	if err == nil && !t.Deleted.IsZero() {
		return Tag{}, allocator.Errorf(allocator.NotFound, "tag %s does not exist: it was deleted at %s; "+
			"create it again with `march tag create %s`", t.Name, t.Deleted.UTC().Format(time.RFC3339), t.Name)
	}
	return t, err
}

// DecodeWorker reads a worker's key and value, and checks that they fit each other. Its error
// is a KeyError.
func (k Keys) DecodeWorker(kv store.KV) (WorkerID, Worker, error) {
	key, v, err := k.Read(kv)
	w, _ := v.(Worker)
	return key.Worker, w, err // the worker also if its value is damaged
}

// Lasting reports whether a key holds lasting data, and not only the sign that an instance
// runs.
func (k Keys) Lasting(key string) bool { return !k.rowOf(key).passes }

// Kept reports whether a key, once written, is never deleted.
func (k Keys) Kept(key string) bool { return k.rowOf(key).kept }

// Entry is the decoded content of a key and its value, for programs that record a cluster's history and check it later.
// Only the record of its kind is set, and none if the key was deleted.
type Entry struct {
	KeyParts

	Epoch        *Epoch
	Layout       *Layout // the current one, or one of the history
	Stored       *Tag    // a living tag as it is stored
	Tombstone    *Tag    // a deleted one
	Mark         *Mark
	Registration *Instance
	Token        *Token
	Lease        *Lease // a worker
	Migration    *Migration
	Holder       *Holder
}

// Entry reads a key and its value. A key without a mod revision was deleted. Its errors are
// Internal.
func (k Keys) Entry(kv store.KV) (e Entry, err error) {
	if e.KeyParts, err = k.Parse(kv.Key); err != nil || kv.ModRevision == 0 {
		return e, err
	}
	_, value, err := k.Read(kv)
	switch v := value.(type) {
	case Epoch:
		e.Epoch = &v
	case Layout:
		v.Revision = kv.ModRevision
		e.Layout = &v
	case Tag:
		if err == nil && v.Deleted.IsZero() {
			e.Stored = &v
		} else if err == nil {
			e.Tombstone = &v
		}
	case Mark:
		e.Mark = &v
	case Instance:
		e.Registration = &v
	case Token:
		e.Token = &v
	case Worker:
		e.Lease = &Lease{WorkerID: e.Worker, Worker: v}
	case Migration:
		e.Migration = &v
	case Holder:
		e.Holder = &v
	}
	return e, err
}

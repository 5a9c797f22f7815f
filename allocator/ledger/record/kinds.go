package record

import (
	"errors"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

type kind struct {
	name  string // the first part of its keys
	parts []part // the other parts; none if the kind has a single key
	read  func(KeyParts, store.KV) (any, error)

	byRoom    bool // rooms write its keys: each its own ones if the keys name a room
	byConsole bool // consoles write its keys
	kept      bool // a key of the kind, once written, is never deleted
	passes    bool // its keys only say that something lives or is under way
	old       bool // no room writes its keys once the formats of generation 2 are turned on
}

// kinds are all kinds of keys. What a damaged key stops is in damages.
var kinds = []kind{
	{name: "identity", read: reads[Identity], byConsole: true, kept: true},
	{name: "epoch", read: reads[Epoch], byRoom: true, byConsole: true, kept: true},
	{name: "layout", read: readLayout, byConsole: true, kept: true},
	{name: "answered", read: reads[Answered]},
	{name: "beat", read: reads[Beat], byRoom: true, byConsole: true, passes: true},
	{name: "settings", read: reads[ClusterSettings], byConsole: true},
	{name: "migration", read: reads[ActiveMigration], byConsole: true, passes: true},
	{name: "layouts", parts: []part{ofVersion}, read: readLayout, byConsole: true},
	{name: "tags", parts: []part{ofTag}, read: readTag, byConsole: true},
	{name: "marks", parts: []part{ofRoom, ofTag}, read: readMark, byRoom: true, byConsole: true, kept: true},
	{name: "rooms", parts: []part{ofRoom, ofInstance}, read: readInstance, byRoom: true, byConsole: true},
	{name: "alive", parts: []part{ofRoom, ofInstance}, read: reads[Heartbeat], byRoom: true, byConsole: true,
		passes: true},
	{name: "kept", parts: []part{ofRoom, ofInstance}, read: reads[Token], byRoom: true},
	{name: "consoles", parts: []part{ofULID}, read: reads[Console], byConsole: true, passes: true},
	{name: "windows", parts: []part{ofRoom, ofWidth, ofNumber}, read: readWindow, byRoom: true, kept: true},
	{name: "clients", parts: []part{ofRoom, ofWidth, ofNumber}, read: reads[Machine], byRoom: true, kept: true},
	{name: "holders", parts: []part{ofRoom, ofTag}, read: readHolder, byRoom: true, kept: true},
	{name: "workers", parts: []part{ofWidth, ofNumber}, read: reads[Worker], byRoom: true, kept: true, old: true},
	{name: "machines", parts: []part{ofWidth, ofNumber}, read: reads[Machine], byRoom: true, kept: true, old: true},
	{name: "migrations", parts: []part{ofULID}, read: readMigration, byConsole: true},
	{name: "audit", parts: []part{ofULID}, read: readAudit, byRoom: true, byConsole: true},
	{name: "refusals", parts: []part{ofULID}, read: readAudit, byRoom: true, byConsole: true},
	{name: "oldest", parts: []part{ofRing}, read: reads[Oldest], byRoom: true, byConsole: true},
}

// kindOf returns the kind of a key by its beginning, the zero kind if there is none.
func (k Keys) kindOf(key string) kind {
	rest, ok := strings.CutPrefix(key, string(k))
	name, _, _ := strings.Cut(rest, "/")
	for _, is := range kinds {
		if ok && is.name == name {
			return is
		}
	}
	return kind{}
}

// Parse is the reverse of the methods that make keys: a key that it accepts equals the key that
// they make of its parts. Its error is a KeyError.
func (k Keys) Parse(key string) (KeyParts, error) {
	is := k.kindOf(key)
	p := KeyParts{Kind: is.name}
	texts := strings.Split(strings.TrimPrefix(key, string(k)), "/")[1:]
	bad := is.name == "" || len(texts) != len(is.parts)
	for i := 0; !bad && i < len(texts); i++ {
		bad = is.parts[i](&p, texts[i]) != nil
	}
	if bad {
		return KeyParts{}, &KeyError{Key: key, Err: errors.New("not a key of this program")}
	}
	return p, nil
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

// Damage returns the parts of a key that cannot be read. Its kind has a slash and more where the key stops something
// else than the other keys of its kind: see package problem. version is that of the layout in force, 0 if it is not
// known, and migration the one that is under way. Processes read the layout of that version and the one before it.
func (k Keys) Damage(key string, version int64, migration string) KeyParts {
	p, _ := k.Parse(key)
	switch {
	case p.Kind == "layouts" && p.version == version:
		p.Kind += "/in force"
	case p.Kind == "layouts" && p.version == version-1:
		p.Kind += "/before it"
	case p.Kind == "migrations" && p.ulid == migration:
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
	v, err := k.kindOf(kv.Key).read(p, kv)
	return p, v, err
}

// readAs is Read for a key of a known kind.
func readAs[T any](k Keys, kv store.KV) (T, error) {
	_, v, err := k.Read(kv)
	is, _ := v.(T)
	return is, err
}

// Known returns the beginning of each kind's keys: the whole key, or a prefix that ends in a
// slash.
func (k Keys) Known() (all []string) {
	for _, is := range kinds {
		if len(is.parts) > 0 {
			is.name += "/"
		}
		all = append(all, string(k)+is.name)
	}
	return all
}

// ParseAudit reads an audit entry. Its error is a KeyError.
func (k Keys) ParseAudit(kv store.KV) (AuditEntry, error) { return readAs[AuditEntry](k, kv) }

// ParseInstance reads a registration. With an error the record has only the name, if the key
// has one.
func (k Keys) ParseInstance(kv store.KV) (Instance, error) { return readAs[Instance](k, kv) }

// DecodeHistory reads a layout of the history.
func (k Keys) DecodeHistory(kv store.KV) (Layout, error) { return readAs[Layout](k, kv) }

// ParseMigration reads a migration. The ID comes from its key.
func (k Keys) ParseMigration(kv store.KV) (Migration, error) { return readAs[Migration](k, kv) }

// DecodeTag reads a living tag. Its name comes from the key. Its error is NotFound if the tag was
// deleted, otherwise a KeyError.
func (k Keys) DecodeTag(kv store.KV) (Tag, error) {
	t, err := k.DecodeLife(kv)
	if err == nil && !t.Deleted.IsZero() {
		return Tag{}, allocator.Errorf(allocator.NotFound, "tag %s does not exist: it was deleted at %s; "+
			"create it again with `march tag create %s`", t.Name, t.Deleted.UTC().Format(time.RFC3339), t.Name)
	}
	return t, err
}

// DecodeLife is DecodeTag for a tag that may be deleted.
func (k Keys) DecodeLife(kv store.KV) (Tag, error) { return readAs[Tag](k, kv) }

// DecodeHolder reads a key of Holders. Its error is a KeyError.
func (k Keys) DecodeHolder(kv store.KV) (Holder, error) { return readAs[Holder](k, kv) }

// DecodeWorker reads a worker's key and value, and checks that they fit each other. Its error
// is a KeyError.
func (k Keys) DecodeWorker(kv store.KV) (WorkerID, Worker, error) {
	key, v, err := k.Read(kv)
	w, _ := v.(Worker)
	return key.Worker, w, err // the worker also if its value is damaged
}

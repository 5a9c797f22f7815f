package record

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

type kind struct {
	name  string // the first part of its keys
	parts []part // the other parts; none if the kind has a single key

	kept   bool // a key of the kind, once written, is never deleted
	passes bool // its keys only say that something lives or is under way

	byRoom    bool // rooms write its keys: each its own ones if the keys name a room
	byConsole bool // consoles write its keys
	old       bool // no room writes its keys once the formats of generation 2 are turned on

	read   func(KeyParts, store.KV) (any, error)
	damage func(damaged) Damage
}

// kinds are all kinds of keys.
var kinds = []kind{
	{name: "identity", byConsole: true, kept: true, read: reads[Identity], damage: always(
		allLeasing+", and every change by a console; no process starts, and recover does not run",
		fromBackup+": the cluster's uuid must be the same", "")},
	{name: "epoch", byRoom: true, byConsole: true, kept: true, read: reads[Epoch], damage: damagedByRecover},
	{name: "layout", byConsole: true, kept: true, read: readLayout, damage: damagedByRecover},
	{name: "answered", read: reads[Answered], damage: always(
		"nothing; instances that have not entered the epoch count as left out of the last recover: "+
			"they drop what they hold and compare their marks",
		"leave it: the next recover writes it again", "")},
	{name: "beat", byRoom: true, byConsole: true, passes: true, read: reads[Beat], damage: always(
		allLeasing+", and every change by a console",
		"if etcd was certainly not restored, delete the key: it is written again at once; or else recover",
		"march recover")},
	{name: "settings", byConsole: true, read: reads[ClusterSettings], damage: always(allLeasing, fmt.Sprintf(
		"put {%q:%d,%q:%q,%q:%q} there, or %q if no journal is required",
		"format", baseFormat, "journal", journalRequired, "nonce", "", journalOptional), "")},
	{name: "migration", byConsole: true, passes: true, read: reads[ActiveMigration], damage: always(
		"migrations: the one that is under way does not go on, and no other starts", fmt.Sprintf(
			"put {%q:%d,%q:%q} there, of the running one in the list of migrations; delete the key if there is none",
			"format", baseFormat, "name", "ID"), "march migrate list")},
	{name: "layouts", byConsole: true, parts: []part{ofVersion}, read: readLayout, damage: damagedHistory},
	{name: "tags", byConsole: true, parts: []part{ofTag}, read: readTag, damage: damagedTag},
	{name: "marks", byRoom: true, byConsole: true, parts: []part{ofRoom, ofTag}, kept: true,
		read: readMark, damage: damagedMark},
	{name: "rooms", byRoom: true, byConsole: true, parts: []part{ofRoom, ofInstance}, read: readInstance,
		damage: damagedRegistration},
	{name: "alive", byRoom: true, byConsole: true, parts: []part{ofRoom, ofInstance}, passes: true,
		read: reads[Heartbeat], damage: damagedHeartbeat},
	{name: "consoles", byConsole: true, parts: []part{ofULID}, passes: true, read: reads[Console], damage: always(
		"nothing; `march recover` asks this console only if it is named (--console)",
		"delete the key: a console that runs writes it again", "")},
	{name: "windows", byRoom: true, parts: []part{ofRoom, ofWidth, ofNumber}, kept: true,
		read: readWindow, damage: damagedWorker},
	{name: "clients", byRoom: true, parts: []part{ofRoom, ofWidth, ofNumber}, kept: true,
		read: reads[Machine], damage: damagedMachine},
	{name: "workers", byRoom: true, old: true, parts: []part{ofWidth, ofNumber}, kept: true,
		read: reads[Worker], damage: damagedWorker},
	{name: "machines", byRoom: true, old: true, parts: []part{ofWidth, ofNumber}, kept: true,
		read: reads[Machine], damage: damagedMachine},
	{name: "migrations", byConsole: true, parts: []part{ofULID}, read: readMigration, damage: damagedMigration},
	{name: "audit", byRoom: true, byConsole: true, parts: []part{ofULID}, read: readAudit,
		damage: always(onlyLists, oldKey, "")},
	{name: "refusals", byRoom: true, byConsole: true, parts: []part{ofULID}, read: readAudit,
		damage: always(onlyLists, oldKey, "")},
	{name: "oldest", byRoom: true, byConsole: true, parts: []part{ofRing}, read: reads[Oldest], damage: always(
		"nothing but `march audit verify`, and the removal of old entries of the audit",
		"delete the key: the next process that removes old entries writes it again", "march audit verify")},
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

// Read decodes a key and its value, of any kind: an Identity, Epoch, Layout, Answered, Beat,
// ClusterSettings, ActiveMigration, Tag, Mark, Instance, Heartbeat, Console, Worker, Machine, Migration
// or AuditEntry. Its error is a KeyError.
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

// Damage returns the Damage of an unreadable key, given the version of the layout in force, 0
// if that is not known. The script damage.txt of package ledger compares it with the behaviour of a
// cluster.
func (k Keys) Damage(key string, version int64, migration string) Damage {
	p, err := k.Parse(key)
	if err != nil {
		return Damage{"nothing; lists name it", "delete the key, if no newer version of March wrote it", ""}
	}
	return k.kindOf(key).damage(damaged{p, key[len(k):], version, migration})
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

// DecodeWorker reads a worker's key and value, and checks that they fit each other. Its error
// is a KeyError.
func (k Keys) DecodeWorker(kv store.KV) (WorkerID, Worker, error) {
	key, v, err := k.Read(kv)
	w, _ := v.(Worker)
	return key.Worker, w, err // the worker also if its value is damaged
}

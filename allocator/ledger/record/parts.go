package record

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// KeyParts is a key's kind and the names in it.
type KeyParts struct {
	Kind     Kind // the part after the prefix
	Room     allocator.Room
	Tag      allocator.Tag
	Instance allocator.Instance
	Worker   WorkerID
	version  int64
	ulid     string
	ring     string
}

// part is a part of a key: how it is read, and what it is. Parse refuses a text that is read as something else.
type part struct {
	read func(p *KeyParts, text string) error
	text func(KeyParts) string
}

var (
	ofRoom = part{func(p *KeyParts, text string) (err error) {
		p.Room, err = allocator.ParseRoom(text)
		return err
	}, func(p KeyParts) string { return string(p.Room) }}

	ofTag = part{func(p *KeyParts, text string) (err error) {
		p.Tag, err = allocator.ParseTag(text)
		return err
	}, func(p KeyParts) string { return string(p.Tag) }}

	ofInstance = part{func(p *KeyParts, text string) (err error) {
		p.Instance, err = allocator.ParseInstance(text)
		return err
	}, func(p KeyParts) string { return string(p.Instance) }}

	ofULID = part{func(p *KeyParts, text string) (err error) {
		p.ulid = text
		_, err = ulid.ParseStrict(text)
		return err
	}, func(p KeyParts) string { return p.ulid }}

	ofRing = part{func(p *KeyParts, text string) error {
		if p.ring = text; !IsRing(Kind(text)) {
			return errors.New("not a ring")
		}
		return nil
	}, func(p KeyParts) string { return p.ring }}

	ofVersion = part{func(p *KeyParts, text string) (err error) {
		p.version, err = strconv.ParseInt(text, 10, 64)
		if err == nil && p.version < 0 {
			err = errors.New("not a version")
		}
		return err
	}, func(p KeyParts) string { return padded(p.version) }}

	ofWidth = part{func(p *KeyParts, text string) (err error) {
		p.Worker.Bits, err = strconv.Atoi(text)
		return err
	}, func(p KeyParts) string { return fmt.Sprintf("%02d", p.Worker.Bits) }}

	ofNumber = part{func(p *KeyParts, text string) (err error) {
		p.Worker.Number, err = strconv.ParseInt(text, 10, 64)
		if err == nil && !p.Worker.Valid() {
			err = errors.New("there is no such worker")
		}
		return err
	}, func(p KeyParts) string { return padded(p.Worker.Number) }}
)

// IsRing reports whether the keys of a kind are entries of the audit.
func IsRing(kind Kind) bool { return kind == Audits || kind == Refusals }

// padded returns a version or a worker's number with 19 digits, so that etcd lists them in order, and a slice of
// workers is one interval of keys.
func padded(n int64) string { return fmt.Sprintf("%019d", n) }

// Padded returns the worker as the end of its key.
func (id WorkerID) Padded() string {
	p := KeyParts{Worker: id}
	return ofWidth.text(p) + "/" + ofNumber.text(p)
}

// reads decodes a value that does not depend on its key.
func reads[T any, P interface {
	*T
	Value
}](_ KeyParts, kv store.KV) (any, error) {
	v, err := decode[T, P](kv)
	return v, err
}

func readAudit(key KeyParts, kv store.KV) (any, error) {
	e, err := decode[AuditEntry](kv)
	e.ID, e.Hash = key.ulid, HashOf(kv.Value)
	return e, err
}

func readInstance(key KeyParts, kv store.KV) (any, error) {
	i := Instance{Room: key.Room, Name: key.Instance, RegistrationKV: kv}
	i.Unreadable = Decode(kv, &i.Registration)
	return i, i.Unreadable
}

func readLayout(key KeyParts, kv store.KV) (any, error) {
	r, err := DecodeLayout(kv)
	if err == nil && key.Kind == Layouts && r.Version != key.version {
		err = impossible(kv.Key, "holds version %d", r.Version)
	}
	return r, err
}

func readMark(_ KeyParts, kv store.KV) (any, error) { return DecodeMark(kv) }

// readWindow reads a window under its room: one that names another room is none of that room's.
func readWindow(key KeyParts, kv store.KV) (any, error) {
	w, err := decode[Worker](kv)
	if err == nil && w.Room != key.Room {
		err = impossible(kv.Key, "holds a window of room %s", w.Room)
	}
	return w, err
}

// readHolder reads the key of a room, or that of all rooms, which has the holder's.
func readHolder(key KeyParts, kv store.KV) (any, error) {
	h, err := decode[Holder](kv)
	if err == nil && (h.Room == "") != (key.Kind == Holders) {
		err = impossible(kv.Key, "holds room %q", h.Room)
	}
	h.KV = kv
	return h, err
}

func readMigration(key KeyParts, kv store.KV) (any, error) {
	m, err := decode[Migration](kv)
	m.ID, m.KV = key.ulid, kv
	return m, err
}

func readTag(key KeyParts, kv store.KV) (any, error) {
	t, err := decode[Tag](kv)
	t.Name, t.KV = key.Tag, kv
	if t.Time != nil {
		settings := DefaultTag()
		settings.Time, settings.Format, settings.KeyCheck = t.Time, t.Format, t.KeyCheck
		t.TagSettings = settings
	}
	return t, err
}

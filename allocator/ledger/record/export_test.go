package record

import (
	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// ULIDAt returns a new ULID of a time in milliseconds.
var ULIDAt = ulidAt

// Decoders decode each kind of value and encode it again.
var Decoders = map[string]func([]byte) ([]byte, error){
	"identity":     again[Identity],
	"epoch":        again[Epoch],
	"layout":       again[Layout],
	"tag":          again[Tag],
	"mark":         again[Mark],
	"registration": again[Registration],
	"alive":        again[Heartbeat],
	"console":      again[Console],
	"worker":       again[Worker],
	"audit":        again[AuditEntry],
	"machine":      again[Machine],
	"oldest":       again[Oldest],
	"answered":     again[Answered],
	"beat":         again[Beat],
	"settings":     again[ClusterSettings],
	"migration":    again[Migration],
	"holder":       again[ActiveMigration],
	"tenure":       again[Holder],
}

// newerValue is a kind of value that later got a second format.
type newerValue struct {
	kept
	Name  string `json:"name"`
	Count int64  `json:"count,string,omitempty"`
}

func (v *newerValue) format() int {
	if v.Count != 0 {
		return 3
	}
	return baseFormat
}

// DecodeNewer decodes it, and encodes it again.
var DecodeNewer = again[newerValue]

func again[V any, P interface {
	*V
	Value
}](b []byte) ([]byte, error) {
	v := P(new(V))
	if err := Decode(store.KV{Key: "test", Value: b}, v); err != nil {
		return nil, err
	}
	return Encode(v), nil
}

// AgainMark, AgainLayout and AgainTag export the decoders that check a value and encode it
// again.
func AgainMark(b []byte) (Mark, []byte, error) {
	m, err := DecodeMark(store.KV{Key: "test", Value: b})
	return m, m.Encode(), err
}

func AgainLayout(b []byte) (Layout, []byte, error) {
	r, err := DecodeLayout(store.KV{Key: "test", Value: b})
	return r, r.Encode(r.Nonce), err
}

func AgainTag(b []byte) (Tag, []byte, error) {
	t, err := Keys("/march/default/").DecodeTag(store.KV{Key: "/march/default/tags/test", Value: b})
	return t, t.Encode(t.Nonce), err
}

// Key is the parts of a key.
type Key = KeyParts

// ParseKey parses a key of cluster "default".
func ParseKey(key string) (Key, error) { return Keys("/march/default/").Parse(key) }

// MakeKeys makes every key that these parts can make.
func MakeKeys(room allocator.Room, tag allocator.Tag, name allocator.Instance, version int64,
	ulid string) map[Kind]string {
	k := Keys("/march/default/")
	return map[Kind]string{
		"identity": k.Identity(), "epoch": k.Epoch(), "layout": k.Layout(), "settings": k.Settings(),
		"layouts": k.LayoutAt(version), "tags": k.Tag(tag),
		"marks": k.Mark(room, tag), "rooms": k.Registration(room, name), "alive": k.Alive(room, name),
		"audit": k.All(Audits) + ulid, "refusals": k.All(Refusals) + ulid, "consoles": k.Console(ulid),
	}
}

// Parts returns the parts of a key.
func Parts(k Key) (kind Kind, room allocator.Room, tag allocator.Tag, name allocator.Instance,
	version int64, ulid string) {
	return k.Kind, k.Room, k.Tag, k.Instance, k.version, k.ulid
}

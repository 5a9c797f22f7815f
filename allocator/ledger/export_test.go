package ledger

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
)

// CheckVersion opens the check of an etcd server's version.
var CheckVersion = checkVersion

// Answered notes an answer.
var Answered = (*Contact).answered

// HeartbeatTTL is how long a heartbeat outlives its sender.
const HeartbeatTTL = heartbeatTTL

// Decoders decode each kind of value and encode it again.
var Decoders = map[string]func([]byte) ([]byte, error){
	"identity":     again[identityValue],
	"epoch":        again[epochValue],
	"layout":       again[layoutValue],
	"tag":          again[tagValue],
	"mark":         again[markValue],
	"era":          again[endedEraValue],
	"registration": again[registrationValue],
	"alive":        again[aliveValue],
	"silent":       again[silentValue],
	"audit":        again[auditValue],
	"beat":         again[beatValue],
	"settings":     again[settingsValue],
}

func again[V any, P interface {
	*V
	value
}](b []byte) ([]byte, error) {
	v := P(new(V))
	if err := decode(KV{Key: "test", Value: b}, v); err != nil {
		return nil, err
	}
	return encode(v), nil
}

// DecodeMark, DecodeEra and DecodeLayout open the decoders that check what
// they decode, and encode it again.
func DecodeMark(b []byte) (Mark, []byte, error) {
	m, err := decodeMark(KV{Key: "test", Value: b})
	return m, m.encode(), err
}

func DecodeEra(b []byte) (Era, []byte, error) {
	e, err := decodeEra(KV{Key: "test", Value: b})
	return e, e.encode(), err
}

func DecodeLayout(b []byte) (LayoutRecord, []byte, error) {
	r, nonce, err := decodeLayoutNonce(KV{Key: "test", Value: b})
	return r, r.encode(nonce), err
}

func DecodeTag(b []byte) (Tag, []byte, error) {
	l := &Ledger{keys: "/march/default/"}
	t, err := l.decodeTag(KV{Key: "/march/default/tags/test", Value: b})
	return t, t.encode(t.nonce), err
}

// Key is a key in its parts.
type Key = keyParts

// ParseKey parses a key of cluster "default".
func ParseKey(key string) (Key, error) { return keys("/march/default/").parse(key) }

// MakeKeys makes every key that there is of the parts.
func MakeKeys(room allocator.Room, tag allocator.Tag, name allocator.Instance, version int64, ulid string) map[string]string {
	k := keys("/march/default/")
	return map[string]string{
		"identity": k.identity(), "epoch": k.epoch(), "layout": k.layout(), "settings": k.settings(), "layouts": k.layoutAt(version), "tags": k.tag(tag),
		"marks": k.mark(room, tag), "eras": k.era(room, tag, version), "rooms": k.registration(room, name), "alive": k.alive(room, name), "silent": k.silent(room, name),
		"audit": k.audit(ulid),
	}
}

// Parts returns what key says.
func Parts(k Key) (kind string, room allocator.Room, tag allocator.Tag, name allocator.Instance, version int64, ulid string) {
	return k.kind, k.room, k.tag, k.instance, k.version, k.ulid
}

// VerifyPages is Verify with pages of a size.
func (l *Ledger) VerifyPages(ctx context.Context, page int64, progress func(VerifyProgress)) (VerifyReport, error) {
	return l.verify(ctx, page, progress)
}

// NewVersion is newVersion.
func NewVersion(known int64, at time.Time) int64 { return newVersion(known, at) }

// Uncheck has the next lease look before it is made.
func (l *Ledger) Uncheck() { l.uncheck() }

// RecallAcross holds a mark against what is remembered that was read before
// something came up, and whose answer came after it.
func (i *Instance) RecallAcross(meanwhile func(), tag allocator.Tag, next int64) (behind int64, ok bool) {
	before := i.ledger.before()
	meanwhile()
	return i.recall(before, tag, next)
}

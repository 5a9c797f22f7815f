package record

import (
	"encoding/json"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator/ledger/store"
)

// AuditEntry is one change, recorded in its own transaction.
type AuditEntry struct {
	ID       string // a ULID: entries sort by time
	Time     time.Time
	Actor    string
	Action   string // "create tag", say
	Object   string // the key without the cluster's prefix: "tags/order", say
	From, To string // what was stored before and after, as JSON; empty for nothing
}

// Audited returns the operation that records a change, to be part of the change's own
// transaction. from and to are the values of key object before and after, nil for none.
func (k Keys) Audited(at time.Time, actor, action, object string, from, to []byte) store.Op {
	return store.OpPut(k.Audit(ulid.Make().String()), Encode(&AuditValue{
		Time: at, Actor: actor, Action: action, Object: object[len(k):],
		From: asJSON(from), To: asJSON(to),
	}))
}

// asJSON returns a value as it is, and one that is no JSON, a slip by hand perhaps,
// as a text.
func asJSON(value []byte) json.RawMessage {
	if len(value) == 0 || json.Valid(value) {
		return value
	}
	text, _ := json.Marshal(string(value)) // a string can be encoded
	return text
}

// ParseAudit reads an audit entry. Its error is a KeyError.
func (k Keys) ParseAudit(kv store.KV) (AuditEntry, error) {
	key, err := k.Parse(kv.Key)
	if err != nil {
		return AuditEntry{}, err
	}
	var v AuditValue
	if err := Decode(kv, &v); err != nil {
		return AuditEntry{}, err
	}
	return AuditEntry{
		ID: key.ulid, Time: v.Time, Actor: v.Actor, Action: v.Action, Object: v.Object, From: string(v.From), To: string(v.To),
	}, nil
}

package record

import (
	"encoding/json"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
)

// AuditEntry is one change, recorded in its own transaction.
type AuditEntry struct {
	kept
	ID     string          `json:"-"` // a ULID, as the key has it: entries sort by time
	Time   time.Time       `json:"time"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"`         // "create tag", say
	Object string          `json:"object"`         // the key without the cluster's prefix: "tags/order", say
	From   json.RawMessage `json:"from,omitempty"` // the stored value before; empty for none
	To     json.RawMessage `json:"to,omitempty"`   // the stored value after
}

// Audited returns the operation that records a change, to be part of the change's own
// transaction. from and to are the values of key object before and after, nil for none.
func (k Keys) Audited(at time.Time, actor, action, object string, from, to []byte) store.Op {
	return store.OpPut(k.Audit(NewULID()), Encode(&AuditEntry{
		Time: at, Actor: actor, Action: action, Object: object[len(k):],
		From: asJSON(from), To: asJSON(to),
	}))
}

// asJSON returns a value unchanged, or as a JSON text if it is no JSON, perhaps after a slip by
// hand.
func asJSON(value []byte) json.RawMessage {
	if len(value) == 0 || json.Valid(value) {
		return value
	}
	text, _ := json.Marshal(string(value)) // a string can be encoded
	return text
}

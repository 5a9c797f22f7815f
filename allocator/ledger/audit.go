package ledger

import (
	"encoding/json"

	"github.com/oklog/ulid/v2"
)

// audit returns the operation that records a change, to be part of the
// change's own transaction. from and to are the values of key object before
// and after, nil for none.
func (l *Ledger) audit(actor, action, object string, from, to []byte) Op {
	return put(l.keys.audit(ulid.Make().String()), encode(&auditValue{
		Time: now(), Actor: actor, Action: action, Object: object[len(l.keys):],
		From: json.RawMessage(from), To: json.RawMessage(to),
	}))
}

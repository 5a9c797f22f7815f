package record

import (
	"time"

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

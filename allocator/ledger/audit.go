package ledger

import (
	"context"
	"encoding/json"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
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

// AuditEntry is one change, recorded in its own transaction.
type AuditEntry struct {
	ID       string // a ULID: entries sort by time
	Time     time.Time
	Actor    string
	Action   string // "create tag", say
	Object   string // the key without the cluster's prefix: "tags/order", say
	From, To string // what was stored before and after, as JSON; empty for nothing
}

// Audits returns up to n audit entries older than the one before, empty for no
// bound, the newest first.
func (l *Ledger) Audits(ctx context.Context, before string, n int) ([]AuditEntry, error) {
	if err := l.attach(ctx); err != nil {
		return nil, err
	}
	within := Interval{Key: l.keys.audits(), End: prefixEnd(l.keys.audits())}
	if before != "" {
		if _, err := ulid.ParseStrict(before); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "audit entry: %q is not an ID of one", before)
		}
		within.End = l.keys.audit(before)
	}
	answer, err := l.gets(ctx, Op{Get: &Get{Interval: within, Limit: int64(n), Descending: true}})
	if err != nil {
		return nil, err
	}
	entries := make([]AuditEntry, 0, len(answer.Got[0]))
	for _, kv := range answer.Got[0] {
		key, err := l.keys.parse(kv.Key)
		if err != nil {
			return nil, err
		}
		var v auditValue
		if err := decode(kv, &v); err != nil {
			return nil, err
		}
		entries = append(entries, AuditEntry{
			ID: key.ulid, Time: v.Time, Actor: v.Actor, Action: v.Action, Object: v.Object, From: string(v.From), To: string(v.To),
		})
	}
	return entries, nil
}

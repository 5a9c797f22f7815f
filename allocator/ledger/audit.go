package ledger

import (
	"context"
	"encoding/json"
	"slices"
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

// How far back Audits looks first, and by how much further each time; and how
// many entries beyond those that were asked for one look may find.
const (
	auditWindow = time.Second
	auditGrowth = 8
	auditSpare  = 100
)

// Audits returns up to n audit entries older than the one before, empty for no
// bound, the newest first.
//
// The simple way, to read the interval backwards with a limit, has etcd gather
// all of it first, which takes seconds where there are a hundred thousand
// entries. Their IDs begin with their time: so it looks back in windows that
// grow, forwards in each, and takes a smaller one where a window holds too many.
func (l *Ledger) Audits(ctx context.Context, before string, n int) ([]AuditEntry, error) {
	if err := l.attach(ctx); err != nil {
		return nil, err
	}
	from, end := now(), prefixEnd(l.keys.audits())
	if before != "" {
		id, err := ulid.ParseStrict(before)
		if err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "audit entry: %q is not an ID of one", before)
		}
		from, end = id.Timestamp().Add(time.Millisecond), l.keys.audit(before)
	}
	var entries []AuditEntry
	growth := auditGrowth
	for window := auditWindow; len(entries) < n; {
		start := from.Add(-window).Truncate(time.Millisecond)
		within := Interval{Key: l.keys.audits(), End: end}
		last := start.UnixMilli() <= 0
		if !last {
			var least ulid.ULID
			if err := least.SetTime(ulid.Timestamp(start)); err != nil {
				return nil, allocator.Errorf(allocator.Internal, "audit entries since %v: %w", start, err)
			}
			within.Key = l.keys.audit(least.String())
		}
		backwards := window == time.Millisecond // no smaller window
		most := n + auditSpare
		if backwards {
			most = n
		}
		answer, err := l.gets(ctx, Op{Get: &Get{Interval: within, Limit: int64(most), Descending: backwards}})
		if err != nil {
			return nil, err
		}
		found := answer.Got[0]
		if len(found) == most && !backwards { // and perhaps more, newer ones
			window = max(window/auditGrowth, time.Millisecond)
			growth = 2 // many are near
			continue
		}
		if !backwards {
			slices.Reverse(found)
		}
		for _, kv := range found[:min(len(found), n-len(entries))] {
			e, err := l.parseAudit(kv)
			if err != nil {
				return nil, err
			}
			entries = append(entries, e)
		}
		if last {
			break
		}
		from, end, window = start, within.Key, window*time.Duration(growth)
	}
	return entries, nil
}

func (l *Ledger) parseAudit(kv KV) (AuditEntry, error) {
	key, err := l.keys.parse(kv.Key)
	if err != nil {
		return AuditEntry{}, err
	}
	var v auditValue
	if err := decode(kv, &v); err != nil {
		return AuditEntry{}, err
	}
	return AuditEntry{
		ID: key.ulid, Time: v.Time, Actor: v.Actor, Action: v.Action, Object: v.Object, From: string(v.From), To: string(v.To),
	}, nil
}

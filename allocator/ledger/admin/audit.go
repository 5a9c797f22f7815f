package admin

import (
	"context"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// How far back Audits first looks, how much further each time, and how many entries
// more than requested one read may find.
const (
	auditWindow = time.Second
	auditGrowth = 8
	auditSpare  = 100
)

// Record adds an entry to the audit that is about no change: an attempt that was refused.
// object is a key without the cluster's prefix.
func (a *Admin) Record(ctx context.Context, actor, action, object string) error {
	if err := a.Ledger.Attach(ctx); err != nil {
		return err
	}
	_, err := a.Ledger.Change(ctx, store.Txn{Then: []store.Op{a.audit(actor, action, string(a.keys)+object, nil, nil)}})
	return err
}

// Audits returns up to n audit entries older than the one before, empty for no
// bound, the newest first, and the keys among them that cannot be read.
//
// The simple way would be to read the interval backwards with a limit. But etcd
// then gathers the whole interval first, which takes seconds with a hundred
// thousand entries. The entries' IDs begin with their time. So Audits goes back in
// windows that grow, reads each forwards, and takes a smaller window if one has too
// many entries.
func (a *Admin) Audits(ctx context.Context, before string,
	n int) (entries []record.AuditEntry, bad []record.KeyError, err error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, nil, err
	}
	from, end := a.now(), store.PrefixEnd(a.keys.Audits())
	if before != "" {
		id, err := ulid.ParseStrict(before)
		if err != nil {
			return nil, nil, allocator.Errorf(allocator.Invalid, "audit entry: %q is not an ID of one", before)
		}
		from, end = id.Timestamp().Add(time.Millisecond), a.keys.Audit(before)
	}
	growth := auditGrowth
	for window := auditWindow; len(entries) < n; {
		start := from.Add(-window).Truncate(time.Millisecond)
		within := store.Interval{Key: a.keys.Audits(), End: end}
		last := start.UnixMilli() <= 0
		if !last {
			var least ulid.ULID
			if err := least.SetTime(ulid.Timestamp(start)); err != nil {
				return nil, nil, allocator.Errorf(allocator.Internal, "audit entries since %v: %w", start, err)
			}
			within.Key = a.keys.Audit(least.String())
		}
		backwards := window == time.Millisecond // there is no smaller window
		most := n + auditSpare
		if backwards {
			most = n
		}
		answer, err := a.Ledger.Gets(ctx, store.Op{Get: &store.Get{Interval: within,
			Limit: int64(most), Descending: backwards}})
		if err != nil {
			return nil, nil, err
		}
		found := answer.Got[0]
		if len(found) == most && !backwards { // there may be more, newer ones
			window = max(window/auditGrowth, time.Millisecond)
			growth = 2 // entries are dense here
			continue
		}
		if !backwards {
			slices.Reverse(found)
		}
		for _, kv := range found {
			if len(entries) < n {
				page, skipped := record.ReadEach([]store.KV{kv}, a.keys.ParseAudit)
				entries, bad = append(entries, page...), append(bad, skipped...)
			}
		}
		if len(found) == most { // there may be more of this millisecond
			end = found[most-1].Key
			continue
		}
		if last {
			break
		}
		from, end, window = start, within.Key, window*time.Duration(growth)
	}
	return entries, bad[:min(len(bad), record.MaxUnreadable)], nil
}

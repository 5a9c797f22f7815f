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

// How far back Audits looks first, and by how much further each time; and how
// many entries beyond those that were asked for one probe may find.
const (
	auditWindow = time.Second
	auditGrowth = 8
	auditSpare  = 100
)

// Audits returns up to n audit entries older than the one before, empty for no
// bound, the newest first, and the keys among them that cannot be read.
//
// The simple way, to read the interval backwards with a limit, has etcd gather
// all of it first, which takes seconds where there are a hundred thousand
// entries. Their IDs begin with their time: so it looks back in windows that
// grow, forwards in each, and takes a smaller one where a window holds too many.
func (a *Admin) Audits(ctx context.Context, before string, n int) (entries []record.AuditEntry, bad []record.KeyError, err error) {
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
		backwards := window == time.Millisecond // no smaller window
		most := n + auditSpare
		if backwards {
			most = n
		}
		answer, err := a.Ledger.Gets(ctx, store.Op{Get: &store.Get{Interval: within, Limit: int64(most), Descending: backwards}})
		if err != nil {
			return nil, nil, err
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
		for _, kv := range found {
			if len(entries) < n {
				page, skipped := record.ReadEach([]store.KV{kv}, a.keys.ParseAudit)
				entries, bad = append(entries, page...), append(bad, skipped...)
			}
		}
		if len(found) == most { // and perhaps more of this millisecond
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

package admin

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// How far back entries first looks, how much further each time, and how many entries
// more than requested one read may find.
const (
	auditWindow = time.Second
	auditGrowth = 8
	auditSpare  = 100
	logoutsPage = 1000
)

// Record adds an entry to the audit that is about no change: an attempt that was refused.
// object is a key without the cluster's prefix.
func (a *Admin) Record(ctx context.Context, actor, action, object string) error {
	if err := a.Ledger.Attach(ctx); err != nil {
		return err
	}
	s, _ := a.Ledger.State()
	layout := s.Layout()
	if layout.Layout.Version == 0 { // nothing was read yet
		var err error
		if layout, err = a.Ledger.Refresh(ctx); err != nil {
			return err
		}
	}
	if layout.Upgraded() {
		_, err := a.Ledger.Change(ctx, store.Txn{Then: []store.Op{a.keys.Refused(a.now(), actor, action, object)}},
			a.keys.All(record.Refusals))
		return err
	}
	_, err := a.Ledger.Change(ctx, store.Txn{Then: []store.Op{a.audit(actor, action, string(a.keys)+object, nil, nil)}})
	return err
}

// How entries of logouts begin.
const (
	logout   = "log out"
	sessions = "sessions/"
)

// LoggedOut adds an entry to the audit that ends sessions of a subject.
func (a *Admin) LoggedOut(ctx context.Context, subject string, ids []ulid.ULID) error {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	_, err := a.Ledger.Change(ctx, store.Txn{Then: []store.Op{
		a.audit(subject, logout, string(a.keys)+sessions+strings.Join(texts, ","), nil, nil)}})
	return err
}

// Logouts returns by subject the sessions that ended in entries of the audit since a time, the oldest first.
func (a *view) Logouts(ctx context.Context, since time.Time) (map[string][]ulid.ULID, error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, err
	}
	var least ulid.ULID
	if err := least.SetTime(ulid.Timestamp(since)); err != nil {
		return nil, allocator.Errorf(allocator.Internal, "logouts since %v: %w", since, err)
	}
	of, ring := make(map[string][]ulid.ULID), a.keys.All(record.Audits)
	within := store.Interval{Key: ring + least.String(), End: store.PrefixEnd(ring)}
	for {
		answer, err := a.Ledger.Gets(ctx, store.Op{Get: &store.Get{Interval: within, Limit: logoutsPage}})
		if err != nil {
			return nil, err
		}
		found := answer.Got[0]
		// What cannot be read is named where the audit is.
		entries, _ := record.ReadEach(found, reads[record.AuditEntry](a))
		for _, e := range entries {
			ids, ok := strings.CutPrefix(e.Object, sessions)
			if !ok || e.Action != logout {
				continue
			}
			for text := range strings.SplitSeq(ids, ",") {
				if id, err := ulid.ParseStrict(text); err == nil {
					of[e.Actor] = append(of[e.Actor], id)
				}
			}
		}
		if len(found) < logoutsPage {
			return of, nil
		}
		within.Key = found[len(found)-1].Key + "\x00"
	}
}

// Audits returns up to n entries of changes and of refusals older than the one before, empty for no bound, the newest
// first, and the keys among them that cannot be read.
func (a *view) Audits(ctx context.Context, before string,
	n int) (entries []record.AuditEntry, bad []record.KeyError, err error) {
	rings := a.keys.Rings()
	of, unreadable := make([][]record.AuditEntry, len(rings)), make([][]record.KeyError, len(rings))
	var reading errgroup.Group // at once: each goes back to 1970 where it has few entries
	for k, ring := range rings {
		reading.Go(func() (err error) {
			of[k], unreadable[k], err = a.entries(ctx, ring, before, n)
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return nil, nil, err
	}
	entries, bad = slices.Concat(of...), slices.Concat(unreadable...)
	slices.SortFunc(entries, func(x, y record.AuditEntry) int { return strings.Compare(y.ID, x.ID) })
	return entries[:min(n, len(entries))], bad[:min(len(bad), record.MaxUnreadable)], nil
}

// entries is Audits of one ring.
//
// The simple way would be to read the interval backwards with a limit. But etcd
// then gathers the whole interval first, which takes seconds with a hundred
// thousand entries. The entries' IDs begin with their time. So entries goes back in
// windows that grow, reads each forwards, and takes a smaller window if one has too
// many entries.
func (a *view) entries(ctx context.Context, ring, before string,
	n int) (entries []record.AuditEntry, bad []record.KeyError, err error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, nil, err
	}
	from, end := a.now(), store.PrefixEnd(ring)
	if before != "" {
		id, err := ulid.ParseStrict(before)
		if err != nil {
			return nil, nil, allocator.Errorf(allocator.Invalid, "audit entry: %q is not an ID of one", before)
		}
		from, end = id.Timestamp().Add(time.Millisecond), ring+before
	}
	growth := auditGrowth
	for window := auditWindow; len(entries) < n; {
		start := from.Add(-window).Truncate(time.Millisecond)
		within := store.Interval{Key: ring, End: end}
		last := start.UnixMilli() <= 0
		if !last {
			var least ulid.ULID
			if err := least.SetTime(ulid.Timestamp(start)); err != nil {
				return nil, nil, allocator.Errorf(allocator.Internal, "audit entries since %v: %w", start, err)
			}
			within.Key = ring + least.String()
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
				page, skipped := record.ReadEach([]store.KV{kv}, reads[record.AuditEntry](a))
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
	return entries, bad, nil
}

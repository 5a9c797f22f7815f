package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Upgrade turns on the newest formats that this build knows, with a new version of the
// layout that has the same ranges, and writes the tombstones of tags that were deleted
// before (see bury). It may be called again. Its errors are Refused (see MayUpgrade), and
// those of ChangeLayout.
func (a *Admin) Upgrade(ctx context.Context, actor string) (record.Layout, error) {
	checked, err := a.Ledger.CheckWith(ctx)
	if err == nil {
		err = a.Ledger.Leasable()
	}
	if err != nil {
		return record.Layout{}, err
	}
	on, err := a.turnOn(ctx, checked.State, actor)
	if err == nil {
		err = a.bury(ctx, actor)
	}
	return on, err
}

func (a *Admin) turnOn(ctx context.Context, s *ledger.State, actor string) (record.Layout, error) {
	from := s.Layout()
	if from.Formats >= record.Formats {
		return from, nil
	}
	if err := a.MayUpgrade(ctx); err != nil {
		return record.Layout{}, err
	}
	stored := from.Next(from.Layout)
	stored.Formats = record.Formats
	if made, err := a.changeLayout(ctx, s, from, stored, actor,
		store.Txn{If: []store.Cond{store.Absent(a.keys.ActiveMigration())}}); err != nil {
		return made, err
	}
	return a.Ledger.Refresh(ctx)
}

// MayUpgrade returns nil if the newest formats may be turned on. Otherwise its error is
// Refused, and names the migration under way, or the instances whose builds do not know
// these formats: they would lease nothing afterwards. An instance that registers later
// leases nothing either, so the upgrade does not compare the registrations.
func (a *Admin) MayUpgrade(ctx context.Context) error {
	if m, active, err := a.ActiveMigration(ctx); err != nil {
		return err
	} else if active {
		return allocator.Errorf(allocator.Refused,
			"migration %s is under way: wait until it has ended, or abort it (`march migrate abort`)", m.ID)
	}
	instances, bad, err := a.Instances(ctx, "")
	if err != nil {
		return err
	}
	var behind []string
	for _, i := range instances {
		if i.Unreadable == nil && i.Knows() < record.Formats {
			behind = append(behind, fmt.Sprintf("%s (build %s)", i.ID(), i.Build))
		}
	}
	if len(behind) > 0 {
		return allocator.Errorf(allocator.Refused, "%s: not of a build that knows the formats %d: upgrade it first, "+
			"or, if it is gone for good, `march instance forget ROOM INSTANCE`", strings.Join(behind, ", "), record.Formats)
	}
	for _, key := range bad {
		if strings.HasPrefix(key.Key, a.keys.All(record.Registrations)) {
			return allocator.Errorf(allocator.Refused,
				"it is not known whether the build of this registration knows the formats %d: %w", record.Formats, &key)
		}
	}
	return nil
}

// bury writes the tombstones of tags whose deletion the audit still has, and which were not
// created or forgotten since: before the formats of generation 2 a deletion left none. No older
// process deletes anything by now, as it does not read the layout.
func (a *Admin) bury(ctx context.Context, actor string) error {
	seen := make(map[string]bool)
	for before := ""; ; {
		const page = 1000
		entries, _, err := a.entries(ctx, a.keys.All(record.Audits), before, page)
		if err != nil {
			return err
		}
		for _, e := range entries { // the newest first
			if seen[e.Object] || !strings.HasPrefix(string(a.keys)+e.Object, a.keys.All(record.Tags)) {
				continue
			}
			seen[e.Object] = true
			t, err := a.keys.DecodeTag(store.KV{Key: string(a.keys) + e.Object, Value: e.From})
			if e.Action != deleteAction || len(e.To) > 0 || err != nil {
				continue
			}
			if err := a.buryTag(ctx, t.Buried(e.Time), actor); err != nil {
				return err
			}
		}
		if len(entries) < page {
			return nil
		}
		before = entries[len(entries)-1].ID
	}
}

// buryTag writes a tombstone if there is no key. A counter that was never leased needs none.
func (a *Admin) buryTag(ctx context.Context, t record.Tag, actor string) error {
	if _, err := a.Ledger.Refresh(ctx); err != nil {
		return err
	}
	s, _ := a.Ledger.State()
	p, err := a.past(ctx, s, t.Name)
	if err != nil || p.there || t.Unused(s.MarginTotal(), p.marks) {
		return err
	}
	key, value := a.keys.Tag(t.Name), t.Encode(record.RandomHex())
	_, err = a.Ledger.Change(ctx, store.Txn{
		If:   append(a.Ledger.Holds(s), store.Absent(key)), // otherwise the tag was created just now
		Then: []store.Op{store.OpPut(key, value), a.audit(actor, "bury tag", key, nil, value)},
	})
	return err
}

package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Upgrade turns on the newest formats that this build knows, with a new version of the
// layout that has the same ranges. If they are on, it changes nothing. Its errors are
// Refused (see MayUpgrade), and those of ChangeLayout.
func (a *Admin) Upgrade(ctx context.Context, actor string) (record.Layout, error) {
	if _, err := a.Ledger.CheckNow(ctx); err != nil {
		return record.Layout{}, err
	}
	from, err := a.Ledger.Refresh(ctx)
	if err != nil || from.Formats >= record.Formats {
		return from, err
	}
	if err := a.MayUpgrade(ctx); err != nil {
		return record.Layout{}, err
	}
	stored := from.Next(from.Layout)
	stored.Formats = record.Formats
	return a.changeLayout(ctx, from, stored, actor,
		store.Txn{If: []store.Cond{store.Absent(a.keys.ActiveMigration())}})
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
		if strings.HasPrefix(key.Key, a.keys.Registrations("")) {
			return allocator.Errorf(allocator.Refused,
				"it is not known whether the build of this registration knows the formats %d: %w", record.Formats, &key)
		}
	}
	return nil
}

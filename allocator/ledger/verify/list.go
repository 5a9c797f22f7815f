package verify

import (
	"context"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// migrationPage is how many migrations are read at once: one may have a megabyte.
const migrationPage = 16

// listed is a kind of key of which there are many, and which does not belong to
// tags.
type listed struct {
	prefix string
	page   int64
	check  func(store.KV)
}

// lists checks the keys of each such kind. It reads the first pages together, and
// most lists have only one.
func (v *verification) lists(ctx context.Context) error {
	k := v.cluster.Keys
	readable := func(kv store.KV) { v.read(kv) }
	all := []listed{
		{k.Registrations(""), v.page, v.registration},
		{k.Heartbeats(""), v.page, readable},
		{k.Consoles(), v.page, readable},
		{k.Windows(""), v.page, v.worker},
		{k.Workers(), v.page, v.worker},
		{k.Clients(""), v.page, readable},
		{k.Machines(), v.page, readable},
		{k.Migrations(), min(v.page, migrationPage), readable},
		{k.Audits(), v.page, readable},
		{k.Refusals(), v.page, readable},
		{k.Oldest(""), v.page, readable},
	}
	ops := v.historyOps() // in one snapshot with the registrations, which name layouts
	for _, list := range all {
		ops = append(ops, page(list.prefix, store.PrefixEnd(list.prefix), list.page))
	}
	under := len(ops)
	if v.active != "" {
		ops = append(ops, store.OpGet(k.ActiveMigration()), store.OpGet(k.Migration(v.active)))
	}
	answer, err := v.cluster.Gets(ctx, ops...)
	if err != nil {
		return err
	}
	v.tookHistory(answer)
	if v.active != "" {
		v.underWay(answer.Got[under], answer.Got[under+1])
	}
	for i, list := range all {
		found := answer.Got[2+i]
		for _, kv := range found {
			list.check(kv)
		}
		if int64(len(found)) == list.page {
			if err := v.rest(ctx, list, found[len(found)-1].Key[len(list.prefix):]+"\x00"); err != nil {
				return err
			}
		}
	}
	return v.confirmOverlaps(ctx)
}

// rest checks a list from a name on.
func (v *verification) rest(ctx context.Context, list listed, lo string) error {
	for {
		hi, err := v.pager(list.prefix).End(ctx, lo, list.page)
		if err != nil {
			return err
		}
		answer, err := v.cluster.Gets(ctx, append(v.historyOps(), store.Within(list.prefix, lo, hi))...)
		if err != nil {
			return err
		}
		v.tookHistory(answer)
		for _, kv := range answer.Got[2] {
			list.check(kv)
		}
		if lo = hi; hi == "" {
			return nil
		}
	}
}

// registration checks an instance.
func (v *verification) registration(kv store.KV) {
	v.report.Instances++
	i, readable := v.read(kv).(record.Instance)
	if !readable {
		return
	}
	if i.Unconfirmed {
		v.report.Unconfirmed = append(v.report.Unconfirmed, i.ID())
	}
	v.checker.served(i.Room, i.Name, i.Version)
}

// underWay checks that the migration under way exists, and has not ended. Both keys
// must be of one snapshot, because another migration may be under way by now.
func (v *verification) underWay(holder, migration []store.KV) {
	var h record.ActiveMigration
	if len(holder) == 0 || record.Decode(holder[0], &h) != nil || h.Name != v.active {
		return
	}
	const stops = "it stops migrations: none goes on, and no other starts; next: delete the key"
	if len(migration) == 0 {
		v.add("key %s: there is no migration %s; "+stops, holder[0].Key, h.Name)
	} else if m, err := v.cluster.Keys.ParseMigration(migration[0]); err == nil && m.State.Ended() {
		v.add("key %s: migration %s is %s; "+stops, holder[0].Key, h.Name, m.State)
	}
}

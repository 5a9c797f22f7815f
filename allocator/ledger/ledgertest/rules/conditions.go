package rules

import (
	"cmp"
	"slices"
	"strings"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Conditions returns the rules that a transaction breaks because it does not compare some key.
func Conditions(keys record.Keys, before Before, conds []store.Cond, writes []Write) (broken []Broken) {
	leaves := slices.ContainsFunc(writes, func(w Write) bool { return w.Registration != nil && w.Registration.Leaving })
	for _, w := range writes {
		if w.Kind == record.Tokens && w.ModRevision == 0 && leaves {
			continue // it is not taken: an old token makes room, or the process keeps nothing
		}
		for _, needed := range needs(keys, before, w) {
			if !slices.ContainsFunc(conds, func(c store.Cond) bool {
				return c.Key == needed || strings.HasSuffix(needed, "/") &&
					strings.HasPrefix(c.Key, needed) && c.ModRevision != 0
			}) {
				broken = append(broken, Broken{"conditions", w.Key + " is leased without a condition on " + needed})
			}
		}
	}
	return broken
}

// needs returns the keys that the transaction of a lease must compare. A name that ends with a
// slash stands for any existing key below it.
func needs(keys record.Keys, before Before, w Write) []string {
	epoch, layout, tag := keys.Epoch(), keys.Layout(), keys.Tag(w.Entry.Tag)
	process, processes := keys.Registration(w.Room, w.Instance), keys.In(w.Room, record.Registrations)
	switch {
	case w.Kind == record.Tokens && w.ModRevision == 0: // it is taken
		return []string{epoch, layout, process, w.Key}
	case w.Kind == record.Tokens:
		return []string{epoch, process}
	case w.ModRevision == 0:
		return nil
	case w.Kind == record.Marks && Leased(*w.Entry.Mark, before.Mark(w.Room, w.Entry.Tag)):
		all := []string{epoch, layout, tag, processes, w.Key}
		switch t, _ := before.Tag(w.Entry.Tag); t.StrictOrder {
		case record.OrderRoom:
			all = append(all, keys.Holder(w.Room, w.Entry.Tag))
		case record.OrderCluster:
			all = append(all, keys.Holder("", w.Entry.Tag))
		}
		return all
	case w.Entry.Holder != nil && w.Entry.Holder.Released:
		return []string{w.Key}
	case w.Entry.Holder != nil:
		in := cmp.Or(w.Room, w.Entry.Holder.Room)
		return []string{epoch, layout, tag, keys.In(in, record.Registrations), w.Key}
	case before.Epoch().Halted != nil && (w.Kind.OfWorkers() || w.Kind == record.Machines ||
		w.Kind == record.Clients): // a recover raises it
		return []string{epoch, w.Key}
	case w.Kind == record.Machines:
		return []string{epoch, layout, w.Key}
	case w.Kind == record.Clients:
		return append(ofNumber(before, w), epoch, layout)
	case w.Kind.OfWorkers():
		return []string{epoch, w.Key, layout, keys.In(w.Entry.Lease.Room, record.Registrations)}
	}
	return nil
}

// ofNumber returns the keys, of all rooms that ever were, of the number that a room's key is of: its
// own one, and those of the rooms of the layout.
func ofNumber(before Before, w Write) []string {
	all := []string{w.Key}
	kind, number, _ := strings.Cut(w.Key, "/"+string(w.Room)+"/")
	for _, room := range before.Layout().Ever {
		if room != w.Room {
			all = append(all, kind+"/"+string(room)+"/"+number)
		}
	}
	return all
}

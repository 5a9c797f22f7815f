package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/allocator/timeid"
)

// AllWidths stands for workers of all widths.
const AllWidths = -1

// Workers returns up to n workers that were taken so far and come after the worker
// after, by width and number, each with the room that has it last, and the keys among them that
// cannot be read. after is nil for the first page. bits is their width, or AllWidths.
func (a *view) Workers(ctx context.Context, bits int, after *record.WorkerID,
	n int) ([]record.Lease, []record.KeyError, error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, nil, err
	}
	read := func(kv store.KV) (record.Lease, error) {
		id, w, err := a.keys.DecodeWorker(kv)
		return record.Lease{WorkerID: id, Worker: w}, err
	}
	prefixes := a.workerPrefixes()
	pages, unreadable := make([][]record.Lease, len(prefixes)), make([][]record.KeyError, len(prefixes))
	var reading errgroup.Group // at once: one after the other, a page of many rooms took half a second
	for k, prefix := range prefixes {
		of := prefix
		if bits != AllWidths {
			of = fmt.Sprintf("%s%02d/", prefix, bits)
		}
		within := store.Prefix(of)
		if after != nil {
			within.Key = max(within.Key, prefix+after.Padded()+"\x00")
		}
		if within.Key < within.End {
			reading.Go(func() (err error) {
				pages[k], unreadable[k], err = readPage(ctx, a, store.Get{Interval: within}, n, read)
				return err
			})
		}
	}
	if err := reading.Wait(); err != nil {
		return nil, nil, err
	}
	last := make(map[record.WorkerID]record.Worker)
	whole := func(record.WorkerID) bool { return true } // whether all keys of a worker were read
	for _, found := range pages {
		for _, l := range found {
			last[l.WorkerID] = last[l.WorkerID].Raised(l.Worker)
		}
		if len(found) >= n {
			before, end := whole, found[len(found)-1].WorkerID
			whole = func(id record.WorkerID) bool { return before(id) && id.Padded() <= end.Padded() }
		}
	}
	var all []record.Lease
	for id, w := range last {
		if whole(id) {
			all = append(all, record.Lease{WorkerID: id, Worker: w})
		}
	}
	record.SortLeases(all)
	return all[:min(n, len(all))], slices.Concat(unreadable...), nil
}

// workerPrefixes returns the prefixes of the keys of workers: of each room that ever was, and of
// all rooms before the formats of generation 2.
func (a *view) workerPrefixes() []string {
	layout, _ := a.Ledger.Layout()
	all := []string{a.keys.All(record.Workers)}
	for _, room := range layout.Ever {
		all = append(all, a.keys.In(room, record.Windows))
	}
	return all
}

// MachineID is a machine ID that has, or had, a client.
type MachineID struct {
	record.WorkerID
	record.Machine
}

// mostMachines bounds the machine IDs that Machines reads.
const mostMachines = 50_000

// Machines returns the machine IDs of CosId's clients, each with the client that had it last, and
// without those that cannot be read.
func (a *view) Machines(ctx context.Context) ([]MachineID, error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, err
	}
	type written struct {
		MachineID
		at int64
	}
	last := make(map[record.WorkerID]written)
	for _, prefix := range []string{a.keys.All(record.Clients), a.keys.All(record.Machines)} {
		within := store.Prefix(prefix)
		read := func(kv store.KV) (written, error) {
			key, value, err := a.keys.Read(kv)
			m, _ := value.(record.Machine)
			return written{MachineID{key.Worker, m}, kv.ModRevision}, err
		}
		found, _, err := readPage(ctx, a, store.Get{Interval: within}, mostMachines, read)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			if m.at > last[m.WorkerID].at {
				last[m.WorkerID] = m
			}
		}
	}
	all := make([]MachineID, 0, len(last))
	for _, m := range last {
		all = append(all, m.MachineID)
	}
	slices.SortFunc(all, func(a, b MachineID) int { return cmp.Compare(a.Padded(), b.Padded()) })
	return all, nil
}

// Free returns when another process may take a worker, if its window is not renewed: at the
// window's end, or when a later epoch lets windows begin, whichever is later.
// epoch is the one in force.
func Free(w record.Worker, epoch record.Epoch) time.Time {
	free := w.Until
	if !w.Free(epoch.Epoch, epoch.NotBefore) {
		free = max(free, epoch.NotBefore)
	}
	return time.UnixMilli(free)
}

// Epoch returns the epoch in force, or the halt in its place.
func (a *view) Epoch(ctx context.Context) (record.Epoch, error) {
	return readOne(ctx, a, a.keys.Epoch(), func(kv store.KV) (e record.Epoch, err error) {
		err = record.Decode(kv, &e)
		return e, err
	}, record.Gone(a.keys.Epoch()))
}

// SliceUse is the workers of a width that a room may take, and how many of them are in use.
type SliceUse struct {
	Bits  int
	Room  allocator.Room
	Slice allocator.Range
	Taken int64 // taken so far
	Live  int64 // with a window that has not ended
}

// mostCounted is how many workers of a width SliceUses reads: if more were taken so far,
// the numbers are lower bounds.
const mostCounted = 10_000

// SliceUses returns the slices of the rooms of a layout, by width, and in the layout's
// order. It returns those of the given widths. If none is given, it returns those of all
// widths of which a worker was taken so far.
func (a *view) SliceUses(ctx context.Context, l allocator.Layout, widths ...int) (all []SliceUse, err error) {
	if len(widths) == 0 {
		if widths, err = a.widths(ctx); err != nil {
			return nil, err
		}
	}
	now := a.now().UnixMilli()
	for _, bits := range widths {
		first := len(all)
		for _, room := range l.Rooms() {
			slice, _ := timeid.SliceOf(l, room, bits)
			all = append(all, SliceUse{Bits: bits, Room: room, Slice: slice})
		}
		leases, _, err := a.Workers(ctx, bits, nil, mostCounted) // an unreadable worker does not count
		if err != nil {
			return nil, err
		}
		for _, lease := range leases {
			for k := first; k < len(all); k++ {
				if all[k].Slice.Contains(lease.Number) {
					all[k].Taken++
					if lease.Until > now {
						all[k].Live++
					}
				}
			}
		}
	}
	return all, nil
}

// widths returns the widths of which a worker was taken so far.
func (a *view) widths(ctx context.Context) (all []int, err error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return nil, err
	}
	prefixes := a.workerPrefixes()
	from := slices.Clone(prefixes)
	for range timeid.MaxBits { // each round reads the next key of each room, past the width of the one before
		ops, found := make([]store.Op, len(prefixes)), false
		for k, prefix := range prefixes {
			ops[k] = store.Op{Get: &store.Get{Interval: store.Interval{Key: from[k], End: store.PrefixEnd(prefix)},
				Limit: 1, KeysOnly: true}}
		}
		answer, err := a.Ledger.Gets(ctx, ops...)
		if err != nil {
			return nil, err
		}
		for k, prefix := range prefixes {
			kv, there := answer.One(k)
			if !there {
				continue
			}
			if key, err := a.keys.Parse(kv.Key); err == nil {
				all = append(all, key.Worker.Bits)
			}
			const digits = 2
			from[k], found = store.PrefixEnd(kv.Key[:min(len(prefix)+digits, len(kv.Key))]), true
		}
		if !found {
			break
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// AllNeeds returns what all tags, and pinned instances, need of layouts.
func (a *view) AllNeeds(ctx context.Context) (needs plan.Workers, err error) {
	if _, err := a.EachTagIn(ctx, nil, func(t record.Tag, _ map[allocator.Room]record.Mark) error {
		AddTag(&needs, t)
		return nil
	}); err != nil {
		return needs, err
	}
	err = a.AddPins(ctx, &needs)
	return needs, err
}

// FirstNeeds returns what the first n tags by name, and pinned instances, need of layouts.
func (a *view) FirstNeeds(ctx context.Context, n int) (needs plan.Workers, err error) {
	first, _, err := a.Tags(ctx, "", "", 0, n)
	if err != nil {
		return needs, err
	}
	for _, t := range first {
		AddTag(&needs, t)
	}
	err = a.AddPins(ctx, &needs)
	return needs, err
}

// AddPins adds the workers that pinned instances need. An instance that was not
// forgotten yet may start again with its number.
func (a *view) AddPins(ctx context.Context, needs *plan.Workers) error {
	instances, _, err := a.Instances(ctx, "")
	if err != nil {
		return err
	}
	for _, i := range instances {
		if i.Pin != nil && !i.Leaving {
			needs.AddPin(plan.Pin{Room: i.Room, Instance: i.Name, Number: *i.Pin})
		}
	}
	return nil
}

package recovery

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// read reads the store, and pins the cluster's uuid and the etcd cluster that answers,
// even if the identity has another one: begin writes it there.
func (r *run) read(ctx context.Context) error {
	k, f := r.keys, &r.found
	var answer store.Answer
	var refused error
	err := together(ctx, func(ctx context.Context) (err error) {
		f.status, err = r.cluster.Status(ctx)
		return err
	}, func(ctx context.Context) error {
		f.identity, answer, refused = r.l.PinAnew(ctx, store.OpGet(k.Epoch()), store.OpGet(k.Layout()),
			store.OpGet(k.Beat()), store.OpGetPrefix(k.All(record.Registrations)),
			store.Op{Get: &store.Get{Interval: store.Prefix(k.All(record.Layouts)), Limit: 2, Descending: true}},
			store.OpGetPrefix(k.All(record.Consoles)))
		if f.identity.UUID == "" {
			return refused
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.report.UUID = f.identity.UUID
	if refused != nil { // another cluster than configured: the report names it
		return refused
	}
	f.identityKV, _ = answer.One(0)
	f.epochKV, _ = answer.One(1)
	f.epochKV.Key = k.Epoch()
	if err := record.Decode(f.epochKV, &f.epoch); err != nil {
		f.epoch = record.Epoch{}
		r.unreadable(f.epochKV.Key, err) // it is replaced
	} else if f.epoch.Halted != nil {
		r.report.Halt = *f.epoch.Halted
	}
	f.layoutKV, _ = answer.One(2)
	f.layoutKV.Key = k.Layout()
	if f.layout, f.layoutErr = record.DecodeLayout(f.layoutKV); f.layoutErr != nil {
		f.layout = record.Layout{}
		r.unreadable(f.layoutKV.Key, f.layoutErr)
	}
	f.layout.Revision = f.layoutKV.ModRevision
	if kv, ok := answer.One(3); ok {
		f.beatRevision = kv.ModRevision
		if err := record.Decode(kv, &f.beat); err != nil {
			r.unreadable(kv.Key, err) // it is replaced, and then shows no left instances
		}
	}
	r.report.Stored, r.report.Beat = f.layout, f.beat.Time
	r.rooms, r.version, r.total = f.layout.Ever, f.layout.Layout.Version, f.epoch.MarginTotal
	r.notBefore = f.epoch.NotBefore
	r.newest, r.latest, r.extremes = f.layout.Layout, f.epoch.InForce(), f.layout
	for _, kv := range answer.Got[5] { // a program of an older version may have written the layout
		if past, err := record.ReadAs[record.Layout](k, kv); err == nil {
			r.extremes = r.extremes.After(past)
		}
	}
	r.takeRegistrations(answer.Got[4])
	r.findConsoles(answer.Got[6])
	return nil
}

// together calls all at the same time, and returns the first error. Calls that do not
// need each other's answers take one round trip together.
func together(ctx context.Context, all ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, one := range all {
		group.Go(func() error { return one(ctx) })
	}
	return group.Wait()
}

// haltStore writes a halt of our own, over any other: of two recovers at once, the first
// finds its nonce gone. The halt has the largest margin total that is known by then, before any
// mark is raised to it: should this recover break off, the next one knows the total too.
// Comparisons with marks that were made before count only if etcd did not go back since. Then it
// lists the instances once more.
func (r *run) haltStore(ctx context.Context, also ...store.Op) error {
	r.progress("halting", 0, 0)
	var total int64
	r.with(func() { total = r.total })
	kv, err := r.l.HaltOver(ctx, r.found.epochKV.Value, total, r.cfg.Actor, "march recover", also...)
	if err != nil {
		if allocator.KindOf(err) == allocator.Conflict {
			return allocator.Errorf(allocator.Conflict,
				"leasing was halted, or another epoch began, while recover asked the instances: "+
					"nothing was changed; run it again")
		}
		return err
	}
	var e record.Epoch
	if err := record.Decode(kv, &e); err != nil {
		return err
	}
	r.found.epochKV, r.found.epoch, r.nonce = kv, e, e.Halted.Nonce
	was := r.found.status
	var status store.Status
	err = together(ctx, func(ctx context.Context) (err error) {
		status, err = r.cluster.Status(ctx)
		return err
	}, r.readRegistrations)
	if err != nil {
		return err
	}
	if status.ClusterID != was.ClusterID || status.RaftIndex < was.RaftIndex || kv.ModRevision <= was.Revision {
		return allocator.Errorf(allocator.WentBack,
			"etcd went back in time while recover asked the instances: leasing is halted; run it again")
	}
	return nil
}

package ledger

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// stored is what recover reads of the store, from one snapshot.
type stored struct {
	identity   record.Identity
	identityKV store.KV
	epoch      store.KV
	state      *state // of epoch: its value, total, halt
	layoutKV   store.KV
	layout     record.Layout // zero where it cannot be read
	layoutErr  error
	beat       record.Beat
	status     store.Status
}

// read reads what the store has, and pins the cluster's uuid and the etcd cluster that
// answers, be it another one than the identity has: begin writes that.
func (r *recovery) read(ctx context.Context) error {
	l, k := r.l, r.l.keys
	f := &r.found
	var answer store.Answer
	err := together(ctx, func(ctx context.Context) (err error) {
		f.status, err = l.status(ctx)
		return err
	}, func(ctx context.Context) (err error) {
		answer, err = l.gets(ctx, store.OpGet(k.Identity()), store.OpGet(k.Epoch()), store.OpGet(k.Layout()), store.OpGet(k.Beat()), store.OpGetPrefix(k.Registrations("")), l.countAudits())
		return err
	})
	if err != nil {
		return err
	}
	var ok bool
	if f.identityKV, ok = answer.One(0); !ok {
		return l.noIdentity(ctx, nothingToRecover)
	}
	if err := record.Decode(f.identityKV, &f.identity); err != nil {
		return err
	}
	r.report.UUID = f.identity.UUID
	f.identity.ClusterID = answer.ClusterID
	if err := l.pin(f.identity, answer.ClusterID); err != nil {
		return err
	}
	f.epoch, _ = answer.One(1)
	f.epoch.Key = k.Epoch()
	f.state = &state{raw: f.epoch.Value}
	var e record.Epoch
	if err := record.Decode(f.epoch, &e); err != nil {
		r.unreadable(f.epoch.Key, err) // it is replaced
	} else {
		f.state.epoch, f.state.total, f.state.halted = e.Epoch, e.MarginTotal, e.Halted
		if e.Halted != nil {
			f.state.epoch, r.report.Halt = "", e.Halted.Record()
		}
	}
	f.layoutKV, _ = answer.One(2)
	f.layoutKV.Key = k.Layout()
	if f.layout, f.layoutErr = record.DecodeLayout(f.layoutKV); f.layoutErr != nil {
		f.layout = record.Layout{}
		r.unreadable(f.layoutKV.Key, f.layoutErr)
	}
	f.layout.Revision = f.layoutKV.ModRevision
	if kv, ok := answer.One(3); ok {
		if err := record.Decode(kv, &f.beat); err != nil {
			r.unreadable(kv.Key, err) // it is replaced, and says nothing of leaves
		}
	}
	r.report.Stored, r.report.Beat = f.layout, f.beat.Time
	r.mu.rooms, r.mu.version, r.mu.total = f.layout.Ever, f.layout.Layout.Version, f.state.total
	r.mu.layout, r.mu.latest, r.mu.extremes = f.layout.Layout, f.stopped(), f.layout
	r.mu.taken = make(map[string]struct{})
	r.takeRegistrations(answer.Got[4])
	l.countedAudits(answer.Counts[5])
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

// stopped returns the epoch that is, or was, in force before the halt of this recover.
func (f *stored) stopped() string {
	if f.state.halted != nil {
		return f.state.halted.Stopped
	}
	return f.state.epoch
}

func (r *recovery) unreadable(key string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.unreadable[key] = err
}

// haltStore writes a halt of our own, over any other: of two recovers at once, the first
// finds its nonce gone. Comparisons with marks that were made before count only if etcd
// did not go back since. Then it lists the instances once more.
func (r *recovery) haltStore(ctx context.Context, also ...store.Op) error {
	r.progress("halting", 0, 0)
	kv, err := r.l.halt(ctx, r.found.state, r.cfg.Actor, "march recover", also...)
	if err != nil {
		if allocator.KindOf(err) == allocator.Conflict {
			return allocator.Errorf(allocator.Conflict, "leasing was halted, or another epoch began, while recover asked: nothing was changed, run it again")
		}
		return err
	}
	var e record.Epoch
	if err := record.Decode(kv, &e); err != nil {
		return err
	}
	r.halt, r.nonce = kv, e.Halted.Nonce
	r.found.state = &state{raw: kv.Value, total: e.MarginTotal, halted: e.Halted}
	was := r.found.status
	var status store.Status
	err = together(ctx, func(ctx context.Context) (err error) {
		status, err = r.l.status(ctx)
		return err
	}, r.readRegistrations)
	if err != nil {
		return err
	}
	if status.ClusterID != was.ClusterID || status.RaftIndex < was.RaftIndex || kv.ModRevision <= was.Revision {
		return allocator.Errorf(allocator.WentBack, "etcd went back in time while recover asked the instances: leasing is halted, run it again")
	}
	return nil
}

// gets reads keys in one transaction. Once recover has halted leasing, it does so under
// the condition that its own halt is in force, so that it does not mix its own findings
// with another recover's changes. Its errors are Conflict and Unavailable.
func (r *recovery) gets(ctx context.Context, ops ...store.Op) (store.Answer, error) {
	if r.nonce == "" {
		return r.l.gets(ctx, ops...)
	}
	answer, err := r.l.read(ctx, store.Txn{If: []store.Cond{store.HasValue(r.halt.Key, r.halt.Value)}, Then: ops})
	if err == nil && !answer.Succeeded {
		err = errOtherRecover
	}
	return answer, err
}

var errOtherRecover = &allocator.Error{Kind: allocator.Conflict, Msg: "another `march recover` began meanwhile, or ended: see `march audit list`"}

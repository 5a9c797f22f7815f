package recovery

import (
	"context"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// begin begins the new epoch: with the list of processes that answered, the etcd
// cluster's present ID, a fresh beat, and the layout as a new version.
func (r *run) begin(ctx context.Context) error {
	r.progress("beginning a new epoch", 0, 0)
	k, f := r.keys, &r.found
	var status store.Status
	var oldest []store.Op
	err := together(ctx, func(ctx context.Context) (err error) {
		status, err = r.cluster.Status(ctx)
		return err
	}, func(ctx context.Context) error {
		oldest = r.l.MakeRoom(ctx, k.All(record.Layouts))
		return nil
	})
	if err != nil {
		return err
	}
	if status.ClusterID != f.identity.ClusterID {
		return allocator.Errorf(allocator.Unavailable,
			"etcd cluster %x answers by now, and recover began in %x: check --etcd, and run it again",
			status.ClusterID, f.identity.ClusterID)
	}
	stored, answered, v, err := r.newEpoch()
	if err != nil {
		return err
	}
	beat := record.NewBeat(status, r.cluster.Now())
	epoch, value := record.Encode(&v), stored.Encode(record.RandomHex())
	txn := store.Txn{
		If: []store.Cond{
			store.HasValue(k.Epoch(), f.epochKV.Value), store.Unchanged(f.layoutKV), store.Unchanged(f.identityKV),
			store.Absent(k.LayoutAt(stored.Layout.Version)),
		},
		Then: []store.Op{
			store.OpPut(k.Epoch(), epoch), store.OpPut(k.Answered(), record.Encode(&answered)),
			store.OpPut(k.Layout(), value), store.OpPut(k.LayoutAt(stored.Layout.Version), value),
			store.OpPut(k.Identity(), record.Encode(&f.identity)), store.OpPut(k.Beat(), record.Encode(&beat)),
			r.audit("recover", k.Epoch(), f.epochKV.Value, epoch),
		},
	}
	reply, err := r.l.Try(ctx, txn.With(oldest))
	r.inDoubt = err != nil
	err = store.Outcome(reply, err, func() bool { // the epoch is random
		check, err := r.l.Read(ctx, store.Txn{Then: []store.Op{store.OpGet(k.Epoch())}})
		kv, _ := check.FirstIfAny()
		return err == nil && string(kv.Value) == string(epoch)
	}, errOtherRecover)
	if err == nil {
		r.report.Epoch = v.Epoch
	}
	return err
}

// newEpoch chooses the new epoch, with its layout and the list of processes that answered.
func (r *run) newEpoch() (stored record.Layout, answered record.Answered, epoch record.Epoch, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Layout.Version = record.RecoverVersion(max(r.version, r.mirrored), r.cluster.Now())
	if unseen := r.chooseMargin(); len(unseen) > 0 { // they fell silent after they had answered
		return stored, answered, epoch, allocator.Errorf(allocator.Refused,
			"no mirror saw all that %s leased, and it fell silent: run it again with --margin", someOf(unseen))
	}
	stored = record.Layout{Layout: r.report.Layout, Ever: record.Union(r.rooms, r.report.Layout.Rooms()),
		Time: r.cluster.Now(), Actor: r.cfg.Actor}.After(r.extremes)
	answered = record.Answered{Epoch: record.RandomHex(), Incarnations: []string{}}
	for incarnation := range r.taken {
		answered.Incarnations = append(answered.Incarnations, incarnation)
	}
	slices.Sort(answered.Incarnations)
	epoch = record.Epoch{
		Epoch: answered.Epoch, MarginTotal: r.report.Total, NotBefore: r.begins, Layout: stored.Layout.Version,
		Ended: &record.EndedHalt{Nonce: r.nonce, Stopped: r.latest},
	}
	if stored.Upgraded() {
		epoch.MarginEnds = r.margins().Ends
	}
	return stored, answered, epoch, nil
}

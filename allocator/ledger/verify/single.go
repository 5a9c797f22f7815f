package verify

import (
	"context"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// singles checks the keys that are one of their kind, and reads the history.
func (v *verification) singles(ctx context.Context) error {
	k := v.cluster.Keys
	ops := append(v.historyOps(), store.OpGet(k.Epoch()), store.OpGet(k.Settings()), store.OpGet(k.Beat()),
		store.OpGet(k.Answered()), store.OpGet(k.ActiveMigration()))
	answer, err := v.cluster.Gets(ctx, ops...)
	if err != nil {
		return err
	}
	v.tookHistory(answer)
	v.epoch(answer.Got[2])
	if v.report.Settings, err = record.DecodeSettings(answer.Got[3]); err != nil {
		v.unreadable(k.Settings(), err)
	}
	v.readable(answer.Got[4], &record.Beat{})
	v.readable(answer.Got[5], &record.Answered{})
	var active record.ActiveMigration
	if v.readable(answer.Got[6], &active) {
		v.active = active.Name
	}
	return nil
}

// readable decodes the value that was found for a key. It reports whether there was
// one that can be read.
func (v *verification) readable(found []store.KV, into record.Value) bool {
	if len(found) == 0 {
		return false
	}
	err := record.Decode(found[0], into)
	if err != nil {
		v.unreadable(found[0].Key, err)
	}
	return err == nil
}

// epoch checks the epoch, or the halt.
func (v *verification) epoch(found []store.KV) {
	key := v.cluster.Keys.Epoch()
	if len(found) == 0 {
		v.missing(key)
		return
	}
	var e record.Epoch
	if !v.readable(found, &e) {
		return
	}
	v.epochID = e.InForce()
	if e.Epoch == "" && e.Halted == nil {
		v.unreadable(key, record.NoEpoch(key))
	} else if e.Halted != nil {
		v.report.Halt = *e.Halted
	}
}

package verify

import (
	"context"
	"slices"

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
	if len(answer.Got[2]) == 0 {
		v.missing(k.Epoch())
	}
	for _, kv := range slices.Concat(answer.Got[2:]...) {
		switch value := v.read(kv).(type) {
		case record.Epoch:
			v.epochID = value.InForce()
			if value.Epoch == "" && value.Halted == nil {
				v.unreadable(kv.Key, record.NoEpoch(kv.Key))
			} else if value.Halted != nil {
				v.report.Halt = *value.Halted
			}
		case record.ClusterSettings:
			v.report.Settings = value
		case record.ActiveMigration:
			v.active = value.Name
		}
	}
	return nil
}

// read returns the value of a key. If that cannot be read, it adds the key, and returns nil.
func (v *verification) read(kv store.KV) any {
	_, value, err := v.cluster.Keys.Read(kv)
	if err != nil {
		v.unreadable(kv.Key, err)
		return nil
	}
	return value
}

package admin

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Settings returns the cluster's settings. Its errors are ledger.Ledger.Attach's, Unavailable,
// and Internal if they cannot be read.
func (a *view) Settings(ctx context.Context) (record.ClusterSettings, error) {
	s, _, err := a.settings(ctx)
	return s, err
}

func (a *view) settings(ctx context.Context) (s record.ClusterSettings, kv store.KV, err error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return s, kv, err
	}
	answer, err := a.Ledger.Gets(ctx, store.OpGet(a.keys.Settings()))
	if err != nil {
		return s, kv, err
	}
	kv, _ = answer.One(0)
	kv.Key = a.keys.Settings()
	s, err = record.DecodeSettings(answer.Got[0])
	return s, kv, err
}

// UpdateSettings changes the cluster's settings. Rooms apply them at once. A
// running instance that began while no journal was required goes on. Its
// errors are change's, Settings', and Conflict.
func (a *Admin) UpdateSettings(ctx context.Context, change func(*record.ClusterSettings) error,
	actor string) (record.ClusterSettings, error) {
	if err := a.Ledger.Attach(ctx); err != nil {
		return record.ClusterSettings{}, err
	}
	s, was, err := a.settings(ctx)
	if err != nil {
		return s, err
	}
	before := s
	if err := change(&s); err != nil || s.RequireJournal == before.RequireJournal {
		return before, err
	}
	s.Nonce = record.RandomHex()
	value := record.Encode(&s)
	answer, err := a.Ledger.Change(ctx, store.Txn{
		If:   []store.Cond{store.Unchanged(was)},
		Then: []store.Op{store.OpPut(was.Key, value), a.audit(actor, "update settings", was.Key, was.Value, value)},
	})
	err = store.Outcome(answer, err, func() bool {
		now, _, err := a.settings(ctx)
		return err == nil && now.Nonce == s.Nonce
	}, allocator.Errorf(allocator.Conflict, "the cluster's settings were changed by another process just now"))
	if err != nil {
		return before, err
	}
	return s, nil
}

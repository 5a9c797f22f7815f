package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Settings returns the cluster's settings. Its errors are attach's, Unavailable,
// and Internal where they cannot be read.
func (l *Ledger) Settings(ctx context.Context) (record.ClusterSettings, error) {
	s, _, _, err := l.settings(ctx)
	return s, err
}

func (l *Ledger) settings(ctx context.Context) (s record.ClusterSettings, nonce string, kv store.KV, err error) {
	if err := l.attachToRead(ctx); err != nil {
		return s, "", kv, err
	}
	answer, err := l.gets(ctx, store.OpGet(l.keys.Settings()))
	if err != nil {
		return s, "", kv, err
	}
	kv, _ = answer.One(0)
	kv.Key = l.keys.Settings()
	s, nonce, err = l.keys.DecodeSettings(answer.Got[0])
	return s, nonce, kv, err
}

// UpdateSettings changes the cluster's settings. Rooms take them up at once; an
// instance that runs, and began while no journal was required, goes on. Its
// errors are change's, Settings', and Conflict.
func (l *Ledger) UpdateSettings(ctx context.Context, change func(*record.ClusterSettings) error, actor string) (record.ClusterSettings, error) {
	if err := l.attach(ctx); err != nil {
		return record.ClusterSettings{}, err
	}
	s, _, was, err := l.settings(ctx)
	if err != nil {
		return s, err
	}
	before := s
	if err := change(&s); err != nil || s == before {
		return before, err
	}
	mine := record.RandomHex()
	value := s.Encode(mine, was)
	answer, err := l.change(ctx, store.Txn{
		If:   []store.Cond{store.Unchanged(was)},
		Then: []store.Op{store.OpPut(was.Key, value), l.audit(actor, "update settings", was.Key, was.Value, value)},
	})
	err = store.Outcome(answer, err, func() bool {
		_, nonce, _, err := l.settings(ctx)
		return err == nil && nonce == mine
	}, allocator.Errorf(allocator.Conflict, "the cluster's settings were changed by another process just now"))
	if err != nil {
		return before, err
	}
	return s, nil
}

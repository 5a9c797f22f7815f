package admin

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

const (
	// announceAgain is the age at which a console writes its key again.
	announceAgain = time.Minute
	// consoleGone is the age at which others remove it.
	consoleGone = time.Hour
)

// Announce writes where a process of a console, named by a ULID, is asked for its mirror, if its key
// is missing or a minute old. Before the formats of generation 2 are turned on it writes nothing. It
// removes keys of other processes that are an hour old, but none while leasing is halted, and the
// oldest beyond the bound.
func (a *Admin) Announce(ctx context.Context, process, address string) error {
	if err := a.Ledger.Attach(ctx); err != nil {
		return err
	}
	key, now := a.keys.Console(process), a.now()
	answer, err := a.Ledger.Gets(ctx, store.OpGet(key))
	if err != nil {
		return err
	}
	if kv, there := answer.One(0); there && age(kv, now).Abs() < announceAgain {
		return nil
	}
	layout, err := a.Ledger.Refresh(ctx)
	if err != nil || !layout.Upgraded() {
		return err
	}
	state, _ := a.Ledger.State()
	if answer, err = a.Ledger.Gets(ctx, store.OpGetPrefix(a.keys.All(record.Consoles))); err != nil {
		return err
	}
	others := slices.DeleteFunc(answer.Got[0], func(kv store.KV) bool { return kv.Key == key })
	slices.SortFunc(others, func(x, y store.KV) int { return cmp.Compare(age(y, now), age(x, now)) })
	_, halted := a.Ledger.Halted()
	txn := store.Txn{If: a.Ledger.Holds(state)}
	for i, kv := range others[:min(len(others), store.MaxOps/2)] {
		if len(others)-i >= record.MaxConsoles || !halted && age(kv, now) > consoleGone {
			txn.Then = append(txn.Then, store.Op{Delete: kv.Key})
		}
	}
	txn.Then = append(txn.Then, store.OpPut(key, record.Encode(&record.Console{Address: address, Time: now})))
	_, err = a.Ledger.Try(ctx, txn)
	return err
}

// age returns how old a console's key is at a time; one that cannot be read is from the beginning.
func age(kv store.KV, now time.Time) time.Duration {
	var v record.Console
	_ = record.Decode(kv, &v)
	return now.Sub(v.Time)
}

// Retire removes the key of a console's process.
func (a *Admin) Retire(ctx context.Context, process string) error {
	_, err := a.Ledger.Try(ctx, store.Txn{Then: []store.Op{{Delete: a.keys.Console(process)}}})
	return err
}

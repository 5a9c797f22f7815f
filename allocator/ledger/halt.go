package ledger

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Halted returns the halt that is in force as this process knows it, if one is.
func (l *Ledger) Halted() (record.Halt, bool) {
	s, _ := l.State()
	if s.halted == nil {
		return record.Halt{}, false
	}
	return *s.halted, true
}

// HaltAs makes this process halt leasing under the name who if it sees etcd go back in
// time, and probe for that as an instance does. An instance's Join calls it. A console
// calls it because it moves layouts and forgets instances, and may be the only process
// that lived through a restore. It must be called before anything else.
func (l *Ledger) HaltAs(who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.haltsAs = who
}

// Check probes whether etcd went back in time, if the last probe is too old or a
// suspicion came up since. Its error is the reason why nothing can be leased at present,
// or why the probe failed.
func (l *Ledger) Check(ctx context.Context) error {
	_, err := l.LeasableState(ctx)
	return err
}

// CheckNow is Check with a probe of its own, even if the last probe was a moment ago. It
// is for changes that take effect as soon as they are written. (A lease counts only if
// its answer came over the probed connection.) It returns the state as
// LeasableState does.
func (l *Ledger) CheckNow(ctx context.Context) (*State, error) {
	l.uncheck()
	return l.LeasableState(ctx)
}

// Halt stops all leasing, in all rooms, until `march recover` begins a new epoch. Rooms
// may still issue the IDs that they hold. If leasing is halted already, that halt stays.
// Its errors are Unavailable, and the reason if the epoch cannot be read.
func (l *Ledger) Halt(ctx context.Context, who, why string) (record.Halt, error) {
	for range haltAttempts {
		if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
			return record.Halt{}, err
		}
		s, _ := l.State()
		switch {
		case s.halted != nil:
			return *s.halted, nil
		case s.raw == nil:
			return record.Halt{}, s.Refusal()
		}
		if _, err := l.HaltOver(ctx, s.raw, who, why); err != nil && allocator.KindOf(err) != allocator.Conflict {
			return record.Halt{}, err
		}
	}
	return record.Halt{}, allocator.Errorf(allocator.Conflict, "leasing is not halted: other processes changed the epoch %d times meanwhile; try again", haltAttempts)
}

// haltAttempts bounds how often Halt starts over because another process changed
// the epoch just then.
const haltAttempts = 5

// HaltOver writes a halt over the epoch's value, if that is still in force, and returns
// the key as it wrote it. A value that cannot be read counts as an epoch without a name
// and margins. The operations in also are done in the same transaction. Its errors are
// Conflict and Unavailable. Only a recover writes a halt over another halt.
func (l *Ledger) HaltOver(ctx context.Context, epoch []byte, who, why string, also ...store.Op) (store.KV, error) {
	var was record.Epoch
	if err := record.Decode(store.KV{Key: l.keys.Epoch(), Value: epoch}, &was); err != nil {
		was = record.Epoch{}
	}
	v := record.Halt{By: who, Why: why, Time: l.now(), Nonce: record.RandomHex(), Stopped: was.InForce()}
	value := record.Encode(&record.Epoch{MarginTotal: was.MarginTotal, NotBefore: was.NotBefore, Halted: &v})
	answer, err := l.Change(ctx, store.Txn{
		If:   []store.Cond{store.HasValue(l.keys.Epoch(), epoch)},
		Then: append(also, store.OpPut(l.keys.Epoch(), value), l.audit(who, "halt", l.keys.Epoch(), epoch, value)),
	})
	if err == nil && answer.Succeeded {
		level := hclog.Error
		if l.haltsAs() == "" { // an operator's command prints it itself
			level = hclog.Info
		}
		l.log.Log(level, "leasing is halted", "by", who, "why", why)
		return store.KV{Key: l.keys.Epoch(), Value: value, ModRevision: answer.Revision}, nil
	}
	var kv store.KV
	err = store.Outcome(answer, err, func() bool {
		check, err := l.Gets(ctx, store.OpGet(l.keys.Epoch()))
		kv, _ = check.FirstIfAny()
		return err == nil && string(kv.Value) == string(value)
	}, allocator.Errorf(allocator.Conflict, "another process changed the epoch just now"))
	if err != nil {
		return store.KV{}, err
	}
	return kv, nil
}

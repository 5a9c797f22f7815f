package ledger

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
)

// HaltRecord says who halted leasing, why and when.
type HaltRecord struct {
	By   string
	Why  string
	Time time.Time // by their clock
}

// Halted returns the halt that is in force as this process knows it, if one is.
func (l *Ledger) Halted() (HaltRecord, bool) {
	s, _ := l.current()
	if s.halted == nil {
		return HaltRecord{}, false
	}
	return HaltRecord{By: s.halted.By, Why: s.halted.Why, Time: s.halted.Time}, true
}

// HaltAs has this process halt leasing as who, where it sees etcd go back in time,
// and look for that as an instance does. An instance's Join does that; a console
// moves layouts and forgets instances, and may be all that lived through a restore.
// It must be called before anything else.
func (l *Ledger) HaltAs(who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.haltsAs = who
}

// Check looks whether etcd went back in time, where the last look is too old, or
// something came up since. Its error is why nothing can be leased at present, or
// why that could not be seen.
func (l *Ledger) Check(ctx context.Context) error {
	_, err := l.lessableState(ctx)
	return err
}

// checkNow is Check by a look of its own, whatever was seen a moment ago: for what
// is done as soon as it is written. (A lease is used only if it came through the
// connection that was looked through.) It returns the state as lessableState does.
func (l *Ledger) checkNow(ctx context.Context) (*state, error) {
	l.uncheck()
	return l.lessableState(ctx)
}

// Halt stops all leasing, in all rooms, until `march recover` begins a new
// epoch. What is held may still be issued. Where leasing is halted already, that
// halt stays. Its errors are Unavailable and what keeps the epoch from being
// read.
func (l *Ledger) Halt(ctx context.Context, who, why string) (HaltRecord, error) {
	for range haltAttempts {
		if _, err := l.Refresh(ctx); err != nil && allocator.KindOf(err) != allocator.Refused {
			return HaltRecord{}, err
		}
		if h, ok := l.Halted(); ok {
			return h, nil
		}
		s, _ := l.current()
		if s.raw == nil {
			return HaltRecord{}, s.lessable()
		}
		if _, err := l.halt(ctx, s.raw, haltValue{By: who, Why: why}); err != nil && allocator.KindOf(err) != allocator.Conflict {
			return HaltRecord{}, err
		}
	}
	return HaltRecord{}, allocator.Errorf(allocator.Conflict, "the epoch was changed by others %d times while leasing was to be halted", haltAttempts)
}

// haltAttempts bounds how often Halt starts over because the epoch was changed
// by somebody else just then.
const haltAttempts = 5

// halt writes a halt over the epoch, where its value still is was, and returns
// the key as it wrote it. Its errors are Conflict and Unavailable.
func (l *Ledger) halt(ctx context.Context, was []byte, v haltValue) (KV, error) {
	v.Time, v.Nonce = now(), randomHex()
	value := encode(&epochValue{Halted: &v})
	answer, err := l.try(ctx, Txn{
		If:   []Cond{hasValue(l.keys.epoch(), was)},
		Then: []Op{put(l.keys.epoch(), value), l.audit(v.By, "halt", l.keys.epoch(), was, value)},
	})
	if err == nil && answer.Succeeded {
		l.log.Error("leasing is halted", "by", v.By, "why", v.Why)
		return KV{Key: l.keys.epoch(), Value: value, ModRevision: answer.Revision}, nil
	}
	// Unknown, or perhaps sent twice: the nonce tells.
	if check, checkErr := l.gets(ctx, get(l.keys.epoch())); checkErr == nil {
		if kv, ok := check.one(0); ok && string(kv.Value) == string(value) {
			return kv, nil
		}
	}
	if err != nil {
		return KV{}, err
	}
	return KV{}, allocator.Errorf(allocator.Conflict, "the epoch was changed by somebody else just now")
}

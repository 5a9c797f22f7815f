package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/march-id/march/allocator"
)

// The beat says "etcd was at least here". It needs no memory of who reads it: a
// raft index below the beat's is that of another raft log, which a restore
// begins and a restart does not. The index is read from a member after it has
// answered a linearizable read of the beat; so that member has applied the beat's
// own entry, which comes after the index that the beat carries. A term alone is
// no evidence, and is noted for people only.

const (
	// beatEvery is how old a beat is when somebody writes the next one.
	beatEvery = 10 * time.Second
	// beatGrowth is by what factor the raft index has grown when somebody writes
	// the next one before that. A log that just began (init, a restore and a recover)
	// is at many times its first index within seconds: a beat of its first moments
	// would say little of it, should it be restored from a backup then. It is a dozen
	// writes in a log's life.
	beatGrowth = 2
)

func (c check) fresh() bool { return !c.at.IsZero() && allocator.Elapsed(c.at, time.Now()) < checkFor }

// restored returns why etcd must have been restored, by beat and status.
func (s *sight) restored() string {
	if !s.full || mutant("no-beat") || s.beatKV.ModRevision == 0 || s.status.RaftIndex >= s.beat.RaftIndex {
		return ""
	}
	return fmt.Sprintf("etcd's raft index is %d, and was %d at %s: it was restored from a backup",
		s.status.RaftIndex, s.beat.RaftIndex, s.beat.Time.Format(time.RFC3339))
}

// beatOn writes the next beat where the one that s saw is old, or the raft log has
// grown far past it: upward only, over what s saw and under its epoch. That it fails is nothing to tell: the next one
// who looks does it.
func (l *Ledger) beatOn(ctx context.Context, s *sight) {
	age := now().Sub(s.beat.Time)
	fresh := age >= 0 && age < beatEvery && s.status.RaftIndex/beatGrowth < s.beat.RaftIndex
	if s.beatKV.ModRevision != 0 && (fresh || s.status.RaftIndex <= s.beat.RaftIndex) {
		return
	}
	if l.haltsAs() == "" {
		return
	}
	value := newBeat(s.status)
	txn := Txn{
		If:   []Cond{unchanged(s.beatKV), hasValue(l.keys.epoch(), s.state.raw)},
		Then: []Op{put(s.beatKV.Key, encode(&value))},
	}
	if _, err := l.try(ctx, txn); err != nil {
		l.log.Debug("beat not written", "error", err)
	}
}

func newBeat(s Status) beatValue {
	return beatValue{RaftIndex: s.RaftIndex, RaftTerm: s.RaftTerm, Revision: s.Revision, Time: now()}
}

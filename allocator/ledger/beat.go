package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// The beat says "etcd was at least here". Its reader needs no memory of its own: a
// raft index below the beat's belongs to another raft log. A restore begins another
// log; a restart does not. The index is read from a member after that member has
// answered a linearizable read of the beat. So the member has applied the beat's
// own entry, which comes after the index that the beat carries. The beat's term is
// no evidence; it is there for people to read.

const (
	// beatEvery is how old a beat is when a probe writes the next one.
	beatEvery = 10 * time.Second
	// beatGrowth is the factor by which the raft index has grown when a probe writes
	// the next beat before beatEvery has passed. A log that just began (after an init,
	// or a restore and a recover) reaches many times its first index within seconds. A
	// beat of its first moments would hardly show a restore from a backup that was
	// taken soon after. The factor costs a dozen writes in a log's life.
	beatGrowth = 2
)

func (c check) fresh() bool { return !c.at.IsZero() && allocator.Elapsed(c.at, time.Now()) < checkFor }

// restored returns why etcd must have been restored, by beat and status.
func (s *probeResult) restored() string {
	if !s.full || s.beatKV.ModRevision == 0 || s.status.RaftIndex >= s.beat.RaftIndex {
		return ""
	}
	return fmt.Sprintf("etcd's raft index is %d, and was %d at %s: it was restored from a backup",
		s.status.RaftIndex, s.beat.RaftIndex, s.beat.Time.Format(time.RFC3339))
}

// beatOn writes the next beat if the one that s saw is old, or the raft log has
// grown far past it. It writes only a higher index, over the beat that s saw and under
// the epoch that s saw. It ignores errors: the next probe writes the beat.
func (l *Ledger) beatOn(ctx context.Context, s *probeResult) {
	age := l.now().Sub(s.beat.Time)
	fresh := age >= 0 && age < beatEvery && s.status.RaftIndex/beatGrowth < s.beat.RaftIndex
	if s.beatKV.ModRevision != 0 && (fresh || s.status.RaftIndex <= s.beat.RaftIndex) {
		return
	}
	if l.haltsAs() == "" {
		return
	}
	value := record.NewBeat(s.status, l.now())
	txn := store.Txn{
		If:   []store.Cond{store.Unchanged(s.beatKV), store.HasValue(l.keys.Epoch(), s.state.raw)},
		Then: []store.Op{store.OpPut(s.beatKV.Key, record.Encode(&value))},
	}
	if _, err := l.Try(ctx, txn); err != nil {
		l.log.Debug("beat not written", "error", err)
	}
}

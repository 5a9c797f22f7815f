package console

import (
	"cmp"
	"context"
	"time"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/throttle"
)

const (
	// sizeEvery is how often a console asks how large etcd is, and compactEvery how
	// often it compacts etcd's history.
	sizeEvery = time.Minute
	// alarmEvery is how often it asks while etcd has raised an alarm, or a member does not answer, so that operators
	// soon see the end of it.
	alarmEvery   = 5 * time.Second
	compactEvery = time.Hour
	// keepHistory is how much history stays: more than any watch is behind, and
	// enough for an operator to look at after an accident.
	keepHistory = 2 * time.Hour
	// nearQuota is the part of etcd's quota from which on a console warns.
	nearQuota = 0.8
)

// compactions decides up to which revision etcd may be compacted: the latest one of two
// hours ago, by the console's own monotonic clock. So several consoles do not disturb
// each other, nor an etcd that compacts by itself.
type compactions struct {
	seen []seenRevision // the oldest first, compactEvery apart
}

type seenRevision struct {
	at       time.Time
	revision int64
}

// due notes the latest revision, and returns the one to compact at; 0 for none.
func (c *compactions) due(now time.Time, revision int64) (at int64) {
	last := len(c.seen) - 1
	switch {
	case last >= 0 && revision < c.seen[last].revision:
		c.seen = nil // etcd was restored, so its revisions began anew
	case last >= 0 && now.Sub(c.seen[last].at) < compactEvery:
		return 0
	}
	c.seen = append(c.seen, seenRevision{now, revision})
	for len(c.seen) > 0 && now.Sub(c.seen[0].at) >= keepHistory {
		at, c.seen = c.seen[0].revision, c.seen[1:]
	}
	return at
}

// upkeep keeps etcd small, reads how full it and the slices of workers are, and forgets instances that are silent for
// long. Only tend uses what it remembers, but for forgetLog.
type upkeep struct {
	*view
	compactions
	pause            time.Duration // before the next time
	sizeLog, fullLog throttle.Log
	forgetLog        throttle.Log
}

// tend reads how large etcd is, and compacts its history. Each
// console does this: without it, heartbeats alone fill an etcd that runs with
// default flags. It returns the pause before the next time.
func (s *upkeep) tend(ctx context.Context) (pause time.Duration) {
	s.readWorkers(ctx)
	s.pause = cmp.Or(s.pause, sizeEvery)
	size, err := s.admin.StoreSize(ctx)
	if err == nil {
		err = s.sized(ctx, size)
	}
	if err != nil && ctx.Err() == nil {
		s.pause = alarmEvery
		s.sizeLog.Log(time.Now(), s.log.Debug, "read or compact etcd's history", "error", err)
	}
	return s.pause
}

// sized notes how large etcd is, and compacts its history if that is due.
func (s *upkeep) sized(ctx context.Context, size admin.StoreSize) error {
	members := s.ledger.Members(ctx)
	now := s.publish(func(next *snapshot) {
		next.etcd = next.etcd.note(size, members, time.Now())
		next.trends = next.trends.note(time.Now(), etcdKind, map[string]int64{etcdBytes: size.Bytes})
	})
	if s.pause = sizeEvery; members.Answer < members.All || size.NoSpace || size.Corrupt {
		s.pause = alarmEvery
	}
	for _, p := range now.etcd.fullness(s.ledger.Etcdctl()) {
		s.fullLog.Log(time.Now(), s.log.Warn, p.GetWhat(), "bytes", size.Bytes, "quota", size.Quota,
			"remedy", problem.Plain(p))
	}
	at := s.due(time.Now(), size.Revision)
	if at == 0 {
		return nil
	}
	s.log.Debug("etcd's history is compacted", "revision", at)
	return s.admin.Compact(ctx, at)
}

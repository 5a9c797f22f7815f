package console

import (
	"context"
	"time"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/store"
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

// tend asks how large etcd is, and compacts its history, until ctx ends. Each
// console does this: without it, heartbeats alone fill an etcd that runs with
// default flags.
func (s *Server) tend(ctx context.Context) {
	var c compactions
	var sizeLog, fullLog throttle.Log
	every := sizeEvery
	for {
		s.lookAtWorkers(ctx)
		size, err := s.admin.StoreSize(ctx)
		if err == nil {
			members := s.ledger.Members(ctx)
			s.metrics.size(size, members)
			s.trends.Etcd(time.Now(), size.Bytes)
			every = sizeEvery
			if members.Answer < members.All {
				every = alarmEvery
			}
			if p := s.fullness.note(size, members, time.Now(), s.ledger.Etcdctl()); p != nil {
				if size.NoSpace || size.Corrupt {
					every = alarmEvery
				}
				fullLog.Log(time.Now(), s.log.Warn, p.GetWhat(), "bytes", size.Bytes, "quota", size.Quota,
					"remedy", problem.Plain(p))
			}
			if at := c.due(time.Now(), size.Revision); at > 0 {
				if err = s.admin.Compact(ctx, at); err == nil {
					s.log.Debug("etcd's history was compacted", "revision", at)
				}
			}
		}
		if err != nil && ctx.Err() == nil {
			sizeLog.Log(time.Now(), s.log.Debug, "read or compact etcd's history", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

// size notes how large etcd is.
func (n *metrics) size(s admin.StoreSize, members store.Members) {
	n.bytes.Set(float64(s.Bytes))
	n.quota.Set(float64(s.Quota))
	n.noSpace.Set(0)
	if s.NoSpace {
		n.noSpace.Set(1)
	}
	n.lost.Set(float64(members.All - members.Answer))
}

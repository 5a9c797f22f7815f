package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/api"
	"github.com/march-id/march/room"
)

// trips counts the round trips to etcd, one after another, of verify and recover: they decide
// how long these take if etcd is far away.
func trips(p *part) {
	const tags = 3
	c := p.restored(tags, tags)
	var questions atomic.Int64
	ask := func(ctx context.Context, s record.SeenInstance, q record.Question,
		use record.UseMarks) (m record.Memory, err error) {
		questions.Add(1)
		conn, err := api.Dial(s.Address)
		if err != nil {
			return m, err
		}
		defer func() { _ = conn.Close() }()
		return room.AskMarks(ctx, conn, q, use)
	}
	n := c.trips(func(l *ledger.Ledger) {
		r := must(recovery.Run(p.ctx, l,
			recovery.Config{Actor: "scale", Apply: true, Ask: ask, Wait: time.Millisecond}))
		if r.Raised != int64(3*len(c.rooms)) {
			p.Fatalf("%d marks were raised, not 3 in each room", r.Raised)
		}
	})
	p.figure(row{what: fmt.Sprintf("round trips to etcd of recover, %d tags", tags), goal: 14, atMost: true,
		note: fmt.Sprintf("and %d questions to each instance", questions.Load()/int64(len(c.rooms)))}, n)
	n = c.trips(func(l *ledger.Ledger) {
		if report := must(verify.Run(p.ctx, l.Cluster(), verify.Options{})); len(report.Problems) > 0 {
			p.Fatalf("verify: %q", report.Problems)
		}
	})
	p.figure(row{what: fmt.Sprintf("round trips to etcd of verify, %d tags", tags), goal: 8, atMost: true}, n)
}

// trips counts the round trips to etcd of a command, one after another.
func (c *processes) trips(command func(*ledger.Ledger)) float64 {
	far := &farStore{Store: must(store.NewEtcd(store.EtcdConfig{Endpoints: []string{c.etcd.Address}}))}
	l := c.ledger(far)
	_ = must(l.Ping(c.ctx)) // as each command does
	command(l)
	return float64(far.longest())
}

// farStore is a store at the end of a long line. It counts calls that follow one another: each
// counts one more than the call that last ended before it began. All take the same long time,
// so calls that are sent at once, without waiting for each other, begin before any of them
// ends, and count as one.
type farStore struct {
	store.Store
	mu   sync.Mutex
	ends int // the longest chain of calls that have ended
}

// away is how long a call takes at least: much longer than all other work between two calls.
const away = 300 * time.Millisecond

// far begins a call, and returns the function that ends it.
func (s *farStore) far() (end func()) {
	s.mu.Lock()
	this := s.ends + 1
	s.mu.Unlock()
	time.Sleep(away)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ends = max(s.ends, this)
	}
}

func (s *farStore) longest() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ends
}

// Txn implements ledger.Store.
func (s *farStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	defer s.far()()
	return s.Store.Txn(ctx, txn)
}

// Status implements ledger.Store.
func (s *farStore) Status(ctx context.Context) (store.Status, error) {
	defer s.far()()
	return s.Store.Status(ctx)
}

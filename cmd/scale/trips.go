package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/room"
)

// trips counts the round trips to etcd, one after another, of verify and recover: they decide
// how long these take if etcd is far away.
func trips(ctx context.Context, s sizes, add func(row)) (err error) {
	const tags = 3
	c, err := restored(ctx, s.march, tags, tags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	n, asked, err := c.recoverTrips(ctx)
	if err != nil {
		return err
	}
	add(row{
		what: fmt.Sprintf("round trips to etcd of recover, %d tags", tags), measured: float64(n), goal: 14,
		note: fmt.Sprintf("and %d questions to each instance", asked),
	})
	n, err = c.trips(ctx, func(l *ledger.Ledger) error {
		report, err := verify.Run(ctx, l.Cluster(), verify.Options{})
		if err == nil && len(report.Problems) > 0 {
			err = fmt.Errorf("verify: %q", report.Problems)
		}
		return err
	})
	add(row{what: fmt.Sprintf("round trips to etcd of verify, %d tags", tags), measured: float64(n), goal: 8})
	return err
}

// recoverTrips recovers as the command does, and returns the number of its round trips, and how
// often each instance was asked.
func (c *cluster) recoverTrips(ctx context.Context) (n, asked int, err error) {
	var mu sync.Mutex
	questions := 0
	ask := func(ctx context.Context, s record.SeenInstance, q record.Question,
		use record.UseMarks) (m record.Memory, err error) {
		mu.Lock()
		questions++
		mu.Unlock()
		conn, err := dial(s.Address, "127.0.0.1")
		if err != nil {
			return m, err
		}
		defer func() { _ = conn.Close() }()
		return room.AskMarks(ctx, conn, q, use)
	}
	n, err = c.trips(ctx, func(l *ledger.Ledger) error {
		r, err := recovery.Run(ctx, l, recovery.Config{Actor: "scale", Apply: true, Ask: ask, Wait: time.Millisecond})
		if err == nil && r.Raised != int64(3*len(c.rooms)) {
			err = fmt.Errorf("%d marks were raised, not 3 in each room", r.Raised)
		}
		return err
	})
	return n, questions / len(c.rooms), err
}

// trips counts the round trips to etcd of a command, one after another.
func (c *cluster) trips(ctx context.Context, command func(*ledger.Ledger) error) (int, error) {
	etcd, err := store.NewEtcd(store.EtcdConfig{Endpoints: []string{c.etcd.Address}})
	if err != nil {
		return 0, err
	}
	far := &farStore{Store: etcd}
	l, err := newLedger(far)
	if err != nil {
		return 0, errors.Join(err, etcd.Close())
	}
	if _, err = l.Ping(ctx); err == nil { // as each command does
		err = command(l)
	}
	return far.longest(), errors.Join(err, l.Close())
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

// leaseModel makes a room lease the model.
func leaseModel(ctx context.Context, address string) error {
	conn, err := dial(address, "127.0.0.1")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = marchv1.NewIDServiceClient(conn).Next(ctx, &marchv1.NextRequest{Tag: string(model)},
		grpc.WaitForReady(true))
	return err
}

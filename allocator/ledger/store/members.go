package store

import (
	"context"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
)

// Members says how many of the endpoints that a store was given answer. The zero value is unknown.
type Members struct {
	All, Answer int
	NoLeader    bool // one of those that answer knows no leader, and none knows one
}

// String returns a text such as "1 of 3 members answers, no leader".
func (m Members) String() string {
	text := fmt.Sprintf("%d of %d members answer", m.Answer, m.All)
	switch {
	case m.All == 0:
		return "it is not known how many members do"
	case m.Answer == 0 && m.All == 1:
		return "its member does not answer"
	case m.Answer == 0:
		return fmt.Sprintf("none of %d members answers", m.All)
	case m.Answer == 1:
		text += "s"
	}
	if m.NoLeader {
		text += ", no leader"
	}
	return text
}

// ReadMembers asks each of a store's endpoints for itself, without a majority. The protocol needs no such call, so this
// is no operation of a Store.
func ReadMembers(ctx context.Context, s Store) Members {
	if asks, ok := s.(interface {
		Members(ctx context.Context) Members
	}); ok {
		return asks.Members(ctx)
	}
	return Members{}
}

// Members asks without a user, as a password is checked by a majority. A member that refuses that answers.
func (e *etcd) Members(ctx context.Context) Members {
	m := Members{All: len(e.cfg.Endpoints)}
	var mu sync.Mutex // of m, and of these
	leaders, leaderless := 0, 0
	var asked sync.WaitGroup
	for _, endpoint := range e.cfg.Endpoints {
		asked.Go(func() {
			leader, err := e.ask(ctx, endpoint)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && leader:
				leaders++
			case err == nil:
				leaderless++
			case allocator.KindOf(err) == allocator.Unavailable:
				return
			}
			m.Answer++
		})
	}
	asked.Wait()
	m.NoLeader = leaderless > 0 && leaders == 0
	return m
}

// ask asks a member whether it knows a leader.
func (e *etcd) ask(ctx context.Context, endpoint string) (leader bool, err error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: e.cfg.secured(endpoint),
		Logger: zap.NewNop(), MaxUnaryRetries: 1,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast)}})
	if err != nil {
		return false, translate(endpoint, err)
	}
	defer func() { _ = c.Close() }()
	got, err := c.Status(ctx, endpoint)
	if err != nil {
		return false, translate(endpoint, err)
	}
	return got.Leader != 0, nil
}

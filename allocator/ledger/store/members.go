package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
)

// Members says how many members of etcd answer. The zero value is unknown.
type Members struct {
	All, Answer int
	NoLeader    bool   // one of those that answer knows no leader, and none knows one
	Away        string // the names of those that do not answer; empty if etcd's list of members is not known
	Given       bool   // All counts the addresses that were given, as etcd's list could not be read
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
	if m.Away != "" {
		text += ", not " + m.Away
	}
	if m.Given {
		text += " at the addresses that were given (etcd's own list could not be read)"
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

// said is what a member said of itself.
type said struct {
	answers, leader bool
	id              uint64                 // 0 where it told nothing
	list            []*etcdserverpb.Member // of the cluster's members; empty where it may not be read
}

// Members asks without a user, as a password is checked by a majority. A member that refuses that answers. It counts
// etcd's own list of members, and asks those that none of the given addresses leads to where they say that they are.
func (e *etcd) Members(ctx context.Context) Members {
	given := e.askAll(ctx, e.cfg.Endpoints)
	seen, leaders, leaderless, answer := map[uint64]bool{}, 0, 0, 0
	note := func(all []said) (list []*etcdserverpb.Member) {
		for _, a := range all {
			switch {
			case !a.answers:
				continue
			case a.leader:
				leaders++
			case a.id != 0:
				leaderless++
			}
			answer++
			seen[a.id] = true
			if list == nil {
				list = a.list
			}
		}
		return list
	}
	list := e.listed(ctx, note(given))
	m := Members{All: len(given), Answer: answer, Given: len(list) == 0 && len(given) > answer}
	if len(list) > 0 {
		var away []string
		for _, member := range list {
			if seen[member.ID] {
				continue
			}
			refuses := func(a said) bool { return a.answers && a.id == 0 }
			own := e.askAll(ctx, member.ClientURLs)
			if note(own); !seen[member.ID] && !slices.ContainsFunc(own, refuses) {
				away = append(away, cmp.Or(member.Name, fmt.Sprintf("%x", member.ID)))
			}
		}
		m.All, m.Answer, m.Away = len(list), len(list)-len(away), strings.Join(away, ", ")
	}
	m.NoLeader = leaderless > 0 && leaders == 0
	return m
}

// listed returns etcd's list of members: the one that an answer had, or else the one that this store's user may read,
// or the last one.
func (e *etcd) listed(ctx context.Context, list []*etcdserverpb.Member) []*etcdserverpb.Member {
	e.mu.Lock()
	user := e.mu.member
	e.mu.Unlock()
	if len(list) == 0 && user != nil {
		if got, err := user.MemberList(ctx, clientv3.WithSerializable()); err == nil {
			list = got.Members
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(list) > 0 {
		e.mu.list = list
	}
	return e.mu.list
}

// askAll asks members at once.
func (e *etcd) askAll(ctx context.Context, endpoints []string) []said {
	all := make([]said, len(endpoints))
	var asked sync.WaitGroup
	for k, endpoint := range endpoints {
		asked.Go(func() { all[k] = e.ask(ctx, endpoint) })
	}
	asked.Wait()
	return all
}

// ask asks a member for itself.
func (e *etcd) ask(ctx context.Context, endpoint string) said {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: e.cfg.secured(endpoint),
		Logger: zap.NewNop(), MaxUnaryRetries: 1,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(failFast)}})
	if err != nil {
		return said{}
	}
	defer func() { _ = c.Close() }()
	got, err := c.Status(ctx, endpoint)
	if err != nil {
		return said{answers: allocator.KindOf(translate(endpoint, err)) != allocator.Unavailable}
	}
	a := said{answers: true, leader: got.Leader != 0, id: got.Header.MemberId}
	if got, err := c.MemberList(ctx, clientv3.WithSerializable()); err == nil {
		a.list = got.Members
	}
	return a
}

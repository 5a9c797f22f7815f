package ledger_test

import (
	"context"
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// carried is a store whose answers to heartbeats come over another connection than all others, for
// as long as it says. It notes heartbeats and leaves.
type carried struct {
	store.Store
	times int
	did   []string
}

func (s *carried) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	for _, op := range txn.Then {
		switch {
		case op.Put == nil:
		case strings.HasPrefix(op.Put.Key, prefix+"alive/"):
			if s.did = append(s.did, "heartbeat"); s.times > 0 {
				s.times--
				answer.Connection += 100
			}
		case strings.Contains(string(op.Put.Value), `"leaving":true`):
			s.did = append(s.did, "leaving")
		}
	}
	return answer, err
}

// A leave counts only after a heartbeat whose answer came over the connection that was checked.
func TestLeaveTakesACheckedHeartbeat(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	p := c.process()
	etcd := &carried{Store: p.Conn}
	p.Ledger = ledgertest.Open(t, etcd)
	var err error
	if p.Instance, err = p.Ledger.Join(bg, ledger.Registration{Room: "a", Name: "one", Address: "one"}); err != nil {
		t.Fatal(err)
	}
	p.Lease(10)
	etcd.times, etcd.did = 2, nil
	if err := p.Leave(bg); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(etcd.did, " "); got != "heartbeat heartbeat heartbeat leaving" {
		t.Errorf("it left by: %s", got)
	}
}

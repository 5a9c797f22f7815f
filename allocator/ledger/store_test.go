package ledger_test

import (
	"testing"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/ledgertest/draw"
)

func TestMemoryStore(t *testing.T) {
	ledgertest.RunStore(t, func(t *testing.T) ledgertest.Subject {
		m := ledgertest.NewFake(t)
		return ledgertest.Subject{Store: m.Open(), Another: m.Open(), Compact: m.Compact}
	})
}

func TestEtcdStore(t *testing.T) {
	t.Parallel()
	ledgertest.RunStore(t, func(t *testing.T) ledgertest.Subject {
		e := ledgertest.StartEtcd(t)
		another := e.Store(t)
		return ledgertest.Subject{Store: e.Store(t), Another: another, Compact: func() { e.Compact(t, another) }}
	})
}

func TestStoresAnswerTheSame(t *testing.T) {
	draw.RunScripts(t, ledgertest.NewFake(t).Open(), ledgertest.StartEtcd(t).Store(t))
}

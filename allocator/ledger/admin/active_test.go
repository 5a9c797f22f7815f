package admin_test

import (
	"context"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/plan"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/internal/testcluster/memcluster"
)

// betweenReads calls do once, after the first read of a key.
type betweenReads struct {
	store.Store
	key string
	do  func()
}

func (s *betweenReads) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	answer, err := s.Store.Txn(ctx, txn)
	if do := s.do; do != nil && len(txn.Then) > 0 && txn.Then[0].Get != nil && txn.Then[0].Get.Key == s.key {
		s.do = nil
		do()
	}
	return answer, err
}

// A migration that ends between the two reads of the one under way is under way no
// longer. A console once ended it again, with an audit entry of its own.
func TestActiveMigrationThatEndsMeanwhile(t *testing.T) {
	c := memcluster.New(t, "100 a=0-50 b=50-100")
	from, err := c.Admin.Ledger.Refresh(bg)
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Admin.StartMigration(bg, from, record.Migration{From: from.Layout, Target: from.Layout}, "ann")
	if err != nil {
		t.Fatal(err)
	}
	etcd := &betweenReads{Store: c.Mem.Open(), key: prefix + "migration"}
	l := ledgertest.Open(t, etcd)
	if got, active, err := manage(l).ActiveMigration(bg); err != nil || !active || got.ID != m.ID {
		t.Fatalf("%+v, %v, %v", got, active, err)
	}
	etcd.do = func() {
		if _, err := c.Admin.UpdateMigration(bg, m, "end migration", "ann", func(m *record.Migration) error {
			m.State = record.Done
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if got, active, err := manage(l).ActiveMigration(bg); err != nil || active || got.ID != "" {
		t.Errorf("%+v, %v, %v", got, active, err)
	}
	if etcd.do != nil {
		t.Error("nothing happened between the reads")
	}
}

// A migration that begins just before a tag of time-ordered IDs is written, and leaves a room without a worker, refuses
// the tag.
func TestTagThatAMigrationOvertakes(t *testing.T) {
	c := memcluster.New(t, "100 a=0-50 b=50-100")
	from, err := c.Admin.Ledger.Refresh(bg)
	if err != nil {
		t.Fatal(err)
	}
	conn, began := c.Mem.Open(), false
	conn.Fate(func(txn store.Txn) ledgertest.Fate {
		if ledgertest.Writes(txn) && !began {
			began = true
			m := record.Migration{From: from.Layout, Target: ledgertest.Lay(t, "100 a=0-50 b=76-100")}
			m.Moves = record.MovesOf(plan.Move{Kind: plan.Retract, Layout: m.Target, Loses: []allocator.Room{"b"}})
			if _, err := c.Admin.StartMigration(bg, from, m, "bob"); err != nil {
				t.Error(err)
			}
		}
		return ledgertest.Fate{Name: ledgertest.Done}
	})
	timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 2, SequenceBits: 12, Unit: time.Millisecond,
		Epoch: timeid.EpochCosId})
	settings := record.DefaultTag()
	settings.Time = &timed
	_, err = manage(ledgertest.Open(t, conn)).CreateTag(bg, "event", settings, "ann")
	ledgertest.WantKind(t, err, allocator.Refused, "is under way", "room b", "no worker of 2 bits")
}

package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/store"
)

// A restored etcd waits with a token of the one before until its log is as long as it was then. A store
// with one endpoint asked with the old token for ever: its process was cut off until it started anew.
func TestUserOfARestoredEtcd(t *testing.T) {
	t.Parallel()
	etcd := ledgertest.StartEtcd(t)
	etcd.RequireCredentials(t)
	open := func() store.Store {
		return etcd.StoreOf(t, "root", func() (string, error) { return "root", nil })
	}
	put := store.Txn{Then: []store.Op{store.OpPut("key", []byte("value"))}}
	try := func(s store.Store) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Txn(ctx, put)
		return err
	}
	first := open()
	for range 100 {
		if err := try(first); err != nil {
			t.Fatal(err)
		}
	}
	before := open()
	if err := try(before); err != nil {
		t.Fatal(err)
	}
	etcd.Restore(t, etcd.Backup(t), 0, "")
	var err error
	for range 30 { // the first tries find no connection
		if err = try(before); err == nil {
			return
		}
		store.Pause(t.Context())
	}
	t.Errorf("after the restore: %v", err)
}

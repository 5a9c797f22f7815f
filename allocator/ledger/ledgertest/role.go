package ledgertest

import (
	"context"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// WithRole returns a store that refuses transactions whose writes the role does not allow, as an
// etcd with users does: also if the branch with the write would not be taken.
func WithRole(s store.Store, role record.Role) store.Store { return roleStore{s, role} }

type roleStore struct {
	store.Store
	role record.Role
}

func (s roleStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	for _, ops := range [][]store.Op{txn.Then, txn.Else} {
		for _, op := range ops {
			if key := writes(op); key != "" && !s.mayWrite(key) {
				return store.Answer{}, allocator.Errorf(allocator.Denied,
					"etcd: permission denied: %s may not write %s", s.role.Name, key)
			}
		}
	}
	return s.Store.Txn(ctx, txn)
}

// writes returns the key that an operation writes, empty if it only reads.
func writes(op store.Op) string {
	if op.Put != nil {
		return op.Put.Key
	}
	return op.Delete
}

func (s roleStore) mayWrite(key string) bool {
	for _, r := range s.role.Rights {
		if r.Write && (key == r.Key || strings.HasSuffix(r.Key, "/") && strings.HasPrefix(key, r.Key)) {
			return true
		}
	}
	return false
}

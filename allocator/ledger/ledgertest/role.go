package ledgertest

import (
	"context"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// WithRole returns a store that refuses transactions whose writes the role does not allow, as an
// etcd with users does.
func WithRole(s store.Store, role record.Role) store.Store { return roleStore{s, role} }

type roleStore struct {
	store.Store
	role record.Role
}

func (s roleStore) Txn(ctx context.Context, txn store.Txn) (store.Answer, error) {
	if key := Denied(s.role, txn); key != "" {
		return store.Answer{}, allocator.Errorf(allocator.Denied,
			"etcd: permission denied: %s may not write %s", s.role.Name, key)
	}
	return s.Store.Txn(ctx, txn)
}

// Denied returns the first key that a role does not let a transaction write, also in the branch
// that would not be taken; empty if it may write all.
func Denied(role record.Role, txn store.Txn) string {
	for _, op := range slices.Concat(txn.Then, txn.Else) {
		key := op.Delete
		if op.Put != nil {
			key = op.Put.Key
		}
		if key != "" && !slices.ContainsFunc(role.Rights, func(r store.Right) bool {
			return r.Write && (key == r.Key || r.End != "" && strings.HasPrefix(key, r.Key))
		}) {
			return key
		}
	}
	return ""
}

package sim_test

import (
	"strings"

	"github.com/march-id/march/allocator/ledger/store"
)

// tokenKeys are the keys of what processes keep for the next ones of their names.
const tokenKeys = "/march/default/kept/"

// keeps notes that a transaction, which may be done or not, puts the token of what its process kept.
func (l *link) keeps(txn store.Txn) {
	for _, op := range txn.Then {
		if op.Put != nil && strings.HasPrefix(op.Put.Key, tokenKeys) {
			l.w.mu.Lock()
			l.w.mu.tokens[string(op.Put.Value)] = l
			l.w.mu.Unlock()
			l.w.count("tokens of kept IDs", 1)
		}
	}
}

// tokenOf returns the token that a transaction takes, empty for none.
func tokenOf(txn store.Txn) string {
	for _, op := range txn.Then {
		for _, cond := range txn.If {
			if op.Delete != "" && strings.HasPrefix(op.Delete, tokenKeys) && cond.Key == op.Delete {
				return string(cond.Value)
			}
		}
	}
	return ""
}

// inherits notes that a process took what another one kept, in a transaction that counts as a lease does. From then on
// its leases are those of the other one, too.
func (l *link) inherits(token string) {
	l.w.mu.Lock()
	from := l.w.mu.tokens[token]
	l.w.mu.Unlock()
	if from == nil {
		l.w.Errorf("%s takes a token that no process put: %s", l.name, token)
		return
	}
	l.mu.Lock()
	l.mu.from = from
	l.mu.Unlock()
	l.w.count("processes that took what the one before kept", 1)
}

// before returns the process whose leases are also those of l, nil for none.
func (l *link) before() *link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.from
}

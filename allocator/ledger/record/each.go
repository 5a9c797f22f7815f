package record

import (
	"github.com/march-id/march/allocator/ledger/store"
)

// MaxUnreadable bounds how many unreadable keys are named at once.
const MaxUnreadable = 1000

// ReadEach reads every readable value in order, and names the keys of the others, at most
// maxUnreadable.
func ReadEach[T any](found []store.KV, read func(store.KV) (T, error)) (all []T, bad []KeyError) {
	all = make([]T, 0, len(found))
	for _, kv := range found {
		v, err := read(kv)
		if err == nil {
			all = append(all, v)
		} else if len(bad) < MaxUnreadable {
			bad = append(bad, *Unreadable(kv.Key, err))
		}
	}
	return all, bad
}

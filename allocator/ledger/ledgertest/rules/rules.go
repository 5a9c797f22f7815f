package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// Before is the content of a cluster's keys in etcd before a transaction. A value is zero if
// its key is missing or cannot be read.
type Before interface {
	// Get returns a key and its value.
	Get(key string) (store.KV, bool)
	// Older returns the keys with a prefix that sort before a key.
	Older(prefix, key string) []string
	Epoch() record.Epoch
	Layout() record.Layout // with its revision
	Tag(tag allocator.Tag) (record.Tag, bool)
	Mark(room allocator.Room, tag allocator.Tag) record.Mark
	// Floor returns the result of the function Floor for a tag when the present layout and
	// epoch came into force, 0 if it is not known.
	Floor(tag allocator.Tag) int64
	// Registered reports whether an instance of a room is registered.
	Registered(room allocator.Room) bool
	// WasInForce reports whether an epoch was in force before.
	WasInForce(epoch string) bool
}

// Write is a key that a transaction writes or deletes. A deleted key has mod revision 0.
type Write struct {
	store.KV
	record.Entry
}

// Broken is a rule that a transaction breaks.
type Broken struct {
	Rule string // constant for each rule
	Text string
}

// transaction has what one transaction writes, and the rules that it broke so far.
type transaction struct {
	Before
	keys   record.Keys
	writes []Write
	broken []Broken
}

// Begins reports whether a transaction begins an epoch: a cluster's first, or one after a
// halt.
func Begins(writes []Write) bool {
	return slices.ContainsFunc(writes, func(w Write) bool { return w.Epoch != nil && w.Epoch.Epoch != "" })
}

func (t *transaction) breaks(rule, format string, args ...any) {
	t.broken = append(t.broken, Broken{rule, fmt.Sprintf(format, args...)})
}

// inTurn reports whether a deleted key may be deleted: of layouts, migrations and audit entries
// the oldest goes when another one comes.
func (t *transaction) inTurn(w Write) bool {
	if w.Kind != record.Layouts && w.Kind != record.Migrations && !record.IsRing(w.Kind) {
		return true
	}
	gone := make(map[string]bool)
	comes := false
	for _, other := range t.writes {
		gone[other.Key] = other.ModRevision == 0
		comes = comes || other.Kind == w.Kind && other.ModRevision != 0
	}
	for _, key := range t.Older(w.Key[:strings.LastIndexByte(w.Key, '/')+1], w.Key) {
		if !gone[key] {
			return false
		}
	}
	return comes
}

// writesTo reports whether the transaction writes a value to a key of a kind.
func (t *transaction) writesTo(kind record.Kind, value []byte) bool {
	return slices.ContainsFunc(t.writes, func(w Write) bool {
		return w.Kind == kind && string(w.Value) == string(value)
	})
}

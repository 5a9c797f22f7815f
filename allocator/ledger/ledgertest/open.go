package ledgertest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/store"
)

const prefix = "/march/default/"

// Lay returns a layout from "boundary room=lower-upper ...".
func Lay(tb TB, text string) allocator.Layout {
	tb.Helper()
	l := allocator.Layout{Ranges: map[allocator.Room]allocator.Range{}}
	boundary, rooms, _ := strings.Cut(text, " ")
	_, err := fmt.Sscan(boundary, &l.Boundary)
	for _, part := range strings.Fields(rooms) {
		room, rng, _ := strings.Cut(part, "=")
		var r allocator.Range
		if _, scanErr := fmt.Sscanf(rng, "%d-%d", &r.Lower, &r.Upper); scanErr != nil {
			err = scanErr
		}
		if reserved, is := strings.CutPrefix(room, "!"); is {
			l.Reserved = map[allocator.Room]allocator.Range{allocator.Room(reserved): r}
			continue
		}
		l.Ranges[allocator.Room(room)] = r
	}
	if err != nil {
		tb.Fatalf("layout %q: %v", text, err)
	}
	return l
}

// Open returns a ledger over a store.
func Open(tb TB, etcd store.Store, change ...func(*ledger.Config)) *ledger.Ledger {
	tb.Helper()
	cfg := ledger.DefaultConfig()
	for _, f := range change {
		f(&cfg)
	}
	l, err := ledger.New(etcd, cfg)
	if err != nil {
		tb.Fatalf("new ledger: %v", err)
	}
	return l
}

// Next sets the fate of the next so many transactions that match accepts. met is how many it accepted so far.
func (c *Conn) Next(fate Fate, times int, match func(store.Txn) bool) (met *int) {
	met = new(int)
	c.Fate(func(txn store.Txn) Fate {
		if !match(txn) {
			return Fate{}
		}
		c.mu.Lock() // transactions may be sent at once
		defer c.mu.Unlock()
		if *met++; *met > times {
			return Fate{}
		}
		return fate
	})
	return met
}

// PutsUnder matches transactions that put a key that begins with a prefix, below the cluster's.
func PutsUnder(key string) func(store.Txn) bool {
	return func(txn store.Txn) bool {
		return slices.ContainsFunc(txn.Then, func(op store.Op) bool {
			return op.Put != nil && strings.HasPrefix(op.Put.Key, prefix+key)
		})
	}
}

// WantKind checks an error's Kind, and that its message contains all of parts.
func WantKind(tb TB, err error, kind allocator.Kind, parts ...string) {
	tb.Helper()
	if err == nil || allocator.KindOf(err) != kind {
		tb.Errorf("error %v, want %v", err, kind)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			tb.Errorf("error %q does not say %q", err, part)
		}
	}
}

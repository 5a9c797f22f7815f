package record

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator/ledger/store"
)

// AuditEntry is one change, recorded in its own transaction, or a refused attempt.
type AuditEntry struct {
	kept
	ID     string          `json:"-"` // a ULID, as the key has it: entries sort by time
	Hash   string          `json:"-"` // of the stored value
	Time   time.Time       `json:"time"`
	Actor  string          `json:"actor"`
	Action string          `json:"action"`         // "create tag", say
	Object string          `json:"object"`         // the key without the cluster's prefix: "tags/order", say
	From   json.RawMessage `json:"from,omitempty"` // the stored value before; empty for none
	To     json.RawMessage `json:"to,omitempty"`   // the stored value after

	// Writer names the chain that the entry is in, which is one process's, and Sequence is its number there.
	// Both are empty in entries of builds that do not chain.
	Writer   string `json:"writer,omitempty"`
	Sequence int64  `json:"sequence,omitempty,string"`
	// After has the hashes of earlier entries of the chain, by ID.
	After map[string]string `json:"after,omitempty"`
}

// Validate checks that an entry is in a chain or in none.
func (e *AuditEntry) Validate() error {
	if (e.Writer == "") != (e.Sequence <= 0) || e.Writer == "" && len(e.After) > 0 {
		return fmt.Errorf("writer %q, sequence %d: an entry has both or none", e.Writer, e.Sequence)
	}
	return nil
}

// Oldest is from where on the entries of a ring are kept.
type Oldest struct {
	kept
	Removed string `json:"removed"` // the ID of the latest entry that was removed because the ring was full
	ID      string `json:"id"`      // of the oldest one that was left,
	Hash    string `json:"hash"`    // and its hash
}

// Audited returns the operation that records a change, to be part of the change's own
// transaction. from and to are the values of key object before and after, nil for none.
func (k Keys) Audited(at time.Time, actor, action, object string, from, to []byte) store.Op {
	return store.OpPut(k.All(Audits)+NewULID(), Encode(&AuditEntry{
		Time: at, Actor: actor, Action: action, Object: object[len(k):],
		From: asJSON(from), To: asJSON(to),
	}))
}

// Refused returns the operation that records a refused attempt.
func (k Keys) Refused(at time.Time, actor, action, object string) store.Op {
	return store.OpPut(k.All(Refusals)+NewULID(), Encode(&AuditEntry{Time: at, Actor: actor, Action: action,
		Object: object}))
}

// maxAfter bounds the earlier entries that an entry names.
const maxAfter = 4

// Chain links the entries that one process writes to one ring. Each names the hashes of those before it that were
// written and that no other one names. Of entries that are written at the same moment each names others. Its methods
// are safe for concurrent use.
type Chain struct {
	ring string // the prefix of its keys
	mu   struct {
		sync.Mutex
		writer   string
		sequence int64
		heads    map[string]string // hashes of written entries that none names, by ID
	}
}

// NewChain returns a chain of a ring.
func NewChain(ring string) *Chain {
	c := &Chain{ring: ring}
	c.mu.writer, c.mu.heads = rand.Text(), make(map[string]string)
	return c
}

// Link links an entry of the chain's ring that is about to be sent. It returns what is sent instead, the entry, and a
// function for the outcome: whether the entry is known to be written. Of another key it returns no entry.
func (c *Chain) Link(put *store.Put) (linked *store.Put, e *AuditEntry, done func(written bool)) {
	id, of := strings.CutPrefix(put.Key, c.ring)
	if !of {
		return put, nil, nil
	}
	e = &AuditEntry{}
	if Decode(store.KV{Key: put.Key, Value: put.Value}, e) != nil {
		return put, nil, nil // no entry of this program
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.sequence++
	e.Writer, e.Sequence = c.mu.writer, c.mu.sequence
	for _, head := range slices.Sorted(maps.Keys(c.mu.heads))[:min(maxAfter, len(c.mu.heads))] {
		if e.After == nil {
			e.After = make(map[string]string, maxAfter)
		}
		e.After[head] = c.mu.heads[head]
		delete(c.mu.heads, head)
	}
	linked = &store.Put{Key: put.Key, Value: Encode(e)}
	e.ID, e.Hash = id, HashOf(linked.Value)
	return linked, e, func(written bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if written {
			c.mu.heads[e.ID] = e.Hash
			return
		}
		maps.Copy(c.mu.heads, e.After)
	}
}

// asJSON returns a value unchanged, or as a JSON text if it is no JSON, perhaps after a slip by
// hand.
func asJSON(value []byte) json.RawMessage {
	if len(value) == 0 || json.Valid(value) {
		return value
	}
	text, _ := json.Marshal(string(value)) // a string can be encoded
	return text
}

// entropy grows with each ULID of this process. It is told the same millisecond each time: it would
// begin anew with each other one, and the order would be lost when a clock is set back, or when
// goroutines interleave at the end of a millisecond.
var entropy = ulid.LockedMonotonicReader{MonotonicReader: ulid.Monotonic(rand.Reader, 0)}

// NewULID returns the ID of a new audit entry or migration. The IDs that one process makes in one
// millisecond sort as they were made.
func NewULID() string { return ulidAt(ulid.Now()) }

func ulidAt(ms uint64) string {
	var id ulid.ULID
	_ = id.SetTime(ms)                   // it has room until the year 10889
	_ = entropy.MonotonicRead(0, id[6:]) // its only error is an overflow, and then it begins anew
	return id.String()
}

package main

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// flatStore is a Store with a million tags that takes no time, and allocates no memory while it
// is used: all tags have the same value, and the marks are in slots that were made before. So a
// room's memory grows only by what the room itself allocates.
//
// The tags are t0000000, t0000001 and so on; the mark of such a tag, whatever form its key has,
// is in the tag's slot. Everything else is in a map.
type flatStore struct {
	mu    sync.Mutex
	rev   int64
	tag   []byte // the value of each tag
	keys  map[string]store.KV
	slots []byte
	marks []mark

	leased time.Time // when a mark was last written, zero for never
}

// mark is the content of a slot.
type mark struct {
	size     int32
	revision int64
}

// slotSize is larger than the value of a mark that was never moved.
const slotSize = 512

func tagName(i int) allocator.Tag { return allocator.Tag("t" + leftPadded(i)) }

func leftPadded(i int) string {
	s := strconv.Itoa(i)
	return strings.Repeat("0", 7-len(s)) + s
}

func newFlatStore(tags int) *flatStore {
	s := &flatStore{rev: 1, keys: make(map[string]store.KV), slots: make([]byte, tags*slotSize),
		marks: make([]mark, tags)}
	for i := 0; i < len(s.slots); i += 4096 {
		s.slots[i] = 1 // the system provides the memory only now
	}
	return s
}

// slotOf returns the number of the tag in a key, -1 for none, and whether the key is the tag's
// own.
func (s *flatStore) slotOf(key string) (slot int, own bool) {
	for part := range strings.SplitSeq(key, "/") {
		if len(part) != 8 || part[0] != 't' {
			continue
		}
		if i, err := strconv.Atoi(part[1:]); err == nil && i >= 0 && i < len(s.marks) {
			return i, strings.Contains(key, "/tags/")
		}
	}
	return -1, false
}

func (s *flatStore) get(key string) (kv store.KV, ok bool) {
	slot, own := s.slotOf(key)
	switch {
	case slot < 0:
		kv, ok = s.keys[key]
		return kv, ok
	case own:
		return store.KV{Key: key, Value: s.tag, ModRevision: 1}, s.tag != nil
	}
	m := s.marks[slot]
	return store.KV{Key: key, Value: slices.Clone(s.slots[slot*slotSize:][:m.size]), ModRevision: m.revision},
		m.revision > 0
}

func (s *flatStore) put(key string, value []byte) {
	slot, own := s.slotOf(key)
	switch {
	case slot >= 0 && !own && len(value) <= slotSize:
		copy(s.slots[slot*slotSize:], value)
		s.marks[slot] = mark{int32(len(value)), s.rev}
		s.leased = time.Now()
	default:
		s.keys[key] = store.KV{Key: key, Value: slices.Clone(value), ModRevision: s.rev}
	}
}

// settle waits until no mark was written for some time.
func (s *flatStore) settle(quiet time.Duration) {
	for {
		s.mu.Lock()
		left := quiet - time.Since(s.leased)
		s.mu.Unlock()
		if left <= 0 {
			return
		}
		time.Sleep(left)
	}
}

// Txn implements ledger.Store.
func (s *flatStore) Txn(_ context.Context, txn store.Txn) (store.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ops := txn.Then
	answer := store.Answer{Sender: sender(), Succeeded: true}
	for _, c := range txn.If {
		kv, ok := s.get(c.Key)
		if c.Value != nil && (!ok || !bytes.Equal(c.Value, kv.Value)) || (c.Value == nil || c.ModRevision != 0) &&
			c.ModRevision != kv.ModRevision {
			answer.Succeeded, ops = false, txn.Else
			break
		}
	}
	if slices.ContainsFunc(ops, func(op store.Op) bool { return op.Get == nil }) {
		s.rev++
	}
	for _, op := range ops {
		switch {
		case op.Put != nil:
			s.put(op.Put.Key, op.Put.Value)
		case op.Get != nil:
			kvs := s.list(*op.Get)
			answer.Got, answer.Counts = append(answer.Got, kvs), append(answer.Counts, int64(len(kvs)))
		default:
			delete(s.keys, op.Delete)
		}
	}
	answer.Revision = s.rev
	return answer, nil
}

// list reads an interval; of tags and marks only single ones.
func (s *flatStore) list(g store.Get) []store.KV {
	kvs := []store.KV{}
	if g.End == "" {
		if kv, ok := s.get(g.Key); ok {
			kvs = append(kvs, kv)
		}
		return kvs
	}
	for key, kv := range s.keys {
		if g.Key <= key && key < g.End {
			kvs = append(kvs, kv)
		}
	}
	slices.SortFunc(kvs, func(a, b store.KV) int { return strings.Compare(a.Key, b.Key) })
	if g.Descending {
		slices.Reverse(kvs)
	}
	if g.Limit > 0 && int64(len(kvs)) > g.Limit {
		kvs = kvs[:g.Limit]
	}
	return kvs
}

func sender() store.Sender { return store.Sender{ClusterID: 1, MemberID: 1, Connection: 1} }

// Watch implements ledger.Store: nothing changes that the room did not write.
func (s *flatStore) Watch(ctx context.Context, _ []store.Interval, _ int64) <-chan store.Change {
	changes := make(chan store.Change)
	go func() {
		<-ctx.Done()
		close(changes)
	}()
	return changes
}

// Status implements ledger.Store.
func (s *flatStore) Status(context.Context) (store.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.Status{Sender: sender(), Revision: s.rev, Version: "3.7.3", RaftIndex: uint64(s.rev), RaftTerm: 1}, nil
}

// Close implements ledger.Store.
func (s *flatStore) Close() error { return nil }

// Compact implements ledger.Store.
func (s *flatStore) Compact(context.Context, int64) error { return nil }

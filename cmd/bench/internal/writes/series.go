package writes

import (
	"maps"
	"strings"

	"github.com/march-id/march/allocator/ledger/store"
)

// Count is an amount of writes.
type Count struct {
	Writes int64 // transactions that went into etcd's log, even if they changed nothing
	Bytes  int64 // of their keys and values, including the compared ones
}

func (c Count) plus(o Count) Count { return Count{c.Writes + o.Writes, c.Bytes + o.Bytes} }

func (c Count) times(n int64) Count { return Count{c.Writes * n, c.Bytes * n} }

// Series has the writes of each second, by the kind of key: the first part of the first key
// that a transaction writes.
type Series map[string][]Count

// add counts a transaction in a second. A transaction that writes in neither branch is no
// write.
func (s Series) add(second int, txn store.Txn) {
	kind := kindOf(txn)
	if kind == "" {
		return
	}
	for len(s[kind]) <= second {
		s[kind] = append(s[kind], Count{})
	}
	s[kind][second] = s[kind][second].plus(Count{1, size(txn)})
}

// kindOf returns the kind of the first key that a transaction may write, empty for none. etcd
// puts such a transaction into its log whatever its conditions decide.
func kindOf(txn store.Txn) string {
	for _, ops := range [][]store.Op{txn.Then, txn.Else} {
		for _, op := range ops {
			key := op.Delete
			if op.Put != nil {
				key = op.Put.Key
			}
			if op.Get == nil {
				parts := strings.SplitN(key, "/", 5) // "", march, the cluster, the kind
				return parts[min(3, len(parts)-1)]
			}
		}
	}
	return ""
}

func size(txn store.Txn) (n int64) {
	for _, c := range txn.If {
		n += int64(len(c.Key) + len(c.Value))
	}
	for _, ops := range [][]store.Op{txn.Then, txn.Else} {
		for _, op := range ops {
			switch {
			case op.Put != nil:
				n += int64(len(op.Put.Key) + len(op.Put.Value))
			case op.Get != nil:
				n += int64(len(op.Get.Key) + len(op.Get.End))
			default:
				n += int64(len(op.Delete))
			}
		}
	}
	return n
}

// Sum returns the writes from one second until before another, by kind of key.
func (s Series) Sum(from, to int) map[string]Count {
	sums := make(map[string]Count)
	for kind, counts := range s {
		var sum Count
		for _, c := range counts[min(from, len(counts)):min(to, len(counts))] {
			sum = sum.plus(c)
		}
		if sum != (Count{}) {
			sums[kind] = sum
		}
	}
	return sums
}

// Busiest returns the first second of the window of some seconds with the most writes, of the
// windows between two seconds. Kinds in weights count that many times.
func (s Series) Busiest(from, to, window int, weights map[string]int64) (second int) {
	most := int64(-1)
	for at := from; at+window <= to; at++ {
		if n := Total(Weigh(s.Sum(at, at+window), weights)).Writes; n > most {
			most, second = n, at
		}
	}
	return second
}

// Weigh returns sums in which kinds in weights count that many times.
func Weigh(sums map[string]Count, weights map[string]int64) map[string]Count {
	weighed := maps.Clone(sums)
	for kind, times := range weights {
		if sum, ok := weighed[kind]; ok {
			weighed[kind] = sum.times(times)
		}
	}
	return weighed
}

// Total returns the sum over all kinds.
func Total(sums map[string]Count) (all Count) {
	for _, sum := range sums {
		all = all.plus(sum)
	}
	return all
}

package admin

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// reads returns what reads keys of a kind.
func reads[T any](a *view) func(store.KV) (T, error) {
	return func(kv store.KV) (T, error) { return record.ReadAs[T](a.keys, kv) }
}

// readOne reads a key that is there; otherwise its error is missing.
func readOne[T any](ctx context.Context, a *view, key string, read func(store.KV) (T, error),
	missing error) (v T, err error) {
	if err := a.Ledger.AttachToRead(ctx); err != nil {
		return v, err
	}
	answer, err := a.Ledger.Gets(ctx, store.OpGet(key))
	if err != nil {
		return v, err
	}
	if kv, ok := answer.One(0); ok {
		return read(kv)
	}
	return v, missing
}

// readPage reads the first n readable values of an interval, or all, and names the
// unreadable keys before them.
func readPage[T any](
	ctx context.Context, a *view, in store.Get, n int, read func(store.KV) (T, error),
) (all []T, bad []record.KeyError, err error) {
	in.Limit = int64(n)
	for {
		answer, err := a.Ledger.Gets(ctx, store.Op{Get: &in})
		if err != nil {
			return nil, nil, err
		}
		found := answer.Got[0]
		for _, kv := range found {
			page, skipped := record.ReadEach([]store.KV{kv}, read)
			all, bad = append(all, page...), append(bad, skipped...)
			if len(all) == n {
				return all, bad[:min(len(bad), record.MaxUnreadable)], nil
			}
		}
		if int64(len(found)) < in.Limit {
			return all, bad[:min(len(bad), record.MaxUnreadable)], nil
		}
		if last := found[len(found)-1].Key; in.Descending {
			in.End = last
		} else {
			in.Key = last + "\x00"
		}
		in.Limit = max(in.Limit, 100)
	}
}

// EachTag calls use with every tag, in the order of names, and its marks. Its
// errors are those of record.Walk and of Refresh.
func (a *view) EachTag(ctx context.Context, use func(record.Tag,
	map[allocator.Room]record.Mark) error) ([]record.KeyError, error) {
	stored, err := a.Ledger.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	return a.EachTagIn(ctx, stored.Ever, use)
}

// EachTagIn is EachTag with the marks of some rooms, for callers that only show them:
// it does not need a usable layout.
func (a *view) EachTagIn(ctx context.Context, rooms []allocator.Room,
	use func(record.Tag, map[allocator.Room]record.Mark) error) ([]record.KeyError, error) {
	return record.Walk{Keys: a.keys, Gets: a.Ledger.Gets}.EachTag(ctx, rooms, use)
}

// past is what etcd has of a name: its key, and its marks in all rooms that ever were.
type past struct {
	kv    store.KV
	there bool // the key is
	marks map[allocator.Room]record.Mark
	conds []store.Cond // that the mark of each room that ever was is as it was
}

// past reads what etcd has of a name. Its errors are Unavailable, and a KeyError if a mark cannot
// be read.
func (a *Admin) past(ctx context.Context, s *ledger.State, name allocator.Tag) (p past, err error) {
	ops := []store.Op{store.OpGet(a.keys.Tag(name))}
	for _, room := range s.Layout().Ever {
		ops = append(ops, store.OpGet(a.keys.Mark(room, name)))
	}
	answer, err := a.Ledger.Gets(ctx, ops...)
	if err != nil {
		return p, err
	}
	p.kv, p.there = answer.One(0)
	p.marks = make(map[allocator.Room]record.Mark)
	for k, room := range s.Layout().Ever {
		kv, there := answer.One(k + 1)
		if !there {
			p.conds = append(p.conds, store.Absent(ops[k+1].Get.Key))
			continue
		}
		p.conds = append(p.conds, store.Unchanged(kv))
		if p.marks[room], err = record.DecodeMark(kv); err != nil {
			return p, err
		}
	}
	return p, nil
}

package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// readPage reads the first n values of an interval that can be read, or all, and
// names the keys of those before them that cannot.
func readPage[T any](
	ctx context.Context, l *Ledger, in store.Get, n int, read func(store.KV) (T, error),
) (all []T, bad []record.KeyError, err error) {
	in.Limit = int64(n)
	for {
		answer, err := l.gets(ctx, store.Op{Get: &in})
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

// eachPage is how many tags EachTag reads at once.
const eachPage = 1000

// EachTag calls use with every tag, in the order of names, and its marks. It
// holds a page of tags in memory at a time; tags that change meanwhile may be
// seen before or after. It ends with use's first error. It passes over a tag that
// cannot be read, or of which a mark cannot be read, and returns the key.
func (l *Ledger) EachTag(ctx context.Context, use func(record.Tag, map[allocator.Room]record.Mark) error) ([]record.KeyError, error) {
	return l.eachTag(ctx, eachPage, use)
}

func (l *Ledger) eachTag(ctx context.Context, size int64, use func(record.Tag, map[allocator.Room]record.Mark) error) ([]record.KeyError, error) {
	stored, err := l.Refresh(ctx)
	if err != nil {
		return nil, err
	}
	return l.eachTagIn(ctx, stored.Ever, size, use)
}

// EachTagIn is EachTag with the marks of some rooms, for what only shows them: it needs
// no layout that can be used.
func (l *Ledger) EachTagIn(ctx context.Context, rooms []allocator.Room, use func(record.Tag, map[allocator.Room]record.Mark) error) ([]record.KeyError, error) {
	return l.eachTagIn(ctx, rooms, eachPage, use)
}

func (l *Ledger) eachTagIn(ctx context.Context, rooms []allocator.Room, size int64, use func(record.Tag, map[allocator.Room]record.Mark) error) ([]record.KeyError, error) {
	return l.eachTagPage(ctx, size, func(tags []record.Tag) ([]record.KeyError, error) {
		marks, bad, err := l.marksBetween(ctx, rooms, tags[0].Name, tags[len(tags)-1].Name)
		if err != nil {
			return nil, err
		}
		for _, tag := range tags {
			if m := marks[tag.Name]; !m.unreadable {
				if err := use(tag, m.byRoom); err != nil {
					return nil, err
				}
			}
		}
		return bad, nil
	})
}

// eachTagPage calls use with the tags that can be read, in the order of names, at most
// size and at least one at a time. It returns the keys of the others, and those that
// use returns.
func (l *Ledger) eachTagPage(ctx context.Context, size int64, use func([]record.Tag) ([]record.KeyError, error)) ([]record.KeyError, error) {
	var bad []record.KeyError
	pages := store.Pager{Read: l.gets, Prefix: l.keys.Tags()}
	for lo := ""; ; {
		var hi string
		var answer store.Answer
		err := patiently(ctx, func() (err error) {
			if hi, err = pages.End(ctx, lo, size); err == nil {
				answer, err = l.gets(ctx, store.Within(l.keys.Tags(), lo, hi))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		tags, skipped := record.ReadEach(answer.Got[0], l.keys.DecodeTag)
		bad = append(bad, skipped...)
		if len(tags) > 0 {
			skipped, err := use(tags)
			if err != nil {
				return nil, err
			}
			bad = append(bad, skipped...)
		}
		bad = bad[:min(len(bad), record.MaxUnreadable)]
		if lo = hi; hi == "" {
			return bad, nil
		}
	}
}

// patiently makes a read of a long walk again where etcd is slow to answer: one answer
// that is late does not end the walk.
func patiently(ctx context.Context, read func() error) error {
	const tries = 3
	for try := 1; ; try++ {
		err := read()
		if allocator.KindOf(err) != allocator.Unavailable || try == tries || !store.Pause(ctx) {
			return err
		}
	}
}

// marksOfTag are a tag's marks by room.
type marksOfTag struct {
	byRoom     map[allocator.Room]record.Mark
	unreadable bool // one of them
}

// marksBetween returns the marks of all tags from first to last in rooms.
func (l *Ledger) marksBetween(
	ctx context.Context, rooms []allocator.Room, first, last allocator.Tag,
) (map[allocator.Tag]marksOfTag, []record.KeyError, error) {
	if len(rooms) == 0 {
		return nil, nil, nil
	}
	ops := make([]store.Op, len(rooms))
	for i, room := range rooms {
		ops[i] = store.Op{Get: &store.Get{Interval: store.Interval{Key: l.keys.Mark(room, first), End: l.keys.Mark(room, last) + "\x00"}}}
	}
	answer, err := l.gets(ctx, ops...)
	if err != nil {
		return nil, nil, err
	}
	all := make(map[allocator.Tag]marksOfTag)
	var bad []record.KeyError
	for i, room := range rooms {
		for _, kv := range answer.Got[i] {
			key, err := l.keys.Parse(kv.Key)
			if err != nil {
				bad = append(bad, *record.Unreadable(kv.Key, err))
				continue
			}
			marks := all[key.Tag]
			if marks.byRoom == nil {
				marks.byRoom = make(map[allocator.Room]record.Mark, len(rooms))
			}
			if marks.byRoom[room], err = record.DecodeMark(kv); err != nil {
				bad = append(bad, *record.Unreadable(kv.Key, err))
				marks.unreadable = true
			}
			all[key.Tag] = marks
		}
	}
	return all, bad, nil
}

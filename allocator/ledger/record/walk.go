package record

import (
	"cmp"
	"context"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
)

// Walk reads all tags of a cluster, page by page.
type Walk struct {
	Keys Keys
	// Gets reads keys in one transaction.
	Gets func(context.Context, ...store.Op) (store.Answer, error)
	// Page is how many tags are read at once; 0 stands for 1,000.
	Page int64
}

// defaultPage is how many tags a Walk reads at once.
const defaultPage = 1000

// EachTag calls use with every tag, in the order of names, and its marks in some rooms. It
// holds one page of tags in memory at a time; tags that change meanwhile may be seen before or
// after the change. It ends with use's first error. It passes over a tag that is unreadable or
// has an unreadable mark, and returns the key.
func (w Walk) EachTag(ctx context.Context, rooms []allocator.Room,
	use func(Tag, map[allocator.Room]Mark) error) ([]KeyError, error) {
	return w.eachPage(ctx, cmp.Or(w.Page, defaultPage), func(tags []Tag) ([]KeyError, error) {
		return w.WithMarks(ctx, rooms, tags, use)
	})
}

// WithMarks is EachTag for tags that were read: at least one, which follow each other by name.
func (w Walk) WithMarks(ctx context.Context, rooms []allocator.Room, tags []Tag,
	use func(Tag, map[allocator.Room]Mark) error) ([]KeyError, error) {
	marks, bad, err := w.marksBetween(ctx, rooms, tags[0].Name, tags[len(tags)-1].Name)
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
}

// eachPage calls use with the readable tags, in the order of names, in pages of at least one
// and at most size tags. It returns the keys of the others, and the keys that use returns.
func (w Walk) eachPage(ctx context.Context, size int64, use func([]Tag) ([]KeyError, error)) ([]KeyError, error) {
	var bad []KeyError
	err := store.EachPage(ctx, w.patiently, "", size, func(page []store.KV, _ string) error {
		tags, skipped := ReadEach(page, w.Keys.DecodeTag)
		bad = append(bad, skipped...)
		if len(tags) > 0 {
			skipped, err := use(tags)
			if err != nil {
				return err
			}
			bad = append(bad, skipped...)
		}
		bad = bad[:min(len(bad), MaxUnreadable)]
		return nil
	}, w.Keys.All(Tags))
	if err != nil {
		return nil, err
	}
	return bad, nil
}

// patiently is Gets, and repeats a read if etcd is slow to answer, so that one late answer does not end a long walk.
func (w Walk) patiently(ctx context.Context, ops ...store.Op) (store.Answer, error) {
	const tries = 3
	for try := 1; ; try++ {
		answer, err := w.Gets(ctx, ops...)
		if allocator.KindOf(err) != allocator.Unavailable || try == tries || !store.Pause(ctx) {
			return answer, err
		}
	}
}

// marksOfTag are a tag's marks by room.
type marksOfTag struct {
	byRoom     map[allocator.Room]Mark
	unreadable bool // one of them is unreadable
}

// marksBetween returns the marks of all tags from first to last in rooms.
func (w Walk) marksBetween(
	ctx context.Context, rooms []allocator.Room, first, last allocator.Tag,
) (map[allocator.Tag]marksOfTag, []KeyError, error) {
	if len(rooms) == 0 {
		return nil, nil, nil
	}
	ops := make([]store.Op, len(rooms))
	for i, room := range rooms {
		ops[i] = store.Op{Get: &store.Get{Interval: store.Interval{Key: w.Keys.Mark(room, first),
			End: w.Keys.Mark(room, last) + "\x00"}}}
	}
	answer, err := w.Gets(ctx, ops...)
	if err != nil {
		return nil, nil, err
	}
	all := make(map[allocator.Tag]marksOfTag)
	var bad []KeyError
	for i, room := range rooms {
		for _, kv := range answer.Got[i] {
			key, err := w.Keys.Parse(kv.Key)
			if err != nil {
				bad = append(bad, *Unreadable(kv.Key, err))
				continue
			}
			marks := all[key.Tag]
			if marks.byRoom == nil {
				marks.byRoom = make(map[allocator.Room]Mark, len(rooms))
			}
			if marks.byRoom[room], err = DecodeMark(kv); err != nil {
				bad = append(bad, *Unreadable(kv.Key, err))
				marks.unreadable = true
			}
			all[key.Tag] = marks
		}
	}
	return all, bad, nil
}

// MaxUnreadable bounds how many unreadable keys are named at once.
const MaxUnreadable = 1000

// ReadEach reads every readable value in order, and names the keys of the others, at most
// maxUnreadable. It passes over values that read does not find: deleted tags.
func ReadEach[T any](found []store.KV, read func(store.KV) (T, error)) (all []T, bad []KeyError) {
	all = make([]T, 0, len(found))
	for _, kv := range found {
		v, err := read(kv)
		if err == nil {
			all = append(all, v)
		} else if len(bad) < MaxUnreadable && allocator.KindOf(err) != allocator.NotFound {
			bad = append(bad, *Unreadable(kv.Key, err))
		}
	}
	return all, bad
}

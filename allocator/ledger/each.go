package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
)

// eachPage is how many tags EachTag reads at once.
const eachPage = 1000

// EachTag calls use with every tag, in the order of names, and its marks. It
// holds a page of tags in memory at a time; tags that change meanwhile may be
// seen before or after. It ends with use's first error.
func (l *Ledger) EachTag(ctx context.Context, use func(Tag, map[allocator.Room]Mark) error) error {
	record, err := l.Refresh(ctx)
	if err != nil {
		return err
	}
	var within span
	for lo := ""; ; {
		page, hi, err := l.tagsFrom(ctx, lo, &within)
		if err != nil {
			return err
		}
		if len(page) > 0 {
			marks, err := l.marksBetween(ctx, record.Ever, page[0].Name, page[len(page)-1].Name)
			if err != nil {
				return err
			}
			for _, tag := range page {
				if err := use(tag, marks[tag.Name]); err != nil {
					return err
				}
			}
		}
		if lo = hi; hi == "" {
			return nil
		}
	}
}

// tagsFrom returns a page of tags from the name lo on, and where the next
// begins, empty for nowhere.
func (l *Ledger) tagsFrom(ctx context.Context, lo string, within *span) (tags []Tag, hi string, err error) {
	prefix, end := l.keys.tags(), prefixEnd(l.keys.tags())
	if hi = within.end(lo); hi != "" {
		end = prefix + hi
	}
	answer, err := l.gets(ctx, page(prefix+lo, end, eachPage))
	if err != nil {
		return nil, "", err
	}
	kvs, common := answer.Got[0], -1
	if len(kvs) == eachPage {
		last := kvs[len(kvs)-1].Key
		common, hi = commonBytes(kvs[0].Key, last)-len(prefix), last[len(prefix):]+"\x00"
	}
	within.read(len(kvs), eachPage, common)
	tags = make([]Tag, 0, len(kvs))
	for _, kv := range kvs {
		t, err := l.decodeTag(kv)
		if err != nil {
			return nil, "", err
		}
		tags = append(tags, t)
	}
	return tags, hi, nil
}

// marksBetween returns the marks of all tags from first to last in rooms.
func (l *Ledger) marksBetween(ctx context.Context, rooms []allocator.Room, first, last allocator.Tag) (map[allocator.Tag]map[allocator.Room]Mark, error) {
	ops := make([]Op, len(rooms))
	for i, room := range rooms {
		ops[i] = Op{Get: &Get{Interval: Interval{Key: l.keys.mark(room, first), End: l.keys.mark(room, last) + "\x00"}}}
	}
	answer, err := l.gets(ctx, ops...)
	if err != nil {
		return nil, err
	}
	marks := make(map[allocator.Tag]map[allocator.Room]Mark)
	for i, room := range rooms {
		for _, kv := range answer.Got[i] {
			key, err := l.keys.parse(kv.Key)
			if err != nil {
				return nil, err
			}
			mark, err := decodeMark(kv)
			if err != nil {
				return nil, err
			}
			if marks[key.tag] == nil {
				marks[key.tag] = make(map[allocator.Room]Mark, len(rooms))
			}
			marks[key.tag][room] = mark
		}
	}
	return marks, nil
}

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
	for after := allocator.Tag(""); ; {
		page, err := l.Tags(ctx, "", after, eachPage)
		if err != nil || len(page) == 0 {
			return err
		}
		marks, err := l.marksBetween(ctx, record.Ever, page[0].Name, page[len(page)-1].Name)
		if err != nil {
			return err
		}
		for _, tag := range page {
			if err := use(tag, marks[tag.Name]); err != nil {
				return err
			}
		}
		if after = page[len(page)-1].Name; len(page) < eachPage {
			return nil
		}
	}
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

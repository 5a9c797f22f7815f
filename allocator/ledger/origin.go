package ledger

import (
	"context"

	"github.com/march-id/march/allocator"
)

// Origin returns the room and the layout that an ID of a tag was leased under,
// from the eras of all rooms. Its error is NotFound when it was never leased:
// not yet, or skipped, or the tag never was.
func (l *Ledger) Origin(ctx context.Context, name allocator.Tag, id int64) (allocator.Room, LayoutRecord, error) {
	record, err := l.Refresh(ctx)
	if err != nil {
		return "", LayoutRecord{}, err
	}
	for _, room := range record.Ever {
		eras, err := l.eras(ctx, room, name)
		if err != nil {
			return "", LayoutRecord{}, err
		}
		for _, era := range eras {
			if id < era.First || id >= era.End {
				continue
			}
			under, err := l.LayoutAt(ctx, era.Version)
			if err != nil && allocator.KindOf(err) == allocator.NotFound {
				return "", LayoutRecord{}, allocator.Errorf(allocator.NotFound, "ID %d of tag %s lies in a stretch that was lost when etcd went back in time: it is not known who leased it, if anybody did", id, name)
			}
			if err != nil {
				return "", LayoutRecord{}, err
			}
			if under.Layout.Ranges[room].Contains(under.Layout.Residue(id)) {
				return room, under, nil
			}
		}
	}
	return "", LayoutRecord{}, allocator.Errorf(allocator.NotFound, "ID %d of tag %s was never leased", id, name)
}

// eras returns all eras of a tag in a room, the ended ones and the current.
func (l *Ledger) eras(ctx context.Context, room allocator.Room, name allocator.Tag) ([]Era, error) {
	answer, err := l.gets(ctx, get(l.keys.mark(room, name)), getPrefix(l.keys.eras(room, name)))
	if err != nil {
		return nil, err
	}
	var eras []Era
	if kv, ok := answer.one(0); ok {
		mark, err := decodeMark(kv)
		if err != nil {
			return nil, err
		}
		if mark.Era.Version != 0 {
			eras = append(eras, mark.Era)
		}
	}
	for _, kv := range answer.Got[1] {
		era, err := decodeEra(kv)
		if err != nil {
			return nil, err
		}
		eras = append(eras, era)
	}
	return eras, nil
}

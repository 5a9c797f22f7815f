package operator

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// unknown returns err, the error of reading a tag, if the tag does not exist and never
// existed. The marks of a deleted tag show that it existed. Its errors are NotFound and
// Unavailable.
func unknown(ctx context.Context, a *admin.Admin, tag allocator.Tag, err error) error {
	if allocator.KindOf(err) != allocator.NotFound {
		return nil
	}
	marks, marksErr := a.Marks(ctx, tag)
	if marksErr != nil {
		return marksErr
	}
	if len(marks) > 0 {
		return nil
	}
	return err
}

// Decode is the call of that name. It reads texts with the keys that the process has.
func Decode(ctx context.Context, a *admin.Admin, r *marchv1.DecodeRequest,
	known *texts.Cache) (*marchv1.DecodeResponse, error) {
	tag, err := allocator.ParseTag(r.GetTag())
	if err != nil {
		return nil, err
	}
	id := r.GetId()
	if id < 0 {
		return nil, allocator.Errorf(allocator.Invalid, "id: %d; allowed: 0 to %d", id, int64(allocator.MaxID))
	}
	t, tagErr := a.Tag(ctx, tag)
	if r.GetText() == "" {
		answer, err := decode(ctx, a, tag, id, t, tagErr)
		if err == nil && tagErr == nil && t.Format != "" {
			// Without the key of an opaque format, and for an ID that the format cannot write, there
			// is no text.
			if text, err := known.Of(t.Format, t.KeyCheck).Of(id); err == nil {
				answer.Text = &text
			}
		}
		return answer, err
	}
	if id != 0 {
		return nil, allocator.Errorf(allocator.Invalid,
			"text: %.64q, and the id %d; allowed: one of them", r.GetText(), id)
	}
	if tagErr != nil { // a tag that was deleted has no format any more
		return nil, tagErr
	}
	text := known.Of(t.Format, t.KeyCheck)
	if text.Wide() && t.Time != nil {
		parts, err := text.Parts(r.GetText())
		if err != nil {
			return nil, allocator.Errorf(allocator.KindOf(err), "tag %s: %w", tag, err)
		}
		answer, err := timeAnswer(a.PartsOrigin(ctx, *t.Time, parts))
		if err != nil {
			return nil, err
		}
		answer.Text = &r.Text
		return answer, nil
	}
	id, err = text.ID(r.GetText())
	if err != nil {
		return nil, allocator.Errorf(allocator.KindOf(err), "tag %s: %w", tag, err)
	}
	answer, err := decode(ctx, a, tag, id, t, nil)
	if err != nil {
		return nil, err
	}
	answer.Id = &id
	return answer, nil
}

// decode decodes an ID of a tag, which was read with tagErr.
func decode(ctx context.Context, a *admin.Admin, tag allocator.Tag, id int64, t record.Tag,
	tagErr error) (*marchv1.DecodeResponse, error) {
	if tagErr == nil && t.Time != nil {
		return timeAnswer(a.TimeOrigin(ctx, *t.Time, id))
	}
	origin, err := a.Origin(ctx, tag, id)
	if allocator.KindOf(err) == allocator.NotFound { // the ID was never leased
		err = unknown(ctx, a, tag, tagErr)
	}
	if err != nil {
		return nil, err
	}
	stored, _ := a.Ledger.Layout()
	now := stored.Layout
	answer := &marchv1.DecodeResponse{Version: now.Version, Block: now.Block(id), Residue: now.Residue(id)}
	if tagErr == nil && t.Period != (period.Period{}) {
		if span, ok := t.Period.Of(id); ok && id >= span.First {
			answer.Period = span.String()
		}
	}
	if room, ok := now.RoomOf(id); ok {
		answer.Room = string(room)
		answer.Passed = id < max(origin.Next, t.Start, t.Skip, t.Skips[room])
	}
	for _, room := range origin.Rooms {
		answer.Rooms = append(answer.Rooms, string(room))
	}
	answer.MaybeLost = origin.Lost
	for _, bad := range origin.Unreadable {
		answer.Unreadable = append(answer.Unreadable, &marchv1.Unreadable{Key: bad.Key, Why: bad.Err.Error()})
	}
	if origin.Room == "" { // never leased, or not known
		return answer, nil
	}
	answer.Passed = false
	if skip := max(t.Skip, t.Skips[origin.Room]); skip > id {
		answer.SkippedTo = &skip
	}
	under := origin.Layout
	answer.Origin = &marchv1.Origin{
		Room: string(origin.Room), Layout: api.LayoutToProto(under.Layout),
		Block: under.Layout.Block(id), Residue: under.Layout.Residue(id), Since: timestamppb.New(under.Time),
	}
	if under.Layout.Version < now.Version {
		next, err := a.LayoutAfter(ctx, under.Layout.Version)
		if err != nil {
			return nil, err
		}
		answer.Origin.Until = timestamppb.New(next.Time)
	}
	return answer, nil
}

// timeAnswer returns the answer with what is known of an ID of a tag of kind time.
func timeAnswer(origin worker.Origin, err error) (*marchv1.DecodeResponse, error) {
	if err != nil {
		return nil, err
	}
	answer := &marchv1.DecodeResponse{Time: &marchv1.TimeParts{
		Time: timestamppb.New(time.UnixMilli(origin.Time)), Worker: origin.Worker, Sequence: origin.Sequence,
		Room: string(origin.Room),
	}}
	for _, room := range origin.Rooms {
		answer.Rooms = append(answer.Rooms, string(room))
	}
	return answer, nil
}

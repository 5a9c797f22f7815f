// Package operator has the operators' calls that both rooms and consoles serve, so that
// both check and answer alike. These calls change an existing tag, or find the room
// that issued an ID. The package also has the code that such calls share: it names the
// caller for the audit, turns a tag into a message, and describes the errors of a
// layout.
package operator

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/foreign"
)

const maxActor = 128

// Actor returns the caller's name for the audit: the identity that it has proven, the address
// that the call comes from, and as a remark the name that the client gives. Without a policy
// there is no identity, and that name comes first.
func Actor(ctx context.Context) string {
	said := "unknown"
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if v := md.Get(api.ActorHeader); len(v) > 0 && v[0] != "" {
			said = v[0][:min(len(v[0]), maxActor)]
		}
	}
	who := said
	subject := access.From(ctx)
	if subject != nil {
		who = subject.Name()
	}
	if p, ok := peer.FromContext(ctx); ok {
		if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
			who += " from " + host
		}
	}
	if subject != nil && said != "unknown" {
		who += fmt.Sprintf(", says %q", said)
	}
	return who
}

// Refused records an attempt that was refused in the audit.
func Refused(a *admin.Admin) func(context.Context, access.Refusal) error {
	return func(ctx context.Context, r access.Refusal) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		object := "calls/" + r.Call
		if r.Tag != "" {
			object = "tags/" + r.Tag
		}
		return a.Record(ctx, r.Subject+" from "+r.Address,
			fmt.Sprintf("refused %s (%s, %d times)", r.Call, r.Why, r.Times), object)
	}
}

// UpdateTag is the call of that name.
func UpdateTag(ctx context.Context, a *admin.Admin, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	name, err := allocator.ParseTag(r.GetTag().GetName())
	if err != nil {
		return nil, err
	}
	var marks map[allocator.Room]record.Mark
	if r.GetDryRun() || r.GetTag().Limit != nil && !r.GetConfirm() {
		if marks, err = a.Marks(ctx, name); err != nil {
			return nil, err
		}
	}
	change := func(settings *record.TagSettings) error {
		before := settings.Limit
		if !time.Now().Before(settings.PrescaleUntil) { // it has ended, so it no longer bounds max_step
			settings.Prescale, settings.PrescaleUntil = 0, time.Time{}
		}
		if err := apply(r.GetTag(), settings); err != nil || settings.Limit >= before ||
			r.GetDryRun() || r.GetConfirm() {
			return err
		}
		if err := settings.Validate(); err != nil {
			return err
		}
		return stops(marks, settings.Limit)
	}
	if r.GetDryRun() {
		before, after, err := a.PreviewTag(ctx, name, r.GetIfRevision(), change)
		if err != nil {
			return nil, err
		}
		answer := &marchv1.UpdateTagResponse{Tag: TagToProto(after),
			Effects: effects(before.TagSettings, after.TagSettings, marks)}
		if after.Limit < before.Limit {
			answer.Stops, _ = stopped(marks, after.Limit)
		}
		return answer, nil
	}
	var tag record.Tag
	if r.GetIfRevision() != 0 {
		tag, err = a.UpdateTagAt(ctx, name, r.GetIfRevision(), change, Actor(ctx))
	} else {
		tag, err = a.UpdateTag(ctx, name, change, Actor(ctx))
	}
	if err != nil {
		return nil, err
	}
	return &marchv1.UpdateTagResponse{Tag: TagToProto(tag)}, nil
}

// stops returns an error that names the rooms which a limit stops, because they
// have already leased IDs from the limit on; nil if it stops none. Its Kind is
// Refused.
func stops(marks map[allocator.Room]record.Mark, limit int64) error {
	_, rooms := stopped(marks, limit)
	if rooms == nil {
		return nil
	}
	return allocator.Errorf(allocator.Refused,
		"limit: %d lies below IDs that rooms have already leased, so these rooms would stop issuing at once: %s; "+
			"confirm the limit if you want that",
		limit, strings.Join(rooms, ", "))
}

// stopped returns the rooms that a limit stops, and the same with their next IDs, in words.
func stopped(marks map[allocator.Room]record.Mark, limit int64) (rooms, said []string) {
	for _, room := range slices.Sorted(maps.Keys(marks)) {
		if next := marks[room].Next; next > limit {
			rooms = append(rooms, string(room))
			said = append(said, fmt.Sprintf("%s (its next ID is %d or higher)", room, next))
		}
	}
	return rooms, said
}

// SkipTag is the call of that name.
func SkipTag(ctx context.Context, a *admin.Admin, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	if r.GetTo() < 1 {
		return nil, allocator.Errorf(allocator.Invalid, "to: %d; allowed: 1 to %d", r.GetTo(), int64(allocator.MaxID-1))
	}
	if len(r.GetRooms()) > allocator.MaxRooms {
		return nil, allocator.Errorf(allocator.Invalid, "rooms: %d named; allowed: up to %d",
			len(r.GetRooms()), allocator.MaxRooms)
	}
	rooms := make([]allocator.Room, len(r.GetRooms()))
	for i, room := range r.GetRooms() {
		if rooms[i], err = allocator.ParseRoom(room); err != nil {
			return nil, err
		}
	}
	tag, err := a.SkipTag(ctx, name, rooms, r.GetTo(), r.GetForce(), Actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.SkipTagResponse{Tag: TagToProto(tag)}, nil
}

// PrescaleTag is the call of that name.
func PrescaleTag(ctx context.Context, a *admin.Admin,
	r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	var until time.Time
	if r.GetStep() != 0 {
		d, err := Duration("duration", r.GetDuration())
		if err != nil {
			return nil, err
		}
		if d < time.Second || d > allocator.LongestReserve {
			return nil, allocator.Errorf(allocator.Invalid, "duration: %v; allowed: 1s to %v",
				d, allocator.LongestReserve)
		}
		until = time.Now().Add(d).UTC().Truncate(time.Millisecond)
	}
	tag, err := a.UpdateTag(ctx, name, func(settings *record.TagSettings) error {
		settings.Prescale, settings.PrescaleUntil = r.GetStep(), until
		return nil
	}, Actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.PrescaleTagResponse{Tag: TagToProto(tag)}, nil
}

// TagToProto returns a tag as a message.
func TagToProto(t record.Tag) *marchv1.Tag {
	s := t.TagSettings
	if s.Time != nil {
		p := &marchv1.Tag{Name: string(t.Name), Created: timestamppb.New(t.Created), Time: timeToProto(s.Time),
			ForeignName: foreignName(t.Name), Revision: t.KV.ModRevision}
		formatToProto(s, p)
		return p
	}
	p := &marchv1.Tag{
		Name: string(t.Name), Start: &s.Start, Limit: &s.Limit, MinStep: &s.MinStep, MaxStep: &s.MaxStep,
		Reserve: durationpb.New(s.Reserve.Duration()), MaxJump: &s.MaxJump, MaxSkew: &s.MaxSkew,
		StrictRetract: &s.StrictRetract,
		Created:       timestamppb.New(t.Created), Skips: make(map[string]int64, len(s.Skips)),
		ForeignName: foreignName(t.Name), Revision: t.KV.ModRevision,
	}
	if time.Now().Before(s.PrescaleUntil) {
		p.Prescale, p.PrescaleUntil = s.Prescale, timestamppb.New(s.PrescaleUntil)
	}
	for room, to := range s.Skips {
		p.Skips[string(room)] = to
	}
	formatToProto(s, p)
	p.Period = periodToProto(s, time.Now())
	return p
}

// formatToProto sets how the tag's IDs are texts. A tag without a format has neither field.
func formatToProto(s record.TagSettings, p *marchv1.Tag) {
	if s.Format != "" {
		p.Format = &s.Format
	}
	if s.KeyCheck != "" {
		p.KeyCheck = &s.KeyCheck
	}
}

// foreignName returns the name by which clients of the doors ask for a tag, empty where it
// is the tag's own. A field of a message is UTF-8, such a name need not be.
func foreignName(tag allocator.Tag) string {
	name, ok := foreign.Key(tag)
	if !ok || name == string(tag) {
		return ""
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// NewSettings returns the settings of a new tag: those in p, and defaults. Its error is
// Invalid; TagSettings checks the bounds of numbers.
func NewSettings(p *marchv1.Tag) (s record.TagSettings, err error) {
	s = record.DefaultTag()
	if p.GetTime() != nil {
		if s.Time, err = newTime(p.GetTime()); err != nil {
			return s, err
		}
	}
	if err := applyPeriod(p, &s); err != nil {
		return s, err
	}
	if err := applyFormat(p, &s); err != nil {
		return s, err
	}
	err = applyCounter(p, &s)
	return s, err
}

// applyFormat sets how the IDs are texts. A counter's limit becomes the end of what the
// format writes. Its error is Invalid.
func applyFormat(p *marchv1.Tag, s *record.TagSettings) error {
	if p.KeyCheck != nil {
		s.KeyCheck = p.GetKeyCheck()
	}
	if p.Format == nil && s.Format == "" && s.Time != nil && s.Time.Wide() {
		s.Format = "sortable(62)" // CosId's default
	}
	if p.Format == nil {
		return nil
	}
	f, err := format.Parse(p.GetFormat())
	if err != nil {
		return err
	}
	s.Format = f.String()
	if s.Time == nil && !f.Domain().Parts {
		s.Start, s.Limit = max(s.Start, f.Domain().Least), record.FormatLimit(f)
	}
	return nil
}

// apply copies the settings that p has to s, the settings of an existing tag. Its
// errors are NewSettings's.
func apply(p *marchv1.Tag, s *record.TagSettings) error {
	if p.GetTime() != nil {
		if err := applyTime(p.GetTime(), s); err != nil {
			return err
		}
	}
	if err := applyPeriod(p, s); err != nil {
		return err
	}
	start, limit := s.Start, s.Limit
	if err := applyFormat(p, s); err != nil {
		return err
	}
	s.Start, s.Limit = start, limit // a format is there from the beginning: this one is refused, if it is another
	return applyCounter(p, s)
}

// applyCounter copies the settings of a counter that p has.
func applyCounter(p *marchv1.Tag, s *record.TagSettings) error {
	for _, f := range []struct{ from, to *int64 }{
		{p.Start, &s.Start}, {p.Limit, &s.Limit}, {p.MinStep, &s.MinStep}, {p.MaxStep, &s.MaxStep},
		{p.MaxJump, &s.MaxJump}, {p.MaxSkew, &s.MaxSkew},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if p.StrictRetract != nil {
		s.StrictRetract = p.GetStrictRetract()
	}
	if p.Reserve != nil {
		d, err := Duration("reserve", p.Reserve)
		if err != nil {
			return err
		}
		s.Reserve = record.DurationOf(d)
	}
	return nil
}

// Duration returns p, which must be given and fit a time.Duration. Its caller
// checks the bounds. Its error is Invalid.
func Duration(field string, p *durationpb.Duration) (time.Duration, error) {
	const most = math.MaxInt64 / int64(time.Second)
	if p == nil {
		return 0, allocator.Errorf(allocator.Invalid, "%s: none given; allowed: 1s to %v",
			field, allocator.LongestReserve)
	}
	if p.CheckValid() != nil || p.GetSeconds() >= most || p.GetSeconds() <= -most {
		return 0, allocator.Errorf(allocator.Invalid, "%s: %d seconds and %d nanoseconds; allowed: 1s to %v", field,
			p.GetSeconds(), p.GetNanos(), allocator.LongestReserve)
	}
	return p.AsDuration(), nil
}

package console

import (
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func tagToProto(t ledger.Tag) *marchv1.Tag {
	s := t.Settings
	p := &marchv1.Tag{
		Name: string(t.Name), Start: &s.Start, Limit: &s.Limit, MinStep: &s.Chain.MinStep, MaxStep: &s.Chain.MaxStep,
		Reserve: durationpb.New(s.Chain.Reserve), MaxJump: &s.MaxJump, MaxSkew: &s.MaxSkew,
		Created: timestamppb.New(t.Created), Skips: make(map[string]int64, len(s.Skips)),
	}
	if time.Now().Before(s.Chain.PrescaleUntil) {
		p.Prescale, p.PrescaleUntil = s.Chain.Prescale, timestamppb.New(s.Chain.PrescaleUntil)
	}
	for room, to := range s.Skips {
		p.Skips[string(room)] = to
	}
	return p
}

// apply sets in s what p carries. Its error is Invalid; the numbers' bounds are
// TagSettings' own to check.
func apply(p *marchv1.Tag, s *ledger.TagSettings) error {
	for _, f := range []struct{ from, to *int64 }{
		{p.Start, &s.Start}, {p.Limit, &s.Limit}, {p.MinStep, &s.Chain.MinStep}, {p.MaxStep, &s.Chain.MaxStep},
		{p.MaxJump, &s.MaxJump}, {p.MaxSkew, &s.MaxSkew},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if p.Reserve != nil {
		d, err := duration("reserve", p.Reserve)
		if err != nil {
			return err
		}
		s.Chain.Reserve = d
	}
	return nil
}

func duration(field string, p *durationpb.Duration) (time.Duration, error) {
	if err := p.CheckValid(); err != nil {
		return 0, allocator.Errorf(allocator.Invalid, "%s: %w", field, err)
	}
	if math.Abs(float64(p.GetSeconds())) > math.MaxInt64/1e9 {
		return 0, allocator.Errorf(allocator.Invalid, "%s: %d seconds; allowed: 1s to %v", field, p.GetSeconds(), allocator.LongestReserve)
	}
	return p.AsDuration(), nil
}

// CreateTag implements ConsoleService.
func (s *Server) CreateTag(ctx context.Context, r *marchv1.CreateTagRequest) (*marchv1.CreateTagResponse, error) {
	name, err := allocator.ParseTag(r.GetTag().GetName())
	if err != nil {
		return nil, err
	}
	settings := ledger.DefaultTag()
	if err := apply(r.GetTag(), &settings); err != nil {
		return nil, err
	}
	tag, err := s.ledger.CreateTag(ctx, name, settings, actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.CreateTagResponse{Tag: tagToProto(tag)}, nil
}

// GetTag implements ConsoleService.
func (s *Server) GetTag(ctx context.Context, r *marchv1.GetTagRequest) (*marchv1.GetTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	tag, err := s.ledger.Tag(ctx, name)
	if err != nil {
		return nil, err
	}
	marks, err := s.ledger.Marks(ctx, name)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.GetTagResponse{Tag: tagToProto(tag)}
	for _, room := range slices.Sorted(maps.Keys(marks)) {
		m := marks[room]
		answer.Marks = append(answer.Marks, &marchv1.Mark{Room: string(room), Next: m.Next, Version: m.Era.Version})
	}
	answer.Chains, answer.Silent, err = s.chainsOf(ctx, name)
	return answer, err
}

// ListTags implements ConsoleService. A page token is the last name of the
// page before.
func (s *Server) ListTags(ctx context.Context, r *marchv1.ListTagsRequest) (*marchv1.ListTagsResponse, error) {
	size, err := pageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	after, prefix := r.GetPageToken(), r.GetPrefix()
	if after != "" {
		if _, err := allocator.ParseTag(after); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "page_token: %q is not from an answer of ListTags", after)
		}
	}
	if prefix != "" {
		if _, err := allocator.ParseTag(prefix); err != nil {
			return nil, allocator.Errorf(allocator.Invalid, "prefix: not the beginning of a tag: %w", err)
		}
	}
	tags, err := s.ledger.Tags(ctx, prefix, allocator.Tag(after), size+1)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.ListTagsResponse{}
	if len(tags) > size {
		tags = tags[:size]
		answer.NextPageToken = string(tags[size-1].Name)
	}
	for _, tag := range tags {
		answer.Tags = append(answer.Tags, tagToProto(tag))
	}
	return answer, nil
}

// UpdateTag implements ConsoleService.
func (s *Server) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	name, err := allocator.ParseTag(r.GetTag().GetName())
	if err != nil {
		return nil, err
	}
	tag, err := s.ledger.UpdateTag(ctx, name, func(settings *ledger.TagSettings) error {
		return apply(r.GetTag(), settings)
	}, actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.UpdateTagResponse{Tag: tagToProto(tag)}, nil
}

// DeleteTag implements ConsoleService.
func (s *Server) DeleteTag(ctx context.Context, r *marchv1.DeleteTagRequest) (*marchv1.DeleteTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	if err := s.ledger.DeleteTag(ctx, name, actor(ctx)); err != nil {
		return nil, err
	}
	return &marchv1.DeleteTagResponse{}, nil
}

// SkipTag implements ConsoleService.
func (s *Server) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	if r.GetTo() < 1 {
		return nil, allocator.Errorf(allocator.Invalid, "to: %d; allowed: 1 to %d", r.GetTo(), int64(allocator.MaxID-1))
	}
	if len(r.GetRooms()) > allocator.MaxRooms {
		return nil, allocator.Errorf(allocator.Invalid, "rooms: %d named; allowed: up to %d", len(r.GetRooms()), allocator.MaxRooms)
	}
	rooms := make([]allocator.Room, len(r.GetRooms()))
	for i, room := range r.GetRooms() {
		if rooms[i], err = allocator.ParseRoom(room); err != nil {
			return nil, err
		}
	}
	tag, err := s.ledger.SkipTag(ctx, name, rooms, r.GetTo(), r.GetForce(), actor(ctx))
	if err != nil {
		return nil, err
	}
	s.log.Info("tag skipped", "tag", name, "to", r.GetTo(), "rooms", strings.Join(r.GetRooms(), ","))
	return &marchv1.SkipTagResponse{Tag: tagToProto(tag)}, nil
}

// PrescaleTag implements ConsoleService.
func (s *Server) PrescaleTag(ctx context.Context, r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	var until time.Time
	if r.GetStep() != 0 {
		d, err := duration("duration", r.GetDuration())
		if err != nil {
			return nil, err
		}
		if d < time.Second || d > allocator.LongestReserve {
			return nil, allocator.Errorf(allocator.Invalid, "duration: %v; allowed: 1s to %v", d, allocator.LongestReserve)
		}
		until = time.Now().Add(d).UTC().Truncate(time.Millisecond)
	}
	tag, err := s.ledger.UpdateTag(ctx, name, func(settings *ledger.TagSettings) error {
		settings.Chain.Prescale, settings.Chain.PrescaleUntil = r.GetStep(), until
		return nil
	}, actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.PrescaleTagResponse{Tag: tagToProto(tag)}, nil
}

package console

import (
	"context"
	"maps"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/levers"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// CreateTag implements ConsoleService.
func (s *Server) CreateTag(ctx context.Context, r *marchv1.CreateTagRequest) (*marchv1.CreateTagResponse, error) {
	name, err := allocator.ParseTag(r.GetTag().GetName())
	if err != nil {
		return nil, err
	}
	settings := ledger.DefaultTag()
	if err := levers.Apply(r.GetTag(), &settings); err != nil {
		return nil, err
	}
	tag, err := s.ledger.CreateTag(ctx, name, settings, levers.Actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.CreateTagResponse{Tag: levers.TagToProto(tag)}, nil
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
	answer := &marchv1.GetTagResponse{Tag: levers.TagToProto(tag), Marks: marksToProto(marks)}
	answer.Chains, answer.Silent, err = s.chainsOf(ctx, name)
	return answer, err
}

// marksToProto returns the marks of a tag, by room.
func marksToProto(marks map[allocator.Room]ledger.Mark) []*marchv1.Mark {
	list := make([]*marchv1.Mark, 0, len(marks))
	for _, room := range slices.Sorted(maps.Keys(marks)) {
		m := marks[room]
		list = append(list, &marchv1.Mark{Room: string(room), Next: m.Next, Version: m.Era.Version})
	}
	return list
}

// ListTags implements ConsoleService. A page token is the last name of the
// page before.
func (s *Server) ListTags(ctx context.Context, r *marchv1.ListTagsRequest) (*marchv1.ListTagsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
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
	for _, tag := range tags[:min(len(tags), size)] {
		answer.Tags = append(answer.Tags, levers.TagToProto(tag))
	}
	answer.Tags = answer.Tags[:fitting(answer.GetTags())]
	if n := len(answer.GetTags()); n < len(tags) {
		answer.NextPageToken = string(tags[n-1].Name)
	}
	return answer, nil
}

// DeleteTag implements ConsoleService.
func (s *Server) DeleteTag(ctx context.Context, r *marchv1.DeleteTagRequest) (*marchv1.DeleteTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	if err := s.ledger.DeleteTag(ctx, name, levers.Actor(ctx)); err != nil {
		return nil, err
	}
	return &marchv1.DeleteTagResponse{}, nil
}

// UpdateTag implements ConsoleService.
func (s *Server) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	return levers.UpdateTag(ctx, s.ledger, r)
}

// SkipTag implements ConsoleService.
func (s *Server) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	return levers.SkipTag(ctx, s.ledger, r)
}

// PrescaleTag implements ConsoleService.
func (s *Server) PrescaleTag(ctx context.Context, r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	return levers.PrescaleTag(ctx, s.ledger, r)
}

package main

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	marchv1 "github.com/march-id/march/api/march/v1"
)

// TestPagesAreOneList: a list that comes in pages is printed as one, with each unreadable key once. Where enough of it
// was read, no other page is asked for.
func TestPagesAreOneList(t *testing.T) {
	bad := func(key string) *marchv1.Unreadable { return &marchv1.Unreadable{Key: key} }
	pages := map[string]*marchv1.ListTagsResponse{
		"": {Tags: []*marchv1.Tag{{Name: "a"}}, NextPageToken: "b", Unreadable: []*marchv1.Unreadable{bad("x")}},
		"b": {Tags: []*marchv1.Tag{{Name: "b"}}, NextPageToken: "c",
			Unreadable: []*marchv1.Unreadable{bad("x"), bad("y")}},
		"c": {Tags: []*marchv1.Tag{{Name: "c"}}},
	}
	for _, test := range []struct {
		enough func(*marchv1.ListTagsResponse) bool
		want   *marchv1.ListTagsResponse
	}{
		{nil, &marchv1.ListTagsResponse{Tags: []*marchv1.Tag{{Name: "a"}, {Name: "b"}, {Name: "c"}},
			Unreadable: []*marchv1.Unreadable{bad("x"), bad("y")}}},
		{func(l *marchv1.ListTagsResponse) bool { return len(l.GetTags()) >= 1 },
			&marchv1.ListTagsResponse{Tags: []*marchv1.Tag{{Name: "a"}}, Unreadable: []*marchv1.Unreadable{bad("x")}}},
	} {
		read := allPages(func(_ marchv1.ConsoleServiceClient, _ context.Context, request *marchv1.ListTagsRequest,
			_ ...grpc.CallOption) (*marchv1.ListTagsResponse, error) {
			return proto.CloneOf(pages[request.GetPageToken()]), nil
		}, test.enough)
		got, err := read(nil, t.Context(), &marchv1.ListTagsRequest{})
		if err != nil || !proto.Equal(got, test.want) {
			t.Errorf("got %v, %v; want %v", got, err, test.want)
		}
	}
}

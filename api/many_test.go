package api_test

import (
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

func TestCheckMany(t *testing.T) {
	many := func(tags ...*marchv1.TagCount) *marchv1.NextManyRequest { return &marchv1.NextManyRequest{Tags: tags} }
	of := func(tag string, n int64) *marchv1.TagCount { return &marchv1.TagCount{Tag: tag, Count: n} }
	numbered := func(n int) (tags []*marchv1.TagCount) {
		for i := range n {
			tags = append(tags, of("t"+strings.Repeat("x", i%50)+strings.Repeat("y", i/50), 1))
		}
		return tags
	}
	for _, tt := range []struct {
		request *marchv1.NextManyRequest
		says    string // empty for a request that is allowed
	}{
		{many(of("order", 1)), ""},
		{many(of("order", 1), of("item", api.MaxMany-1)), ""},
		{many(numbered(api.MaxManyTags)...), ""},
		{nil, "tags: 0; allowed: 1 to 100"},
		{many(), "tags: 0; allowed: 1 to 100"},
		{many(numbered(api.MaxManyTags + 1)...), "tags: 101; allowed: 1 to 100"},
		{many(nil), "tags[0]: tag: empty; allowed: [a-z0-9][a-z0-9._-]{0,62}"},
		{many(of("order", 1), of("Item", 1)), `tags[1]: tag: "Item" begins with "I"; allowed: `},
		{many(of("order", 1), of("item", 0)), "tags[1] (item): count: 0; allowed: 1 to 10000"},
		{many(of("item", -1)), "tags[0] (item): count: -1; allowed: 1 to 10000"},
		{many(of("item", 1<<62), of("order", 1<<62)),
			"tags[0] (item): count: 4611686018427387904; allowed: 1 to 10000"},
		{many(of("order", 1), of("item", api.MaxMany)), "tags: the counts are 10001 together; allowed: 1 to 10000"},
		{many(of("order", 1), of("item", 2), of("order", 3)),
			"tags[2] (order): tag: named in tags[0], too; allowed: each tag once"},
	} {
		err := api.CheckMany(tt.request)
		if tt.says == "" {
			if err != nil {
				t.Errorf("%v: %v", tt.request, err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), tt.says) || allocator.KindOf(err) != allocator.Invalid {
			t.Errorf("%v: got %v, want %s", tt.request, err, tt.says)
		}
	}
}

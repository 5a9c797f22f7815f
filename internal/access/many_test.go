package access_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// many returns a request of one ID of each tag.
func many(tags ...string) *marchv1.NextManyRequest {
	r := &marchv1.NextManyRequest{}
	for _, tag := range tags {
		r.Tags = append(r.Tags, &marchv1.TagCount{Tag: tag, Count: 1})
	}
	return r
}

// Each tag of a call needs its right, and the error names the first that lacks it. A caller
// without an identity or without any right learns nothing of its request.
func TestMany(t *testing.T) {
	w := newWorld(t)
	ids := marchv1.NewIDServiceClient(w.dial(w.serve(plainly, w.intercepted()...), nil))
	tooMany := many("order")
	tooMany.Tags = append(tooMany.Tags, make([]*marchv1.TagCount, api.MaxManyTags)...)
	for _, c := range []struct {
		token   string
		request *marchv1.NextManyRequest
		code    codes.Code
		says    string
	}{
		{"issuer", many("order", "shop-1", "shop-2"), codes.Unimplemented, ""},
		{"root", many("order", "bank"), codes.Unimplemented, ""},
		{"issuer", many("order", "bank", "shop-1"), codes.PermissionDenied,
			`tags[1] (bank): subject token:issuer may not call IDService/NextMany for tag "bank"`},
		{"issuer", many("bank", "safe"), codes.PermissionDenied, `tags[0] (bank): `},
		{"viewer", many("order"), codes.PermissionDenied, "may not call IDService/NextMany"},
		{"viewer", tooMany, codes.PermissionDenied, "may not call IDService/NextMany"},
		{"", many("order"), codes.Unauthenticated, "call IDService/NextMany"},
		{"", many(), codes.Unauthenticated, "call IDService/NextMany"},
		{"issuer", many(), codes.InvalidArgument, "tags: 0; allowed: 1 to 100"},
		{"issuer", tooMany, codes.InvalidArgument, "tags: 101; allowed: 1 to 100"},
	} {
		_, err := ids.NextMany(bearer(w.tokens[c.token]), c.request)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v by %q: %v, want %v, %s", c.request.GetTags(), c.token, err, c.code, c.says)
		}
	}

	// A call that a quota refuses counts for none of its tags, and one that passes for each.
	w.write("policy.yaml", strings.ReplaceAll(rules, "tags: [order, shop-*]",
		"tags: [order, shop-*], quotas: {ids_per_lease: 50, tag_ids_per_second: 20}"))
	w.reload()
	one := func(tag string) error {
		_, err := ids.Next(bearer(w.tokens["issuer"]), &marchv1.NextRequest{Tag: tag})
		return err
	}
	large := many("order", "shop-1")
	large.Tags[0].Count, large.Tags[1].Count = 30, 21
	_, err := ids.NextMany(bearer(w.tokens["issuer"]), large)
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(),
		"tags[1] (shop-1): count: 51 IDs in one call; subject token:issuer may take up to 50 by its quota "+
			"ids_per_lease") {
		t.Errorf("51 IDs: %v", err)
	}
	for _, tag := range []string{"order", "shop-1"} {
		if err := one(tag); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s after a call that was refused: %v", tag, err)
		}
	}
	large.Tags[1].Count = 20
	call := func() error { _, err := ids.NextMany(bearer(w.tokens["issuer"]), large); return err }
	if err := call(); status.Code(err) != codes.Unimplemented {
		t.Errorf("50 IDs: %v", err)
	}
	if err := one("order"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an ID of order after 31: %v", err)
	}
	err = call()
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(),
		"tags[0] (order): subject token:issuer takes more than 20 IDs/s, which is its quota tag_ids_per_second") ||
		api.RetryAfter(err) <= 0 {
		t.Errorf("50 IDs again: %v, retry after %v", err, api.RetryAfter(err))
	}
}

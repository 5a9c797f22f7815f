package redis

import (
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/rest"
)

// TestEveryKind holds what each protocol answers for each kind of error against one row. What is not the caller's to
// mend is UNAVAILABLE, 503 and TRYAGAIN, with the header that says when.
func TestEveryKind(t *testing.T) {
	const ours = "TRYAGAIN"
	rows := map[allocator.Kind]struct {
		code  codes.Code
		http  int
		redis string
	}{
		allocator.Internal:        {codes.Internal, 500, "ERR"},
		allocator.Invalid:         {codes.InvalidArgument, 400, "ERR"},
		allocator.NotFound:        {codes.NotFound, 404, "ERR"},
		allocator.Exists:          {codes.AlreadyExists, 409, "ERR"},
		allocator.Exhausted:       {codes.ResourceExhausted, 429, "ERR"},
		allocator.Unavailable:     {codes.Unavailable, 503, ours},
		allocator.NoRange:         {codes.Unavailable, 503, ours},
		allocator.Refused:         {codes.FailedPrecondition, 400, "ERR"},
		allocator.WentBack:        {codes.Unavailable, 503, ours},
		allocator.Conflict:        {codes.Aborted, 409, "ERR"},
		allocator.Denied:          {codes.PermissionDenied, 403, "NOPERM"},
		allocator.Unauthenticated: {codes.Unauthenticated, 401, "NOAUTH"},
		allocator.TooMany:         {codes.ResourceExhausted, 429, ours},
	}
	for _, kind := range allocator.Kinds() {
		want, ok := rows[kind]
		if !ok {
			t.Errorf("%v has no row", kind)
			continue
		}
		err := allocator.Errorf(kind, "why")
		answer := httptest.NewRecorder()
		rest.WriteError(answer, err)
		word, _, _ := strings.Cut(errorText(err), " ")
		if code := status.Code(api.ToStatus(err)); code != want.code || answer.Code != want.http || word != want.redis {
			t.Errorf("%v: %v, %d, %s; want %v, %d, %s", kind, code, answer.Code, word, want.code, want.http, want.redis)
		}
		if after := answer.Header().Get("Retry-After"); want.http == 503 && after == "" {
			t.Errorf("%v: 503 without Retry-After", kind)
		}
	}
}

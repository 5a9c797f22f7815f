package redis

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/api"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/room/cosid"
	"github.com/march-id/march/room/door"
	"github.com/march-id/march/room/leaf"
	"github.com/march-id/march/room/tinyid"
)

// kinds is what each protocol answers for an error. cosid is of segments and of IDs, machines of machine IDs.
type kinds struct {
	code                          codes.Code
	http                          int
	redis                         string
	leaf, tinyid, cosid, machines int
}

// TestEveryKind holds what each protocol answers for each kind of error against one row. What is not the caller's to
// mend is UNAVAILABLE, 503 and TRYAGAIN at all of them, with the header that says when. Before, the doors over HTTP
// answered it as what their caller asked wrongly, and TRYAGAIN was not for a call whose time was over.
func TestEveryKind(t *testing.T) {
	const again = "TRYAGAIN"
	away := kinds{codes.Unavailable, 503, again, 503, 503, 503, 503}
	rows := map[allocator.Kind]kinds{
		allocator.Internal:        {codes.Internal, 500, "ERR", 500, 200, 500, 500},
		allocator.Invalid:         {codes.InvalidArgument, 400, "ERR", 500, 200, 400, 400},
		allocator.NotFound:        {codes.NotFound, 404, "ERR", 500, 200, 500, 500},
		allocator.Exists:          {codes.AlreadyExists, 409, "ERR", 500, 200, 500, 500},
		allocator.Exhausted:       {codes.ResourceExhausted, 429, "ERR", 500, 200, 500, 500},
		allocator.Unavailable:     away,
		allocator.NoRange:         away,
		allocator.Refused:         {codes.FailedPrecondition, 400, "ERR", 500, 200, 400, 400},
		allocator.WentBack:        away,
		allocator.Conflict:        {codes.Aborted, 409, "ERR", 500, 200, 500, 500},
		allocator.Denied:          {codes.PermissionDenied, 403, "NOPERM", 500, 200, 500, 500},
		allocator.Unauthenticated: {codes.Unauthenticated, 401, "NOAUTH", 500, 200, 500, 500},
		allocator.TooMany:         {codes.ResourceExhausted, 429, again, 429, 429, 429, 429},
	}
	for kind := range allocator.Kinds {
		if want, ok := rows[kind]; ok {
			want.check(t, kind.Error(), allocator.Errorf(kind, "why"))
		} else {
			t.Errorf("%v has no row", kind)
		}
	}
	// The end of a context has no kind.
	late := kinds{codes.DeadlineExceeded, 504, again, 503, 503, 503, 503}
	late.check(t, "deadline", fmt.Errorf("lease: %w", context.DeadlineExceeded))
	late.code, late.http = codes.Canceled, 499
	late.check(t, "cancelled", fmt.Errorf("lease: %w", context.Canceled))
	away.check(t, "deadline with a kind", allocator.Errorf(allocator.Unavailable, "%w", context.DeadlineExceeded))
	// What has neither is a defect, and no caller is to try again.
	rows[allocator.Internal].check(t, "no kind", errors.New("why"))
	waits := &allocator.WaitError{After: 2500 * time.Millisecond, Err: allocator.Errorf(allocator.TooMany, "why")}
	for path, by := range map[string]http.Handler{"/ids": cosid.New(fails{err: waits}, nil),
		"/v1": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { serve.WriteError(w, waits) })} {
		if _, after := answered(t, "GET", path, by); after != "3" {
			t.Errorf("%s: a caller that is to wait 2.5 s: Retry-After: %q", path, after)
		}
	}
}

func (want kinds) check(t *testing.T, what string, err error) {
	t.Helper()
	leaves, newErr := leaf.New(fails{err: err}, "snowflake")
	if newErr != nil {
		t.Fatal(newErr)
	}
	tiny, cos := tinyid.New(fails{err: err}, tinyid.AnyToken("good")), cosid.New(fails{err: err}, noMachines{err})
	var rested http.HandlerFunc = func(w http.ResponseWriter, _ *http.Request) { serve.WriteError(w, err) }
	const machines = "/machines/ns?instanceId=one&stable=false&machineBit=10"
	for _, asked := range []struct {
		method, path string
		of           http.Handler
		want         int
	}{
		{"GET", "/v1/tags/order/next", rested, want.http},
		{"GET", "/api/segment/get/order", leaves, want.leaf},
		{"GET", "/api/snowflake/get/order", leaves, want.leaf},
		{"GET", "/tinyid/id/nextId?bizType=order&token=good", tiny, want.tinyid},
		{"GET", "/tinyid/id/nextIdSimple?bizType=order&token=good&batchSize=2", tiny, want.tinyid},
		{"GET", "/tinyid/id/nextSegmentId?bizType=order&token=good", tiny, want.tinyid},
		{"GET", "/tinyid/id/nextSegmentIdSimple?bizType=order&token=good", tiny, want.tinyid},
		{"GET", "/ids/order", cos, want.cosid},
		{"GET", "/ids/as-string/order", cos, want.cosid},
		{"PATCH", "/segments/ns/order?step=10", cos, want.cosid},
		{"POST", "/segments/distributor/ns/order?step=10&offset=0", cos, want.cosid},
		{"POST", machines, cos, want.machines},
		{"PATCH", machines, cos, want.machines},
		{"DELETE", machines, cos, want.machines},
	} {
		code, after := answered(t, asked.method, asked.path, asked.of)
		if code != asked.want {
			t.Errorf("%s: %s %s: %d; want %d", what, asked.method, asked.path, code, asked.want)
		}
		if code == 503 && after != "1" {
			t.Errorf("%s: %s %s: Retry-After: %q", what, asked.method, asked.path, after)
		}
	}
	if code := status.Code(api.ToStatus(err)); code != want.code {
		t.Errorf("%s: %v; want %v", what, code, want.code)
	}
	if word, _, _ := strings.Cut(errorText(err), " "); word != want.redis {
		t.Errorf("%s: %s; want %s", what, word, want.redis)
	}
}

// answered returns the status of an answer, and its Retry-After.
func answered(t *testing.T, method, path string, by http.Handler) (code int, after string) {
	t.Helper()
	w := httptest.NewRecorder()
	by.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody))
	return w.Code, w.Header().Get("Retry-After")
}

// fails is a room whose methods return an error.
type fails struct {
	door.Room
	err error
}

func (f fails) Next(context.Context, string) (int64, error) { return 0, f.err }

func (f fails) NextTime(context.Context, string) (int64, error) { return 0, f.err }

func (f fails) NextN(context.Context, string, int64) ([]allocator.Run, error) { return nil, f.err }

func (f fails) NextKept(context.Context, string, int64) (allocator.Run, error) {
	return allocator.Run{}, f.err
}

func (f fails) Create(context.Context, string, int64) (bool, error) { return false, f.err }

// noMachines gives no machine IDs.
type noMachines struct{ err error }

func (noMachines) Allowed(context.Context, string) error { return nil }

func (m noMachines) Distribute(context.Context, machine.Client, int, time.Duration) (int64, int64, error) {
	return 0, 0, m.err
}

func (m noMachines) Guard(context.Context, machine.Client) error { return m.err }

func (m noMachines) Revert(context.Context, machine.Client) error { return m.err }

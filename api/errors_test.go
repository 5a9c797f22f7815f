package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
)

// wantCodes is the table as DESIGN has it, written a second time.
var wantCodes = map[allocator.Kind]codes.Code{
	allocator.Internal:        codes.Internal,
	allocator.Invalid:         codes.InvalidArgument,
	allocator.NotFound:        codes.NotFound,
	allocator.Exists:          codes.AlreadyExists,
	allocator.Exhausted:       codes.ResourceExhausted,
	allocator.TooMany:         codes.ResourceExhausted,
	allocator.Unavailable:     codes.Unavailable,
	allocator.NoRange:         codes.Unavailable,
	allocator.Refused:         codes.FailedPrecondition,
	allocator.WentBack:        codes.Unavailable,
	allocator.Conflict:        codes.Aborted,
	allocator.Denied:          codes.PermissionDenied,
	allocator.Unauthenticated: codes.Unauthenticated,
}

// overWire returns err, a status, as the other side gets it.
func overWire(t *testing.T, err error) error {
	t.Helper()
	data, marshalErr := proto.Marshal(status.Convert(err).Proto())
	if marshalErr != nil {
		t.Fatalf("status of %v cannot be sent: %v", err, marshalErr)
	}
	var p spb.Status
	if err := proto.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}
	return status.ErrorProto(&p)
}

func errorInfo(err error) *errdetails.ErrorInfo {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}

func TestKindsThereAndBack(t *testing.T) {
	for kind := range allocator.Kinds {
		t.Run(kind.Error(), func(t *testing.T) {
			code, ok := wantCodes[kind]
			if !ok {
				t.Fatalf("no code is written down for %v", kind)
			}
			cause := allocator.Errorf(kind, "tag order: %w", io.ErrUnexpectedEOF)
			sent := api.ToStatus(fmt.Errorf("next: %w", cause))
			if got := status.Code(sent); got != code {
				t.Errorf("code %v, want %v", got, code)
			}
			if info := errorInfo(sent); info.GetDomain() != "march" || info.GetReason() != kind.Error() {
				t.Errorf("ErrorInfo %v, want domain march, reason %v", info, kind)
			}

			wire := overWire(t, sent)
			got := api.FromStatus(wire)
			var typed *allocator.Error
			if !errors.As(got, &typed) || typed.Kind != kind {
				t.Fatalf("came back as %#v, want an *allocator.Error with Kind %v", got, kind)
			}
			for other := range allocator.Kinds {
				if errors.Is(got, other) != (other == kind) {
					t.Errorf("errors.Is(err, %v) = %v", other, errors.Is(got, other))
				}
			}
			if want := "next: tag order: unexpected EOF"; got.Error() != want {
				t.Errorf("message %q, want %q", got, want)
			}
			if !errors.Is(got, wire) {
				t.Error("the status is not the cause")
			}
			if again := api.FromStatus(got); again != got {
				t.Errorf("converted twice: %#v", again)
			}
			if again := api.ToStatus(got); status.Code(again) != code || errorInfo(again).GetReason() != kind.Error() {
				t.Errorf("sent on: %v, want %v", again, code)
			}
		})
	}
}

func TestToStatus(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	away := &allocator.AwayError{Tag: "order", Since: since, Err: context.DeadlineExceeded}
	denied := status.Error(codes.PermissionDenied, "no role")
	for name, tt := range map[string]struct {
		err      error
		code     codes.Code
		reason   string // "" for no ErrorInfo
		metadata map[string]string
	}{
		"bare kind":    {allocator.Exhausted, codes.ResourceExhausted, "exhausted", nil},
		"unclassified": {io.ErrUnexpectedEOF, codes.Internal, "internal", nil},
		"unknown kind": {allocator.Kind(200), codes.Internal, "internal", nil},
		"layout": {&allocator.LayoutError{Problems: []string{"boundary 0"}},
			codes.InvalidArgument, "invalid", nil},
		"status":         {denied, codes.PermissionDenied, "", nil},
		"wrapped status": {fmt.Errorf("list tags: %w", denied), codes.PermissionDenied, "", nil},
		"kind around a status": {
			allocator.Errorf(allocator.Unavailable, "etcd: %w", denied), codes.Unavailable, "unavailable", nil,
		},
		"canceled":         {context.Canceled, codes.Canceled, "", nil},
		"wrapped deadline": {fmt.Errorf("lease: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "", nil},
		"kind around a deadline": {
			allocator.Errorf(allocator.Unavailable, "etcd: %w", context.DeadlineExceeded),
			codes.Unavailable, "unavailable", nil,
		},
		"internal around a deadline": {
			allocator.Errorf(allocator.Internal, "lease: %w", context.DeadlineExceeded),
			codes.Internal, "internal", nil,
		},
		"away": {
			away, codes.Unavailable, "unavailable", map[string]string{"tag": "order", "since": "2026-01-02T02:04:05Z"},
		},
		"wrapped away": {
			fmt.Errorf("next: %w", away), codes.Unavailable, "unavailable",
			map[string]string{"tag": "order", "since": "2026-01-02T02:04:05Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := api.ToStatus(tt.err)
			s, ok := status.FromError(got)
			if !ok || s.Code() != tt.code {
				t.Fatalf("%v, want code %v", got, tt.code)
			}
			if want := tt.err.Error(); !errors.Is(tt.err, denied) && s.Message() != want {
				t.Errorf("message %q, want %q", s.Message(), want)
			}
			info := errorInfo(got)
			if info.GetReason() != tt.reason || (info == nil) != (tt.reason == "") {
				t.Errorf("ErrorInfo %v, want reason %q", info, tt.reason)
			}
			if fmt.Sprint(info.GetMetadata()) != fmt.Sprint(tt.metadata) {
				t.Errorf("metadata %v, want %v", info.GetMetadata(), tt.metadata)
			}
		})
	}
	if got := api.ToStatus(nil); got != nil {
		t.Errorf("ToStatus(nil) = %v", got)
	}
}

// An error keeps its Kind even if gRPC could not send its message.
func TestMessagesThatCannotTravel(t *testing.T) {
	for name, msg := range map[string]string{
		"not UTF-8": "tag \xff\xfe",
		"too long":  strings.Repeat("rooms a and b overlap; é", 100_000),
		"odd cut":   "a" + strings.Repeat("é", 2000),
	} {
		t.Run(name, func(t *testing.T) {
			sent := api.ToStatus(&allocator.Error{Kind: allocator.Invalid, Msg: msg})
			got := api.FromStatus(overWire(t, sent))
			if !errors.Is(got, allocator.Invalid) {
				t.Errorf("came back as %v", allocator.KindOf(got))
			}
			if !utf8.ValidString(got.Error()) || len(got.Error()) > 2100 || !strings.HasPrefix(got.Error(), msg[:1]) {
				t.Errorf("message of %d bytes: %.40q", len(got.Error()), got)
			}
		})
	}
}

// A status without March's reason comes from gRPC itself or from a proxy in between.
func TestForeignStatus(t *testing.T) {
	kinds := map[codes.Code]allocator.Kind{
		codes.InvalidArgument:  allocator.Invalid,
		codes.NotFound:         allocator.NotFound,
		codes.AlreadyExists:    allocator.Exists,
		codes.Unavailable:      allocator.Unavailable,
		codes.Aborted:          allocator.Conflict,
		codes.PermissionDenied: allocator.Denied,
		codes.Unauthenticated:  allocator.Unauthenticated,
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		foreign, err := status.New(code, "from afar").WithDetails(
			&errdetails.ErrorInfo{Domain: "example.com", Reason: "exhausted"})
		if err != nil {
			t.Fatal(err)
		}
		for _, sent := range []error{status.Error(code, "from afar"), foreign.Err()} {
			got := api.FromStatus(sent)
			if got.Error() != "from afar" || !errors.Is(got, sent) {
				t.Errorf("%v: %v does not keep the message and the status", code, got)
			}
			want := kinds[code] // Internal for the rest
			if kind := allocator.KindOf(got); kind != want {
				t.Errorf("%v: Kind %v, want %v", code, kind, want)
			}
			isContext := code == codes.Canceled || code == codes.DeadlineExceeded
			if errors.Is(got, want) == isContext {
				t.Errorf("%v: errors.Is(err, %v) = %v", code, want, !isContext)
			}
			if errors.Is(got, context.Canceled) != (code == codes.Canceled) ||
				errors.Is(got, context.DeadlineExceeded) != (code == codes.DeadlineExceeded) {
				t.Errorf("%v: %v is the wrong end of a context", code, got)
			}
			if isContext && status.Code(api.ToStatus(got)) != code {
				t.Errorf("%v is sent on as %v", code, api.ToStatus(got))
			}
		}
	}
	for _, err := range []error{nil, io.EOF, allocator.Refused, context.Canceled} {
		if got := api.FromStatus(err); got != err {
			t.Errorf("FromStatus(%v) = %v", err, got)
		}
	}
}

func TestReasonOfANewerServer(t *testing.T) {
	s, err := status.New(codes.Unavailable, "later").WithDetails(
		&errdetails.ErrorInfo{Domain: api.Domain, Reason: "overloaded"})
	if err != nil {
		t.Fatal(err)
	}
	if got := api.FromStatus(s.Err()); !errors.Is(got, allocator.Unavailable) {
		t.Errorf("Kind %v, want that of the code", allocator.KindOf(got))
	}
}

// TestUnforeseen: an error that a caller can handle is foreseen, on either side of the
// wire. A bug is not.
func TestUnforeseen(t *testing.T) {
	for kind := range allocator.Kinds {
		for _, err := range []error{kind, api.ToStatus(kind)} {
			if got := api.Unforeseen(err); got != (kind == allocator.Internal) {
				t.Errorf("%v (%T): unforeseen: %t", err, err, got)
			}
		}
	}
	for err, want := range map[error]bool{
		nil: false, io.ErrUnexpectedEOF: true, context.Canceled: false, context.DeadlineExceeded: false,
		status.Error(codes.Unknown, "x"): true, status.Error(codes.Unimplemented, "x"): false,
	} {
		if got := api.Unforeseen(err); got != want {
			t.Errorf("%v: unforeseen: %t", err, got)
		}
	}
}

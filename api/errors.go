package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
)

// Domain is the domain of the ErrorInfo in every status made from a Kind. Its
// reason is the Kind's name.
const Domain = "march"

// The ErrorInfo's metadata when it is made from an *allocator.AwayError.
const (
	// MetadataTag is the tag that has no IDs left in memory.
	MetadataTag = "tag"
	// MetadataSince is the time since when the store has not answered, in RFC 3339.
	MetadataSince = "since"
)

// MetadataLimit is the tag's limit in the ErrorInfo of an *allocator.LimitError.
const MetadataLimit = "limit"

// MetadataRight is, in the ErrorInfo of an *allocator.RightError, the right that the caller
// lacks.
const MetadataRight = "right"

// MetadataWindow is "none" in the ErrorInfo of a *timeid.NoWindowError.
const (
	MetadataWindow = "window"
	noWindow       = "none"
)

// NoWindow reports whether err is a status of a tag with time-ordered IDs that gave the
// caller no window. Next still issues IDs of that tag.
func NoWindow(err error) bool { return metadata(err, MetadataWindow) == noWindow }

// MetadataOrder is "strict" in the ErrorInfo of an *allocator.OrderedError.
const (
	MetadataOrder = "order"
	strictOrder   = "strict"
)

// Ordered reports whether err is a status of a tag with a strict order, of which nothing is leased. Next has its IDs.
func Ordered(err error) bool { return err != nil && metadata(err, MetadataOrder) == strictOrder }

// LimitOf returns the tag's limit if err is a status that names one, otherwise 0. A
// client issues no ID from the limit on.
func LimitOf(err error) int64 {
	limit, err := strconv.ParseInt(metadata(err, MetadataLimit), 10, 64)
	if err != nil {
		return 0
	}
	return limit
}

// RetryAfter returns how long a caller should wait before it tries again, if err is a status
// that says so, otherwise 0.
func RetryAfter(err error) time.Duration {
	s, ok := status.FromError(err)
	if !ok {
		return 0
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// metadata returns a value of the ErrorInfo of a status, or "".
func metadata(err error, key string) string {
	s, ok := status.FromError(err)
	if !ok {
		return ""
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain &&
			info.GetMetadata()[key] != "" {
			return info.GetMetadata()[key]
		}
	}
	return ""
}

// maxMessage is how many bytes of a message are sent. It travels twice in the
// trailers, once in base64, and some clients take no more than 8 KiB of those.
const maxMessage = 2048

// table is the one table of Kinds and gRPC codes.
var table = [...]struct {
	code codes.Code
	// back: a status with this code but without our reason (it is from a proxy
	// or from gRPC itself) means this Kind. Not so for codes that several Kinds
	// share, nor for RESOURCE_EXHAUSTED, gRPC's own code for a message that is
	// too large: a client may give up a tag for good on Exhausted.
	back bool
}{
	allocator.Internal:        {codes.Internal, true},
	allocator.Invalid:         {codes.InvalidArgument, true},
	allocator.NotFound:        {codes.NotFound, true},
	allocator.Exists:          {codes.AlreadyExists, true},
	allocator.Exhausted:       {codes.ResourceExhausted, false},
	allocator.Unavailable:     {codes.Unavailable, true},
	allocator.NoRange:         {codes.Unavailable, false},
	allocator.Refused:         {codes.FailedPrecondition, false},
	allocator.WentBack:        {codes.Unavailable, false},
	allocator.Conflict:        {codes.Aborted, true},
	allocator.Denied:          {codes.PermissionDenied, true},
	allocator.Unauthenticated: {codes.Unauthenticated, true},
	allocator.TooMany:         {codes.ResourceExhausted, false},
}

// ToStatus returns err as a gRPC status error; nil for nil. The first error of err's
// chain, from the outside in, that is one of these decides:
//
//   - a Kind: its code, and an ErrorInfo with the Kind as its reason;
//   - a gRPC status: that status;
//   - the end of a context: CANCELLED or DEADLINE_EXCEEDED;
//   - nothing: INTERNAL, as the Kind Internal.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	kind := allocator.KindOf(err)
	// KindOf also returns Internal for an error without a Kind.
	if kind == allocator.Internal && !errors.Is(err, allocator.Internal) {
		if s, ok := status.FromError(err); ok {
			return s.Err()
		}
		switch {
		case errors.Is(err, context.Canceled):
			return status.Error(codes.Canceled, message(err))
		case errors.Is(err, context.DeadlineExceeded):
			return status.Error(codes.DeadlineExceeded, message(err))
		}
	}
	if int(kind) >= len(table) {
		kind = allocator.Internal
	}
	info := &errdetails.ErrorInfo{Reason: kind.Error(), Domain: Domain}
	var away *allocator.AwayError
	if kind == allocator.Unavailable && errors.As(err, &away) {
		info.Metadata = map[string]string{
			MetadataTag:   string(away.Tag),
			MetadataSince: away.Since.UTC().Format(time.RFC3339),
		}
	}
	var limit *allocator.LimitError
	if errors.As(err, &limit) {
		info.Metadata = map[string]string{MetadataLimit: strconv.FormatInt(limit.Limit, 10)}
	}
	var none *timeid.NoWindowError
	if errors.As(err, &none) {
		if info.Metadata == nil {
			info.Metadata = make(map[string]string)
		}
		info.Metadata[MetadataWindow] = noWindow
	}
	if _, ok := errors.AsType[*allocator.OrderedError](err); ok {
		info.Metadata = map[string]string{MetadataOrder: strictOrder}
	}
	if right, ok := errors.AsType[*allocator.RightError](err); ok {
		info.Metadata = map[string]string{MetadataRight: strings.ToValidUTF8(right.Right, string(utf8.RuneError))}
	}
	s := &spb.Status{Code: int32(table[kind].code), Message: message(err)}
	if detail, err := anypb.New(info); err == nil {
		s.Details = append(s.Details, detail)
	}
	if wait, ok := errors.AsType[*allocator.WaitError](err); ok {
		if detail, err := anypb.New(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait.After)}); err == nil {
			s.Details = append(s.Details, detail)
		}
	}
	return status.ErrorProto(s)
}

// Unforeseen reports whether err shows a defect: its Kind is Internal, or it has none.
// The caller can do nothing about it, and a developer must look, so the server logs
// it. All other errors are for the caller to handle.
func Unforeseen(err error) bool {
	code := status.Code(ToStatus(err))
	return code == codes.Internal || code == codes.Unknown
}

// Again reports whether a caller may try again after an error, here or at another room: it cannot mend the error, it
// has reached a limit, or its time was over.
func Again(err error) bool {
	switch status.Code(ToStatus(err)) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return allocator.KindOf(err) == allocator.TooMany
}

// elsewhere are the kinds of errors after which another instance may succeed: one that knows a room's range, has IDs
// left or has not seen that etcd went back.
var elsewhere = []allocator.Kind{allocator.Unavailable, allocator.TooMany, allocator.WentBack, allocator.NoRange}

// Elsewhere reports whether another instance may succeed where one has answered with err.
func Elsewhere(err error) bool {
	return NoWindow(err) || slices.Contains(elsewhere, allocator.KindOf(err))
}

// Foremost returns the kind of a call that failed at several instances, whatever the order of their errors: the first
// of those after which another instance may succeed.
func Foremost(failures []error) allocator.Kind {
	for _, kind := range elsewhere {
		if slices.ContainsFunc(failures, func(err error) bool { return allocator.KindOf(err) == kind }) {
			return kind
		}
	}
	return allocator.KindOf(errors.Join(failures...))
}

// message returns err's message in a form that a status can carry: gRPC drops
// all details of one that is not UTF-8, and with them the Kind.
func message(err error) string {
	msg := strings.ToValidUTF8(err.Error(), string(utf8.RuneError))
	if len(msg) <= maxMessage {
		return msg
	}
	n := maxMessage
	for !utf8.RuneStart(msg[n]) {
		n--
	}
	return fmt.Sprintf("%s... (%d bytes more)", msg[:n], len(msg)-n)
}

// FromStatus converts a gRPC status error into an *allocator.Error. Its Kind is the
// one that the ErrorInfo names. Without March's ErrorInfo it is the Kind that the
// code means, or Internal. The message is the status's, without gRPC's words for a connection that it could not make;
// the cause is err.
//
// CANCELLED and DEADLINE_EXCEEDED have no Kind: they become an error that is
// context.Canceled or context.DeadlineExceeded. Errors that are not from gRPC
// (io.EOF, the end of a stream) and those that have a Kind stay unchanged.
func FromStatus(err error) error {
	s, ok := status.FromError(err)
	if !ok || s.Code() == codes.OK || classified(err) {
		return err
	}
	kind, ok := reason(s)
	if !ok {
		switch s.Code() {
		case codes.Canceled:
			return contextError{s, context.Canceled, err}
		case codes.DeadlineExceeded:
			return contextError{s, context.DeadlineExceeded, err}
		}
		kind = kindOf(s.Code())
	}
	return &allocator.Error{Kind: kind, Msg: allocator.ConnectionText(s.Message()), Err: err}
}

// FromServer reports whether a server of March answered with err, and not a proxy, or gRPC itself.
func FromServer(err error) bool {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return false
	}
	_, known := reason(s)
	return known
}

// classified reports whether err has a Kind, Internal included.
func classified(err error) bool {
	return allocator.KindOf(err) != allocator.Internal || errors.Is(err, allocator.Internal)
}

// reason returns the Kind that s's ErrorInfo names.
func reason(s *status.Status) (allocator.Kind, bool) {
	for _, detail := range s.Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		for kind := range table {
			if k := allocator.Kind(kind); k.Error() == info.GetReason() {
				return k, true
			}
		}
	}
	return allocator.Internal, false
}

// kindOf returns the Kind of a code without a reason.
func kindOf(code codes.Code) allocator.Kind {
	for kind, row := range table {
		if row.code == code && row.back {
			return allocator.Kind(kind)
		}
	}
	return allocator.Internal
}

// contextError is a call that ended with its context, here or at the server.
type contextError struct {
	status *status.Status
	end    error // context.Canceled or context.DeadlineExceeded
	cause  error
}

func (e contextError) Error() string {
	if msg := e.status.Message(); msg != "" {
		return msg
	}
	return e.end.Error()
}

func (e contextError) Unwrap() []error { return []error{e.end, e.cause} }

// GRPCStatus keeps the status as it was for a server that returns the error.
func (e contextError) GRPCStatus() *status.Status { return e.status }

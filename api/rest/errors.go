package rest

import (
	"errors"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// refusal is what HTTP refuses by itself, with a status of its own.
type refusal struct {
	status  int
	code    codes.Code
	message string
}

func (r *refusal) Error() string { return r.message }

// writeError answers an error: as package api has it, with the HTTP status that
// gRPC's codes have by convention.
func writeError(w http.ResponseWriter, err error) {
	status, answer := errorOf(err)
	body, err := newCodec(false).Marshal(answer)
	if err != nil { // not UTF-8, which package api sees to
		body = []byte(`{"code":"INTERNAL"}` + "\n")
	}
	w.Header()["Content-Type"] = contentJSON
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// errorOf returns an error's HTTP status and body.
func errorOf(err error) (int, *marchv1.Error) {
	if refused, ok := errors.AsType[*refusal](err); ok {
		answer := &marchv1.Error{Code: codeName(refused.code), Message: refused.message}
		if refused.code == codes.InvalidArgument {
			answer.Reason = allocator.Invalid.Error()
		}
		return refused.status, answer
	}
	// There and back again: the gateway's own errors are statuses without a reason.
	s := status.Convert(api.ToStatus(api.FromStatus(err)))
	answer := &marchv1.Error{Code: codeName(s.Code()), Message: s.Message()}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == api.Domain {
			answer.Reason, answer.Metadata = info.GetReason(), info.GetMetadata()
		}
	}
	return runtime.HTTPStatusFromCode(s.Code()), answer
}

// codeName returns NOT_FOUND for codes.NotFound.
func codeName(c codes.Code) string { return code.Code(c).String() }

package serve

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// refusal is an error of HTTP itself, with its own status.
type refusal struct {
	status  int
	code    codes.Code
	message string
}

func (r *refusal) Error() string { return r.message }

// refuse answers with an error, and logs an unforeseen one (api.Unforeseen).
func (h *rest) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if api.Unforeseen(err) {
		if _, refused := errors.AsType[*refusal](err); !refused {
			h.failed.Log(time.Now(), h.log.Error, "request failed",
				append(traceID(r.Context()), "method", r.Method, "path", r.URL.Path, "error", err)...)
		}
	}
	WriteError(w, err)
}

// WriteError answers with an error in package api's form and with StatusOf's
// status, as all routes of the API do.
func WriteError(w http.ResponseWriter, err error) {
	with, answer := errorOf(err)
	body, bad := newCodec(false).Marshal(answer)
	if bad != nil { // not UTF-8, which package api prevents
		body = []byte(`{"code":"INTERNAL"}` + "\n")
	}
	w.Header()["Content-Type"] = contentJSON
	w.Header().Set("X-Content-Type-Options", "nosniff") // the message may quote the request
	RetryAfter(w, err)
	if with == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="march"`)
	}
	w.WriteHeader(with)
	_, _ = w.Write(body)
}

// RetryAfter reports whether the caller of an error may try again, and says in an answer after how long.
func RetryAfter(w http.ResponseWriter, err error) bool {
	if !api.Again(err) {
		return false
	}
	after := max(api.RetryAfter(api.ToStatus(err)), time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(after.Seconds())), 10))
	return true
}

// StatusOf returns the HTTP status of an error, for all routes: the usual one for
// its gRPC code.
func StatusOf(err error) int { return runtime.HTTPStatusFromCode(status.Code(api.ToStatus(err))) }

// errorOf returns an error's HTTP status and body.
func errorOf(err error) (int, *marchv1.Error) {
	s := status.Convert(api.ToStatus(err))
	answer := &marchv1.Error{Message: s.Message()}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == api.Domain {
			answer.Reason, answer.Metadata = info.GetReason(), info.GetMetadata()
		}
	}
	is, with := s.Code(), StatusOf(err)
	if refused, ok := errors.AsType[*refusal](err); ok {
		answer.Message, answer.Reason = refused.message, ""
		is, with = refused.code, refused.status
	}
	if is == codes.InvalidArgument { // the gateway's errors and refusals have no reason of their own
		answer.Reason = allocator.Invalid.Error()
	}
	answer.Code = code.Code(is).String() // NOT_FOUND
	return with, answer
}

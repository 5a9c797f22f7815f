package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/textproto"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	gateway "github.com/march-id/march/api/gateway"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/throttle"
)

// RoomRoutes returns a function that adds a room's routes to a mux. A service that is nil has none: it is
// served elsewhere. hot is the issuer of ids without a client's copies. maxBody bounds a request's body, in bytes.
// Only panics and unforeseen errors (api.Unforeseen) are logged.
func RoomRoutes(ids marchv1.IDServiceClient, hot access.Issuer, room marchv1.RoomServiceClient, maxBody int64,
	log hclog.Logger) (func(*http.ServeMux), error) {
	h, err := newRest(gateway.RoomDocument, maxBody, log)
	if err == nil && ids != nil {
		err = gateway.RegisterIDServiceHandlerClient(context.Background(), h.gateway, ids)
	}
	if err == nil && room != nil {
		err = gateway.RegisterRoomServiceHandlerClient(context.Background(), h.gateway, room)
	}
	if err != nil {
		return nil, err
	}
	h.routes["/v1/tags/{tag}/lease"].methods[http.MethodPost].takeQuery(map[string]string{"count": "int64",
		"window.nonce": "", "window.held.worker": "int64", "window.held.nonce": "", "window.age": ""})
	h.routes[nextPath].methods[http.MethodPost].takeQuery(map[string]string{"count": "int64", "contiguous": "boolean",
		"texts": "boolean"})
	return func(mux *http.ServeMux) {
		h.mount(mux)
		if hot.Next != nil { // this pattern takes precedence over "/v1/" for POST; other methods go there
			mux.Handle("POST "+nextPath, h.guard(h.next(hot)))
		}
	}, nil
}

// ConsoleRoutes returns a function that adds a console's routes to a mux.
func ConsoleRoutes(console *access.Conn, maxBody int64, log hclog.Logger) (func(*http.ServeMux), error) {
	h, err := newRest(gateway.ConsoleDocument, maxBody, log)
	if err == nil {
		err = gateway.RegisterConsoleServiceHandlerClient(context.Background(), h.gateway,
			marchv1.NewConsoleServiceClient(console))
	}
	if err != nil {
		return nil, err
	}
	for _, path := range []string{"/v1/migrations/{id}:watch", "/v1/migrations:watch"} {
		h.routes[path].methods[http.MethodGet].byHand = h.watch(console)
	}
	return h.mount, nil
}

// rest serves the routes of one OpenAPI document.
type rest struct {
	maxBody  int64
	log      hclog.Logger
	document []byte
	routes   map[string]*route // by path, as the document has it
	gateway  *runtime.ServeMux
	origins  *http.CrossOriginProtection
	failed   throttle.Log
	inQuery  throttle.Log // fields that belong into a body
}

func newRest(generated []byte, maxBody int64, log hclog.Logger) (*rest, error) {
	routes, err := parseDocument(generated)
	if err != nil {
		return nil, err
	}
	h := &rest{maxBody: maxBody, log: log, document: generated, routes: routes,
		origins: http.NewCrossOriginProtection()}
	h.gateway = runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, newCodec(true)),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler,
			w http.ResponseWriter, r *http.Request, err error) {
			h.refuse(w, r, err)
		}),
		runtime.WithIncomingHeaderMatcher(func(name string) (string, bool) { return api.ActorHeader, name == actor }),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptReserved),
		runtime.WithDisablePathLengthFallback(), // no POST of a form for a GET
		runtime.WithDisableHTTPMethodOverride(), // no header may change the method
		runtime.WithWriteContentLength(),
	)
	return h, nil
}

func (h *rest) mount(mux *http.ServeMux) {
	mux.Handle("/v1/", h.guard(http.HandlerFunc(h.serve)))
	mux.Handle("GET /v1/openapi.json", h.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = contentJSON
		_, _ = w.Write(h.document)
	})))
}

// callTimeout bounds a call, so that there is time to send its error: the server
// gives an answer 10 s.
const callTimeout = 8 * time.Second

// actor is the header with which a client names the actor of a call. No other becomes gRPC metadata.
var actor = textproto.CanonicalMIMEHeaderKey(api.ActorHeader)

var noStore = []string{"no-store"}

// guard does the work that all routes share. It is on the hot path.
func (h *rest) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Cache-Control"] = noStore
		defer h.recovered(w, r)
		if err := h.origins.Check(r); err != nil {
			WriteError(w, &refusal{http.StatusForbidden, codes.PermissionDenied,
				"a browser sent this for a page of another origin: such pages may not issue IDs or change anything"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// recovered is deferred: it logs a panic, which is a defect of March, and answers
// with an error.
func (h *rest) recovered(w http.ResponseWriter, r *http.Request) {
	reason := recover()
	switch reason {
	case nil:
		return
	case http.ErrAbortHandler: // with this panic a handler drops a connection
		panic(reason)
	}
	h.log.Error("panic", "method", r.Method, "path", r.URL.Path, "panic", reason, "stack", string(debug.Stack()))
	WriteError(w, allocator.Errorf(allocator.Internal, "a defect in March; the server's log has the details"))
}

// serve answers a request for any route but the hot one.
func (h *rest) serve(w http.ResponseWriter, r *http.Request) {
	c, err := h.check(w, r)
	if c.route != nil && c.route.methods[c.method] != nil {
		r.Pattern = c.method + " " + c.route.path // for metrics and traces: the mux knows only /v1/
	}
	if err != nil {
		if refused, ok := errors.AsType[*refusal](err); ok && refused.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", c.route.allowed())
		}
		h.refuse(w, r, err)
		return
	}
	ctx, byHand := r.Context(), c.route.methods[c.method].byHand
	if byHand == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	r = r.WithContext(ctx)
	r.Method, r.Body = c.method, io.NopCloser(bytes.NewReader(c.body))
	// The gateway unescapes RawPath, or, if that is empty, Path, which is unescaped
	// already.
	url := *r.URL
	url.RawPath = url.EscapedPath()
	if c.query != nil {
		url.RawQuery = c.query.Encode()
	}
	r.URL = &url
	if byHand != nil {
		r.SetPathValue("id", c.values["id"])
		byHand(w, r)
		return
	}
	h.gateway.ServeHTTP(w, r)
}

// contentJSON is the header's value, made once.
var contentJSON = []string{"application/json"}

// codec converts messages to JSON and back. Unknown fields are errors.
type codec struct{ *runtime.JSONPb }

// newCodec returns the codec of answers, which have all fields, as in the command
// line's -o json, or the codec of errors, which have only fields that are set.
func newCodec(allFields bool) codec {
	return codec{&runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{EmitUnpopulated: allFields}}}
}

// Marshal returns v in one line, without the white space that protojson varies at
// random.
func (c codec) Marshal(v any) ([]byte, error) {
	b, err := c.JSONPb.Marshal(v)
	if err != nil {
		return nil, err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, b); err != nil {
		return nil, err
	}
	line.WriteByte('\n')
	return line.Bytes(), nil
}

// NewDecoder returns a decoder whose errors begin with the name of the field.
func (c codec) NewDecoder(r io.Reader) runtime.Decoder {
	decoder := c.JSONPb.NewDecoder(r)
	return runtime.DecoderFunc(func(v any) error {
		err := decoder.Decode(v)
		if err == nil || errors.Is(err, io.EOF) { // io.EOF: no body, which is an empty one
			return err
		}
		// protojson varies the space after its name.
		text := strings.TrimLeftFunc(strings.TrimPrefix(err.Error(), "proto:"), unicode.IsSpace)
		return errors.New("body: " + text)
	})
}

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

// sendTimeout is how long a client may take to receive one line.
const sendTimeout = 10 * time.Second

// watch serves WatchMigration as lines of JSON, {"result": ...} as the gateway
// has streams; an error after the first line is a line too, {"error": ...}.
func (h *rest) watch(conn *access.Conn) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		// A watch lasts as long as the migration, so the server's limits on a whole
		// request must not apply. The read deadline would end the request's
		// context.
		if err := control.SetReadDeadline(time.Time{}); err != nil {
			h.refuse(w, r, allocator.Errorf(allocator.Internal, "lift the read deadline: %w", err))
			return
		}
		out := &lines{w: w, conn: control}
		id := r.PathValue("id")
		if id == "" {
			id = r.URL.Query().Get("id")
		}
		err := conn.Stream(r.Context(), marchv1.ConsoleService_WatchMigration_FullMethodName,
			&marchv1.WatchMigrationRequest{Id: id}, func(answer any) error { return out.write("result", answer) })
		switch {
		case err == nil:
		case !out.begun:
			_ = control.SetWriteDeadline(time.Now().Add(sendTimeout))
			h.refuse(w, r, err)
		default:
			_, answer := errorOf(err)
			_ = out.write("error", answer) // the client may be gone
		}
	}
}

// lines is a stream of answers as lines of JSON.
type lines struct {
	w     http.ResponseWriter
	conn  *http.ResponseController
	begun bool
}

func (l *lines) write(field string, message any) error {
	body, err := newCodec(field == "result").Marshal(message)
	if err != nil {
		return err
	}
	line, err := json.Marshal(map[string]json.RawMessage{field: body})
	if err != nil {
		return err
	}
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	if _, err := l.w.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.conn.Flush()
}

// route is a path of the document, with its methods.
type route struct {
	path     string   // as the document has it: /v1/tags/{name}:skip
	segments []string // v1, tags, {name}
	verb     string   // skip; empty for none
	methods  map[string]*operation
}

// operation has the parameters and the body of a method of a route.
type operation struct {
	query map[string]*parameter // by name, as JSON and as the protos have it
	path  map[string]*parameter // by name
	body  bool
	// beside are fields of the body that the gateway takes in the query: those that are not of the request's resource.
	// They may come in the query, as they had to until 0.1. The server warns of it.
	beside map[string]*parameter // by name, as in query
	// asQuery: the fields of the body may come in the query, as they had to until 0.1. The server warns of it.
	asQuery bool
	// byHand, if set, serves the method in the gateway's place, without a time
	// limit.
	byHand http.HandlerFunc
}

type parameter struct {
	Name   string `json:"name"`
	In     string `json:"in"`
	Schema schema `json:"schema"`
}

type schema struct {
	Type       string            `json:"type"`
	Format     string            `json:"format"`
	Enum       []string          `json:"enum"`
	AllOf      []schema          `json:"allOf"`
	Properties map[string]schema `json:"properties"`
}

// parseDocument returns the routes of a generated OpenAPI document, by path.
func parseDocument(generated []byte) (map[string]*route, error) {
	var document struct {
		Paths map[string]map[string]struct { // path, method
			Parameters  []*parameter `json:"parameters"`
			RequestBody *struct {
				Content map[string]struct {
					Schema schema `json:"schema"`
				} `json:"content"`
			} `json:"requestBody"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(generated, &document); err != nil {
		return nil, fmt.Errorf("OpenAPI document: %w", err)
	}
	routes := make(map[string]*route, len(document.Paths))
	for path, methods := range document.Paths {
		r := newRoute(path)
		for method, takes := range methods {
			op := newOperation(takes.Parameters)
			if op.body = takes.RequestBody != nil; op.body {
				op.takeBeside(takes.RequestBody.Content[contentJSON[0]].Schema.AllOf)
			}
			r.methods[strings.ToUpper(method)] = op
		}
		routes[path] = r
	}
	return routes, nil
}

func newRoute(path string) *route {
	r := &route{path: path, methods: make(map[string]*operation)}
	path, r.verb, _ = strings.Cut(path, ":")
	r.segments = strings.Split(path[1:], "/")
	return r
}

func newOperation(parameters []*parameter) *operation {
	op := &operation{query: make(map[string]*parameter), path: make(map[string]*parameter)}
	for _, p := range parameters {
		switch p.In {
		case "path":
			op.path[p.Name] = p
		case "query":
			op.query[p.Name], op.query[snakeCase(p.Name)] = p, p
		}
	}
	return op
}

// takeBeside notes the fields of a body beside its resource: it has both as parts.
func (op *operation) takeBeside(parts []schema) {
	if len(parts) != 2 {
		return
	}
	op.beside = make(map[string]*parameter)
	for name, s := range parts[1].Properties {
		p := &parameter{Name: name, In: "query", Schema: s}
		op.beside[name], op.beside[snakeCase(name)] = p, p
	}
	maps.Copy(op.query, op.beside)
}

// takeQuery lets the fields of the body come in the query, too. It gets their formats, by name.
func (op *operation) takeQuery(fields map[string]string) {
	op.asQuery = true
	for name, format := range fields {
		p := &parameter{Name: name, In: "query"}
		if p.Schema.Type, p.Schema.Format = "string", format; format == "boolean" {
			p.Schema.Type, p.Schema.Format = format, ""
		}
		op.query[name] = p
	}
}

// snakeCase returns page_size for pageSize: a field's name in the protos, and in
// the messages of errors, for its name in JSON.
func snakeCase(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if 'A' <= c && c <= 'Z' {
			b.WriteByte('_')
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

// match returns the values of a path's parameters, still escaped, if the path is
// the route's.
func (r *route) match(segments []string, verb string) (map[string]string, bool) {
	if len(segments) != len(r.segments) || verb != r.verb {
		return nil, false
	}
	values := make(map[string]string)
	for i, want := range r.segments {
		got := segments[i]
		switch {
		case want[0] == '{' && got != "":
			values[want[1:len(want)-1]] = got
		case want != got:
			return nil, false
		}
	}
	return values, true
}

// find returns the route of an escaped path.
func (h *rest) find(path string) (r *route, values map[string]string) {
	path, verb, colon := strings.Cut(path, ":")
	if colon && verb == "" {
		return nil, nil
	}
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for _, r := range h.routes { // no two match
		if values, ok := r.match(segments, verb); ok {
			return r, values
		}
	}
	return nil, nil
}

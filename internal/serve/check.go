package serve

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/march-id/march/allocator"
)

// checked is a request that its route accepts.
type checked struct {
	route  *route
	method string            // GET for HEAD
	values map[string]string // the path's parameters
	body   []byte
	query  url.Values // nil for that of the URL
}

// check checks a request by the document. If the method is not allowed, the result
// still has the route.
func (h *rest) check(w http.ResponseWriter, r *http.Request) (checked, error) {
	path := r.URL.EscapedPath()
	c := checked{method: r.Method}
	if c.route, c.values = h.find(path); c.route == nil {
		return c, &refusal{http.StatusNotFound, codes.NotFound,
			fmt.Sprintf("no such path: %.200q; GET /v1/openapi.json lists those there are", path)}
	}
	if c.method == http.MethodHead && c.route.head() {
		c.method = http.MethodGet
	}
	op := c.route.methods[c.method]
	if op == nil {
		message := fmt.Sprintf("%.20s is not for %s; allowed: %s", r.Method, c.route.path, c.route.allowed())
		if c.method == http.MethodGet {
			message += " (what issues IDs or changes anything is no GET: an answer out of a cache would be the " +
				"same ID again)"
		}
		return c, &refusal{http.StatusMethodNotAllowed, codes.Unimplemented, message}
	}
	for name, p := range op.path {
		if err := p.check(c.values[name]); err != nil {
			return c, err
		}
	}
	query, err := op.checkQuery(r.URL.RawQuery)
	if err != nil {
		return c, err
	}
	if err := checkActor(r.Header[actor]); err != nil {
		return c, err
	}
	var fields map[string]json.RawMessage
	if c.body, fields, err = readBody(w, r, h.maxBody); err != nil {
		return c, err
	}
	if !op.body {
		c.body = nil
		return c, refuseFields(fields)
	}
	if err := checkBody(fields, c.values); err != nil {
		return c, err
	}
	switch {
	case op.asQuery && len(query) > 0:
		if err = h.warnOfQuery(r, c.route.path, fields); err == nil {
			c.body, err = bodyOf(query)
		}
	case op.beside != nil:
		if len(query) > 0 {
			err = h.warnOfQuery(r, c.route.path, nil)
		}
		if err == nil {
			c.body, c.query, err = op.split(c.body, fields, query)
		}
	}
	return c, err
}

// split takes the fields beside the resource out of a body, and adds them to a query for the gateway.
func (op *operation) split(body []byte, fields map[string]json.RawMessage, query url.Values) ([]byte, url.Values,
	error) {
	both := url.Values{}
	maps.Copy(both, query)
	for name, raw := range fields {
		p := op.beside[name]
		if p == nil {
			continue
		}
		delete(fields, name)
		value := string(raw)
		if p.Schema.Type == "string" {
			value = strings.Trim(value, `"`)
		}
		if both.Has(p.Name) || both.Has(snakeCase(p.Name)) {
			return nil, nil, allocator.Errorf(allocator.Invalid, "%s: given twice; allowed: once", p.Name)
		} else if err := p.check(value); err != nil {
			return nil, nil, err
		}
		both.Set(p.Name, value)
	}
	if len(both) == len(query) { // as it came, so that the gateway sees a field that is there twice
		return body, both, nil
	}
	if name := repeated(body); name != "" {
		return nil, nil, allocator.Errorf(allocator.Invalid, "%.100s: given twice; allowed: once", name)
	}
	body, err := json.Marshal(fields)
	return body, both, err
}

// repeated returns the first name that a JSON object has twice, and "" for none: a map has only the last one's value.
func repeated(object []byte) string {
	seen := make(map[string]bool)
	d := json.NewDecoder(bytes.NewReader(object))
	for _, _ = d.Token(); d.More(); {
		token, _ := d.Token()
		name, _ := token.(string)
		if seen[name] || d.Decode(new(json.RawMessage)) != nil {
			return name
		}
		seen[name] = true
	}
	return ""
}

// checkBody refuses fields of a body that differ from the path's, which would replace them.
func checkBody(fields map[string]json.RawMessage, path map[string]string) error {
	for name, in := range path {
		var said string
		if raw, ok := fields[name]; ok && (json.Unmarshal(raw, &said) != nil || said != in) {
			return allocator.Errorf(allocator.Invalid,
				"%s: %.100s in the body, %.100q in the path; leave it out of the body", name, raw, in)
		}
	}
	return nil
}

// warnOfQuery warns of a request whose query has what belongs into its body. Its error is Invalid if it has a body,
// too.
func (h *rest) warnOfQuery(r *http.Request, path string, fields map[string]json.RawMessage) error {
	if len(fields) > 0 {
		return allocator.Errorf(allocator.Invalid, "query: %.100q beside a body; allowed: a body alone", r.URL.RawQuery)
	}
	h.inQuery.Log(time.Now(), h.log.Warn, "fields of a request came in its URL, which others on the way "+
		"write to their logs; the next version takes them in the body alone, as JSON", "path", path)
	return nil
}

// bodyOf returns the JSON object of parameters of a query: a.b is the field b of the object a. Every value is a text,
// as protos in JSON take numbers as texts, too.
func bodyOf(query url.Values) ([]byte, error) {
	body := make(map[string]any)
	for name, values := range query {
		in, path := body, strings.Split(name, ".")
		for _, part := range path[:len(path)-1] {
			inner, _ := in[part].(map[string]any)
			if inner == nil {
				inner = make(map[string]any)
				in[part] = inner
			}
			in = inner
		}
		in[path[len(path)-1]] = values[0]
	}
	return json.Marshal(body)
}

// allowed returns the methods of a route, as the header Allow has them.
func (r *route) allowed() string {
	methods := slices.Collect(maps.Keys(r.methods))
	if r.head() {
		methods = append(methods, http.MethodHead)
	}
	slices.Sort(methods)
	return strings.Join(methods, ", ")
}

// head reports whether a route takes HEAD, which is a GET whose body is not sent.
func (r *route) head() bool {
	get := r.methods[http.MethodGet]
	return get != nil && get.byHand == nil
}

// check checks the value of a parameter. It allows one way to write a number,
// because the gateway would read 010 as eight, one way to write true and false, and
// an enum's names.
func (p *parameter) check(value string) error {
	if p.Schema.Type == "boolean" && value != "true" && value != "false" {
		return allocator.Errorf(allocator.Invalid, "%s: %.100q; allowed: true or false", p.Name, value)
	}
	if enum := p.Schema.Enum; enum != nil && !slices.Contains(enum, value) {
		return allocator.Errorf(allocator.Invalid, "%s: %.100q; allowed: %s", p.Name, value, strings.Join(enum, ", "))
	}
	bits, isNumber := map[string]int{"int64": 64, "int32": 32}[p.Schema.Format]
	if !isNumber {
		return nil
	}
	n, err := strconv.ParseInt(value, 10, bits)
	if err != nil || strconv.FormatInt(n, 10) != value {
		return allocator.Errorf(allocator.Invalid,
			"%s: %.100q; allowed: a decimal number of %d bits", p.Name, value, bits)
	}
	return nil
}

func (op *operation) checkQuery(raw string) (url.Values, error) {
	if raw == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, allocator.Errorf(allocator.Invalid, "query: %w", err)
	}
	seen := make(map[*parameter]bool)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		p := op.query[name]
		if p == nil {
			return nil, unknownParameter(name, op.query)
		}
		if len(values[name]) > 1 || seen[p] {
			return nil, allocator.Errorf(allocator.Invalid, "%s: given twice; allowed: once", p.Name)
		}
		seen[p] = true
		if err := p.check(values[name][0]); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func unknownParameter(name string, known map[string]*parameter) error {
	var names []string
	for _, p := range known {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return allocator.Errorf(allocator.Invalid, "query: unknown parameter %.100q; allowed: %s", name,
		cmp.Or(strings.Join(slices.Compact(names), ", "), "no parameter"))
}

// checkActor checks that gRPC accepts the actor as metadata.
func checkActor(values []string) error {
	if len(values) > 1 {
		return allocator.Errorf(allocator.Invalid, "header %s: given twice; allowed: once", actor)
	}
	for _, v := range values {
		if i := strings.IndexFunc(v, func(c rune) bool { return c < ' ' || c > '~' }); i >= 0 {
			return allocator.Errorf(allocator.Invalid, "header %s: %.200q; allowed: printable ASCII", actor, v)
		}
	}
	return nil
}

// readBody returns a request's body, nil for none, and the fields of the JSON
// object that it must be.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, map[string]json.RawMessage, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, nil, &refusal{http.StatusRequestEntityTooLarge, codes.InvalidArgument,
			fmt.Sprintf("body: too large; allowed: %d bytes", most)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil, &refusal{http.StatusRequestTimeout, codes.DeadlineExceeded,
			"body: it did not arrive in time; send the request again"}
	case err != nil:
		return nil, nil, allocator.Errorf(allocator.Invalid, "body: %w", err)
	case len(body) == 0:
		return nil, nil, nil
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, nil, &refusal{http.StatusUnsupportedMediaType, codes.InvalidArgument,
			fmt.Sprintf("body: Content-Encoding: %.100q; allowed: none", encoding)}
	}
	if err := checkContentType(r.Header.Values("Content-Type")); err != nil {
		return nil, nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil && errors.As(err, new(*json.SyntaxError)) {
		return nil, nil, allocator.Errorf(allocator.Invalid, "body: no JSON: %w", err)
	}
	if fields == nil { // another kind of value, or null
		return nil, nil, allocator.Errorf(allocator.Invalid, "body: %.100q is not a JSON object", body)
	}
	return body, fields, nil
}

func checkContentType(values []string) error {
	if len(values) == 0 {
		return nil
	}
	kind, parameters, err := mime.ParseMediaType(values[0])
	charset := parameters["charset"]
	if err != nil || len(values) > 1 || kind != contentJSON[0] ||
		charset != "" && !strings.EqualFold(charset, "utf-8") {
		return &refusal{http.StatusUnsupportedMediaType, codes.InvalidArgument, fmt.Sprintf(
			"body: Content-Type: %.200q; allowed: application/json, in UTF-8 (curl's --json says so)",
			strings.Join(values, ", "))}
	}
	return nil
}

// refuseFields refuses the fields of a body for a route without one; an empty
// object is allowed.
func refuseFields(fields map[string]json.RawMessage) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		return allocator.Errorf(allocator.Invalid, "body: unknown field %.100q; allowed: no body, or {}", name)
	}
	return nil
}

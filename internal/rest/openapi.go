package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// route is a path of the document and what it takes.
type route struct {
	path     string   // as the document has it: /v1/tags/{name}:skip
	segments []string // v1, tags, {name}
	verb     string   // skip; empty for none
	methods  map[string]*operation
}

// operation is what a method of a route takes.
type operation struct {
	query map[string]*parameter // by name, as JSON and as the protos have it
	path  map[string]*parameter // by name
	body  bool
	// byHand, where it is set, serves it in the gateway's place: for as long as it
	// likes.
	byHand http.HandlerFunc
}

type parameter struct {
	Name   string `json:"name"`
	In     string `json:"in"`
	Type   string `json:"type"`
	Format string `json:"format"`
}

// bits returns how many bits an integer has, 0 for what is none.
func (p *parameter) bits() int {
	switch p.Format {
	case "int64":
		return 64
	case "int32":
		return 32
	}
	return 0
}

// parseDocument returns a generated OpenAPI document as it is served, and its
// routes.
//
// The generator gives the path of PATCH /v1/tags/{tag.name} an entry of its own
// beside GET /v1/tags/{name}, which OpenAPI forbids: such entries become one, with
// the parameter's last name.
func parseDocument(generated []byte) ([]byte, map[string]*route, error) {
	var document map[string]json.RawMessage
	if err := json.Unmarshal(generated, &document); err != nil {
		return nil, nil, fmt.Errorf("OpenAPI document: %w", err)
	}
	var entries map[string]map[string]map[string]json.RawMessage // path, method, field
	if err := json.Unmarshal(document["paths"], &entries); err != nil {
		return nil, nil, fmt.Errorf("OpenAPI document: paths: %w", err)
	}
	paths := make(map[string]map[string]map[string]json.RawMessage, len(entries))
	routes := make(map[string]*route, len(entries))
	for given, methods := range entries {
		path, renamed := shorten(given)
		r, ok := routes[path]
		if !ok {
			r = newRoute(path)
			routes[path], paths[path] = r, methods
		}
		for method, fields := range methods {
			var parameters []map[string]any
			if raw, ok := fields["parameters"]; ok {
				if err := json.Unmarshal(raw, &parameters); err != nil {
					return nil, nil, fmt.Errorf("OpenAPI document: %s %s: %w", method, given, err)
				}
			}
			for _, p := range parameters {
				if short, ok := renamed[fmt.Sprint(p["name"])]; ok && p["in"] == "path" {
					p["name"] = short
				}
			}
			raw, err := json.Marshal(parameters)
			if err != nil {
				return nil, nil, err
			}
			if len(parameters) > 0 {
				fields["parameters"] = raw
			}
			if r.methods[strings.ToUpper(method)], err = newOperation(raw); err != nil {
				return nil, nil, err
			}
			paths[path][method] = fields
		}
	}
	var err error
	if document["paths"], err = json.Marshal(paths); err != nil {
		return nil, nil, err
	}
	served, err := json.Marshal(document)
	if err != nil {
		return nil, nil, err
	}
	return append(served, '\n'), routes, nil
}

// shorten returns a path with {name} for {tag.name}, and which names became
// which.
func shorten(path string) (short string, renamed map[string]string) {
	renamed = make(map[string]string)
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		name, rest, ok := strings.Cut(strings.TrimPrefix(segment, "{"), "}")
		if dot := strings.LastIndexByte(name, '.'); ok && dot >= 0 {
			renamed[name] = name[dot+1:]
			segments[i] = "{" + name[dot+1:] + "}" + rest
		}
	}
	return strings.Join(segments, "/"), renamed
}

func newRoute(path string) *route {
	r := &route{path: path, methods: make(map[string]*operation)}
	path, r.verb, _ = strings.Cut(path, ":")
	r.segments = strings.Split(path[1:], "/")
	return r
}

func newOperation(parameters []byte) (*operation, error) {
	var list []*parameter
	if err := json.Unmarshal(parameters, &list); err != nil {
		return nil, fmt.Errorf("OpenAPI document: parameters: %w", err)
	}
	op := &operation{query: make(map[string]*parameter), path: make(map[string]*parameter)}
	for _, p := range list {
		switch p.In {
		case "path":
			op.path[p.Name] = p
		case "query":
			op.query[p.Name], op.query[snakeCase(p.Name)] = p, p
		case "body":
			op.body = true
		}
	}
	return op, nil
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

// match returns the values of a path's parameters, still escaped, where the path
// is the route's.
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
func (h *handler) find(path string) (r *route, values map[string]string) {
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

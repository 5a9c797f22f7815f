package serve

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
)

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

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/getkin/kin-openapi/openapi2"
	"github.com/getkin/kin-openapi/openapi2conv"
	"github.com/getkin/kin-openapi/openapi3"
)

// convert reads what protoc-gen-openapiv2 wrote, a Swagger 2 document, and writes an
// OpenAPI 3 document.
//
// grpc-gateway has a generator of OpenAPI 3, too, but it takes no routes and no texts from
// files beside the protos.
func convert(r io.Reader, w io.Writer, descriptors string) error {
	var raw any
	if err := json.NewDecoder(r).Decode(&raw); err != nil {
		return err
	}
	wrapRefs(raw)
	b, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	var swagger openapi2.T
	if err := json.Unmarshal(b, &swagger); err != nil {
		return err
	}
	doc, err := openapi2conv.ToV3(&swagger)
	if err != nil {
		return err
	}
	// The server that the document is from.
	doc.Servers = openapi3.Servers{{URL: "/"}}
	if err := mergePaths(doc); err != nil {
		return err
	}
	nameStreams(doc)
	gather(doc)
	if err := dropUnused(doc); err != nil {
		return err
	}
	if err := require(doc, descriptors); err != nil {
		return err
	}
	if err := exemplify(doc); err != nil {
		return err
	}
	secure(doc)
	if b, err = json.MarshalIndent(doc, "", "  "); err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// wrapRefs gives a reference to a message that has a comment of its own, or is read-only,
// a schema around it: readers ignore what stands beside a reference.
func wrapRefs(value any) {
	switch value := value.(type) {
	case []any:
		for _, v := range value {
			wrapRefs(v)
		}
	case map[string]any:
		if ref, ok := value["$ref"].(string); ok && len(value) > 1 {
			delete(value, "$ref")
			value["allOf"] = []any{map[string]any{"$ref": ref}}
		}
		for _, v := range value {
			wrapRefs(v)
		}
	}
}

// mergePaths makes one entry of PATCH /v1/tags/{tag.name} and GET /v1/tags/{name}, with
// the parameter's last name. They are one path, and OpenAPI forbids two entries for it.
func mergePaths(doc *openapi3.T) error {
	paths := openapi3.NewPaths()
	for _, given := range doc.Paths.InMatchingOrder() {
		path, renamed := shorten(given)
		item := doc.Paths.Value(given)
		for method, op := range item.Operations() {
			for _, p := range op.Parameters {
				if short, ok := renamed[p.Value.Name]; ok && p.Value.In == openapi3.ParameterInPath {
					p.Value.Name = short
				}
			}
			if to := paths.Value(path); to != nil {
				if to.GetOperation(method) != nil {
					return fmt.Errorf("%s %s is there twice", method, path)
				}
				to.SetOperation(method, op)
			}
		}
		if paths.Value(path) == nil {
			paths.Set(path, item)
		}
	}
	doc.Paths = paths
	return nil
}

// shorten returns a path with {name} for {tag.name}, and which names became which.
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

// nameStreams gives streams the content type that they have: a line of JSON for each
// message, with the error that ended the stream as the last one.
func nameStreams(doc *openapi3.T) {
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			ok := op.Responses.Status(200).Value
			stream := ok.Content["application/json"]
			if stream == nil || stream.Schema.Value == nil ||
				!strings.HasPrefix(stream.Schema.Value.Title, "Stream result of ") {
				continue
			}
			text := "A line of JSON for each answer. An error that comes after the first line is a line, too."
			ok.Description = &text
			stream.Schema.Value.Properties["error"] = openapi3.NewSchemaRef("#/components/schemas/Error", nil)
			ok.Content = openapi3.Content{"application/x-ndjson": stream}
		}
	}
}

// dropUnused leaves out schemas that no call needs, as NextBatchResponse where Issued stands
// for it.
func dropUnused(doc *openapi3.T) error {
	for {
		b, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		before := len(doc.Components.Schemas)
		maps.DeleteFunc(doc.Components.Schemas, func(name string, _ *openapi3.SchemaRef) bool {
			return !bytes.Contains(b, []byte(`"#/components/schemas/`+name+`"`))
		})
		if len(doc.Components.Schemas) == before {
			return nil
		}
	}
}

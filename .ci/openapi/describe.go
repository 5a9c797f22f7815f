package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// byHand are the messages of answers that are not written from protos, with the fields that they always have. Issued
// has an ID or runs.
var byHand = map[string][]string{"Error": {"code", "message"}, "Issued": nil}

// mustHave are the fields that messages of requests must have.
var mustHave = map[string][]string{
	"Layout": {"boundary", "rooms"}, "LeaseBody": {"count"}, "NextManyRequest": {"tags"},
	"SkipTagBody": {"to"}, "Tag": {"name"}, "TagCount": {"tag", "count"},
}

// gather puts the parameters of the queries of calls that have a body into the body, beside its resource: there is one
// way to give them. Calls without a body, GET and DELETE, have theirs in the query.
func gather(doc *openapi3.T) {
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			beside := openapi3.NewObjectSchema()
			for _, p := range slices.Clone(op.Parameters) {
				if op.RequestBody == nil || p.Value.In != openapi3.ParameterInQuery {
					continue
				}
				field := *p.Value.Schema.Value
				field.Description = p.Value.Description
				beside.WithProperty(p.Value.Name, &field)
				op.Parameters = slices.DeleteFunc(op.Parameters, func(q *openapi3.ParameterRef) bool { return q == p })
			}
			if len(beside.Properties) > 0 {
				media := op.RequestBody.Value.Content["application/json"]
				media.Schema = openapi3.NewSchemaRef("", &openapi3.Schema{
					AllOf: openapi3.SchemaRefs{media.Schema, openapi3.NewSchemaRef("", beside)}})
			}
		}
	}
}

// require marks the fields of answers that they always have: all but those of oneofs and those that are optional. A
// message that is not set is null. Messages of requests have what mustHave says.
func require(doc *openapi3.T, descriptors string) error {
	b, err := os.ReadFile(descriptors)
	if err != nil {
		return err
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(b, &set); err != nil {
		return err
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return err
	}
	asked := make(map[string]bool)
	for _, item := range doc.Paths.Map() {
		for id, op := range item.Operations() {
			if op.OperationID == "IDService_Next" {
				op.RequestBody.Value.Required = false // for one ID
			}
			if op.RequestBody == nil {
				continue
			}
			for _, media := range op.RequestBody.Value.Content {
				if err := reach(doc, media.Schema, asked); err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
			}
		}
	}
	for name, schema := range doc.Components.Schemas {
		s := schema.Value
		if s.Type == nil || !s.Type.Is("object") || len(s.Properties) == 0 {
			continue
		}
		fields, hand := byHand[name]
		found, err := files.FindDescriptorByName(protoreflect.FullName("march.v1." + name))
		switch {
		case hand:
			s.Required = fields
		case asked[name]:
			for _, field := range mustHave[name] {
				if s.Properties[field] == nil {
					return fmt.Errorf("mustHave: %s has no field %s", name, field)
				}
			}
			s.Required = mustHave[name]
			if m, ok := found.(protoreflect.MessageDescriptor); ok { // answers have it, too
				always(s, m, false)
			}
		case err == nil:
			if m, ok := found.(protoreflect.MessageDescriptor); ok {
				always(s, m, true)
			}
		}
	}
	return nil
}

// reach notes the schemas that a schema consists of.
func reach(doc *openapi3.T, ref *openapi3.SchemaRef, seen map[string]bool) error {
	if ref == nil {
		return nil
	}
	if name := strings.TrimPrefix(ref.Ref, "#/components/schemas/"); ref.Ref != "" {
		if seen[name] {
			return nil
		}
		seen[name] = true
		if ref = doc.Components.Schemas[name]; ref == nil {
			return fmt.Errorf("there is no schema %s", name)
		}
	}
	s := ref.Value
	parts := append(slices.Clone(s.AllOf), s.Items, s.AdditionalProperties.Schema)
	for _, property := range s.Properties {
		parts = append(parts, property)
	}
	for _, part := range parts {
		if err := reach(doc, part, seen); err != nil {
			return err
		}
	}
	return nil
}

// always marks the fields that a message of answers always has, as required if it is of answers alone.
func always(s *openapi3.Schema, m protoreflect.MessageDescriptor, require bool) {
	if require {
		s.Required = nil
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		name := f.JSONName()
		property := s.Properties[name]
		if property == nil || f.ContainingOneof() != nil {
			continue
		}
		if require {
			s.Required = append(s.Required, name)
		}
		if f.Kind() != protoreflect.MessageKind || f.IsList() || f.IsMap() {
			continue
		}
		if property.Ref != "" {
			s.Properties[name] = openapi3.NewSchemaRef("", &openapi3.Schema{
				Type: &openapi3.Types{"object"}, AllOf: openapi3.SchemaRefs{property}, Nullable: true})
		} else {
			property.Value.Nullable = true
			if property.Value.Type == nil {
				property.Value.Type = &openapi3.Types{"object"}
			}
		}
	}
	slices.Sort(s.Required)
}

// secure says how callers prove who they are, where the server asks for it.
func secure(doc *openapi3.T) {
	doc.Components.SecuritySchemes = openapi3.SecuritySchemes{"token": {Value: openapi3.NewSecurityScheme().
		WithType("http").WithScheme("bearer").WithDescription(
		"A token of march token create, or a JWT of the server's OpenID Connect issuer. A certificate of a client's " +
			"own, in TLS, may take its place, and a server without a policy needs neither.")}}
	doc.Security = openapi3.SecurityRequirements{{}, {"token": {}}}
}

//go:embed examples.json
var examples []byte

// exemplify gives calls an example of a request, which each has that has a body, and of an answer. They must be of
// their schemas.
func exemplify(doc *openapi3.T) error {
	var all map[string]struct{ Request, Answer any }
	if err := json.Unmarshal(examples, &all); err != nil {
		return err
	}
	for _, item := range doc.Paths.Map() {
		for _, op := range item.Operations() {
			example := all[op.OperationID]
			if op.RequestBody != nil {
				if example.Request == nil {
					return fmt.Errorf("examples.json: %s has no request", op.OperationID)
				}
				op.RequestBody.Value.Content["application/json"].Example = example.Request
			}
			if example.Answer != nil {
				op.Responses.Status(200).Value.Content["application/json"].Example = example.Answer
			}
		}
	}
	return nil
}

package main

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/march-id/march/api"
)

// marshal returns a message as one line of JSON, with words for the values of enums:
// running for MIGRATION_STATE_RUNNING.
func marshal(m proto.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	return replaceEnums(compact(b), m, func(enum protoreflect.EnumDescriptor, name string) string {
		if value := enum.Values().ByName(protoreflect.Name(name)); value != nil {
			return api.WordOf(value)
		}
		return name
	}), nil
}

// unmarshal reads a message from JSON in which values of enums are words, names or
// numbers.
func unmarshal(b []byte, m proto.Message) error {
	return protojson.Unmarshal(replaceEnums(b, m, func(enum protoreflect.EnumDescriptor, word string) string {
		if value := api.Named(enum, word); value != nil {
			return string(value.Name())
		}
		return word
	}), m)
}

// compact removes the white space that protojson varies at random.
func compact(b []byte) []byte {
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return b
	}
	return out.Bytes()
}

// replaceEnums returns the JSON of a message with the texts of enum values replaced.
func replaceEnums(text []byte, m proto.Message, replace func(enum protoreflect.EnumDescriptor,
	text string) string) []byte {
	r := &replacer{text: text, tokens: json.NewDecoder(bytes.NewReader(text)), replace: replace}
	r.value(nil, m.ProtoReflect().Descriptor())
	return append(r.out, text[r.copied:]...)
}

// replacer reads the tokens of text, and copies text to out. It stops where text is
// not JSON.
type replacer struct {
	text    []byte
	tokens  *json.Decoder
	replace func(enum protoreflect.EnumDescriptor, text string) string
	out     []byte
	copied  int64 // how much of text is in out
}

// value reads a value of a field, or a message that is in no field. Both are nil if the
// message does not have the field.
func (r *replacer) value(field protoreflect.FieldDescriptor, message protoreflect.MessageDescriptor) {
	token, _ := r.tokens.Token()
	switch token := token.(type) {
	case json.Delim:
		for r.tokens.More() {
			if token == '[' {
				r.value(field, message)
				continue
			}
			name, _ := r.tokens.Token()
			r.value(inside(field, message, name))
		}
		_, _ = r.tokens.Token() // its end
	case string:
		if field == nil || field.Enum() == nil {
			return
		}
		end := r.tokens.InputOffset()
		start := end - int64(len(token)) - 2 // an enum's names and words need no escape
		if with := r.replace(field.Enum(), token); with != token {
			r.out = append(append(r.out, r.text[r.copied:start]...), '"')
			r.out = append(append(r.out, with...), '"')
			r.copied = end
		}
	}
}

// inside returns the field of a name in an object that is a message or a map.
func inside(field protoreflect.FieldDescriptor, message protoreflect.MessageDescriptor,
	name json.Token) (protoreflect.FieldDescriptor, protoreflect.MessageDescriptor) {
	text, _ := name.(string)
	switch {
	case field != nil && field.IsMap():
		field = field.MapValue()
	case message != nil:
		if field = message.Fields().ByJSONName(text); field == nil {
			field = message.Fields().ByTextName(text)
		}
	default:
		field = nil
	}
	if field == nil {
		return nil, nil
	}
	return field, field.Message()
}

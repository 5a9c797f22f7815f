package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"unicode"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"
)

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

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/march-id/march/allocator"
)

// KeyError says that a key, or its value, cannot be read.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return fmt.Sprintf("key %s: %v", printable(e.Key), e.Err) }

// Cut bounds the text of a problem: it may quote a value.
func Cut(text string) string {
	const most = 300 // bytes
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// printable returns a key unchanged, or quoted if a terminal would not show it right.
func printable(key string) string {
	if quoted := strconv.Quote(key); strings.Contains(key, " ") || quoted[1:len(quoted)-1] != key {
		return quoted
	}
	return key
}

// Unwrap returns the cause.
func (e *KeyError) Unwrap() error { return e.Err }

// Gone returns the error of a key that must exist and does not.
func Gone(key string) error { return &KeyError{Key: key, Err: errors.New("it is missing")} }

// NoEpoch returns the error of an epoch that names neither an epoch in force nor a halt.
func NoEpoch(key string) error { return &KeyError{Key: key, Err: errors.New("it is empty")} }

// Unreadable returns err as a KeyError: the one in its chain, or a new one of key.
func Unreadable(key string, err error) *KeyError {
	if named, ok := errors.AsType[*KeyError](err); ok {
		return named
	}
	return &KeyError{Key: key, Err: err}
}

// impossible returns the error of a value that is well formed but impossible: Internal.
func impossible(key, format string, args ...any) error {
	return &KeyError{Key: key, Err: allocator.Errorf(allocator.Internal, format, args...)}
}

// writer returns in words which version of the program wrote a value, if the value says so, as
// registrations do.
func writer(b []byte) string {
	var by struct {
		Build string `json:"build"`
	}
	if json.Unmarshal(b, &by) != nil || by.Build == "" {
		return ""
	}
	return ", written by version " + by.Build
}

// unknown returns the fields of an object, as written, that have no place in the struct that of
// points to, and are not one of also. Another spelling of a field's name does not count as the
// field. The error says that a field of the struct is null, which package json takes for zero.
func unknown(object []byte, of any, also ...string) (rest []byte, err error) {
	fields, err := fieldsOf(object)
	if err != nil {
		return nil, err
	}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(of).Elem()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			also = append(also, name)
		}
	}
	for _, f := range fields {
		switch is := slices.ContainsFunc(also, func(name string) bool { return strings.EqualFold(name, f.name) }); {
		case !is:
			rest = append(append(rest, ','), f.text...)
		case string(f.value) == "null":
			return nil, fmt.Errorf("field %s is null", f.name)
		}
	}
	return rest, nil
}

// same checks that two values are equal except for spaces, the order of fields and the escapes
// in texts. again is this program's form of the value.
func same(written, again []byte) error {
	if bytes.Equal(written, again) {
		return nil
	}
	switch again[0] {
	case '{':
		ours, theirs, err := bothFields(again, written)
		if err != nil {
			return err
		}
		for _, f := range ours {
			there := slices.IndexFunc(theirs, func(t field) bool { return t.name == f.name })
			if there < 0 {
				return fmt.Errorf("field %s is missing", f.name)
			}
			if err := same(theirs[there].value, f.value); err != nil {
				return fmt.Errorf("field %s: %w", f.name, err)
			}
			theirs = slices.Delete(theirs, there, there+1)
		}
		if len(theirs) > 0 {
			return fmt.Errorf("field %s is unknown, or not written as this program writes it", theirs[0].name)
		}
		return nil
	case '[':
		var ours, theirs []json.RawMessage
		if json.Unmarshal(again, &ours) == nil && json.Unmarshal(written, &theirs) == nil && len(ours) == len(theirs) {
			for i := range ours {
				if err := same(theirs[i], ours[i]); err != nil {
					return fmt.Errorf("element %d: %w", i, err)
				}
			}
			return nil
		}
	case '"':
		var ours, theirs *string
		read := json.Unmarshal(again, &ours) == nil && json.Unmarshal(written, &theirs) == nil && theirs != nil
		if read && *ours == *theirs {
			return nil
		}
	}
	return errors.New("not written as this program writes it")
}

// field is a field of an object: its name, its value, and both as written.
type field struct {
	name  string
	value json.RawMessage
	text  []byte
}

func bothFields(a, b []byte) (as, bs []field, err error) {
	if as, err = fieldsOf(a); err == nil {
		bs, err = fieldsOf(b)
	}
	return as, bs, err
}

// fieldsOf returns the fields of an object in their order. Its error says that the text is no
// object, or has a field twice.
func fieldsOf(object []byte) ([]field, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("not an object")
	}
	var all []field
	for d.More() {
		from := d.InputOffset()
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		f := field{name: fmt.Sprint(name)}
		if err := d.Decode(&f.value); err != nil {
			return nil, err
		}
		f.text = bytes.TrimLeft(object[from:d.InputOffset()], ", \t\r\n")
		if slices.ContainsFunc(all, func(other field) bool { return other.name == f.name }) {
			return nil, fmt.Errorf("field %s is there twice", f.name)
		}
		all = append(all, f)
	}
	return all, nil
}

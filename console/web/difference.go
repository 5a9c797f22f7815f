package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// difference is a field of a stored value that a change added, removed or replaced.
type difference struct {
	Field    string // its path, such as rooms.a.lower; empty for the value as a whole
	From, To string // empty for nothing
}

// differences compares two stored values (JSON) field by field, in the order of the fields' names.
// Of values that are no JSON objects it returns the whole.
func differences(from, to string) (list []difference) {
	was, is := make(map[string]string), make(map[string]string)
	if !flatten(from, was) || !flatten(to, is) {
		if from == to {
			return nil
		}
		return []difference{{From: from, To: to}}
	}
	names := maps.Clone(was)
	maps.Copy(names, is)
	for _, field := range slices.Sorted(maps.Keys(names)) {
		if was[field] != is[field] {
			list = append(list, difference{Field: field, From: was[field], To: is[field]})
		}
	}
	return list
}

// flatten adds the fields of an object, and reports whether text is one, or nothing. It leaves out
// the number of the value's format and its nonce, which say nothing to operators.
func flatten(text string, to map[string]string) bool {
	if text == "" {
		return true
	}
	var value map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil || decoder.More() {
		return false
	}
	delete(value, "format")
	delete(value, "nonce")
	for name, v := range value {
		flattenValue(name, v, to)
	}
	return true
}

func flattenValue(path string, value any, to map[string]string) {
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			flattenValue(path+"."+name, inner, to)
		}
	case []any:
		for i, inner := range v {
			name := strconv.Itoa(i + 1)
			if object, ok := inner.(map[string]any); ok && object["room"] != nil { // a list by room
				name = fmt.Sprint(object["room"])
				delete(object, "room")
			}
			flattenValue(path+"."+name, inner, to)
		}
	case string:
		to[path] = readable(v)
	case nil:
	default:
		to[path] = readable(fmt.Sprint(v))
	}
}

// readable groups the digits of a number. It returns other texts unchanged.
func readable(text string) string {
	if len(text) > 3 && text[0] != '0' && strings.Trim(text, "0123456789") == "" {
		return num(text)
	}
	return text
}

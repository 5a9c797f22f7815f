package format

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/march-id/march/allocator"
)

// SyntaxError says where a description of a format is wrong. Its Kind is Invalid.
type SyntaxError struct {
	Description string
	Offset      int    // in bytes from the start: where the wrong part or argument begins
	Problem     string // with what is allowed
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("format: at column %d: %s", e.Offset+1, e.Problem)
}

// Caret returns two lines, the description and a caret under the place.
func (e *SyntaxError) Caret() string {
	const width = 120 // more of a description does not help
	from := max(0, e.Offset-width/2)
	text := e.Description[from:min(len(e.Description), from+width)]
	clean := []byte(text)
	for i, c := range clean {
		if c < ' ' || c > '~' {
			clean[i] = '?' // a column for each byte
		}
	}
	return string(clean) + "\n" + strings.Repeat(" ", e.Offset-from) + "^"
}

func (e *SyntaxError) Unwrap() error { return allocator.Invalid }

// ValueError says that a value is outside of a format's domain. Its Kind is Invalid.
type ValueError struct {
	Field   string // id, period, time, worker or sequence
	Value   string
	Allowed string
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("%s: %s; allowed: %s", e.Field, e.Value, e.Allowed)
}

func (e *ValueError) Unwrap() error { return allocator.Invalid }

// TextError says that a text is none of a format's. Its Kind is Invalid.
type TextError struct {
	Text    string // up to 64 bytes of it
	Offset  int    // in bytes from the text's start
	Problem string // what is wrong from there on
	Allowed string
}

func (e *TextError) Error() string {
	return fmt.Sprintf("text: %q at column %d: %s; allowed: %s", e.Text, e.Offset+1, e.Problem, e.Allowed)
}

func (e *TextError) Unwrap() error { return allocator.Invalid }

// KeyError says that a format needs a key that it was not given. Its Kind is Refused: the
// caller's value or text is sound.
type KeyError struct {
	Name string
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("key: %s is not there, and the format needs it", e.Name)
}

func (e *KeyError) Unwrap() error { return allocator.Refused }

// character returns the character at a place of a text, in quotes.
func character(text string, at int) string {
	_, size := utf8.DecodeRuneInString(text[at:])
	return strconv.Quote(text[at : at+size])
}

// short bounds what an error repeats of its input.
func short(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}

func refuse(text string, offset int, allowed, problem string, args ...any) error {
	return &TextError{Text: short(text), Offset: offset, Problem: fmt.Sprintf(problem, args...), Allowed: allowed}
}

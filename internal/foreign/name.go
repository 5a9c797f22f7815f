// Package foreign turns the names of other systems' counters into names of tags, and back.
//
// A name of a tag has fewer letters than a key of Redis or of Leaf. A byte that a tag
// cannot have is written as _ and two hexadecimal digits, so order:id is the tag
// order_3aid. A _ before two hexadecimal digits is escaped, too; every other _ stays. A
// tag begins with a letter or a digit, so a name that does not gets 0_30 in front. No
// other tag begins with 0_30, because a 0 is never escaped.
//
// Key is the inverse of Tag: no two names have the same tag.
package foreign

import (
	"strings"

	"github.com/march-id/march/allocator"
)

// marker begins the tag of a name that does not begin with a letter or a digit.
const marker = "0_30"

const digits = "0123456789abcdef"

// Tag returns the tag of a foreign name. Its error is Invalid: the name is empty, or its
// tag would be longer than tags are.
func Tag(name string) (allocator.Tag, error) {
	if plain(name) {
		return checked(name)
	}
	var usual [64]byte // longer than any tag
	b := usual[:0]
	for i := range len(name) {
		c := name[i]
		if i == 0 && !alphanumeric(c) {
			b = append(b, marker...)
		}
		if escaped(name, i) {
			b = append(b, '_', digits[c>>4], digits[c&15])
		} else {
			b = append(b, c)
		}
	}
	tag, err := checked(string(b))
	if err != nil {
		return "", allocator.Errorf(allocator.Invalid, "key %.100q, as a tag: %w", name, err)
	}
	return tag, nil
}

// checked returns a tag of which each byte is one that tags have.
func checked(tag string) (allocator.Tag, error) {
	if tag == "" || len(tag) > allocator.MaxNameLength {
		return allocator.ParseTag(tag) // it has the error
	}
	return allocator.Tag(tag), nil
}

// Key returns the foreign name that a tag stands for: the tag itself, for a tag that has
// nothing escaped. It returns false for a tag that Tag returns for no name.
func Key(tag allocator.Tag) (string, bool) {
	rest := strings.TrimPrefix(string(tag), marker)
	var b strings.Builder
	for i := 0; i < len(rest); i++ {
		if rest[i] == '_' && i+2 < len(rest) && hexadecimal(rest[i+1]) && hexadecimal(rest[i+2]) {
			b.WriteByte(value(rest[i+1])<<4 | value(rest[i+2]))
			i += 2
		} else {
			b.WriteByte(rest[i])
		}
	}
	again, err := Tag(b.String())
	return b.String(), err == nil && again == tag
}

// plain reports whether a name is its own tag.
func plain(name string) bool {
	if name == "" || !alphanumeric(name[0]) {
		return name == ""
	}
	for i := range len(name) {
		if escaped(name, i) {
			return false
		}
	}
	return true
}

// escaped reports whether the byte at i is written in hexadecimal.
func escaped(name string, i int) bool {
	switch c := name[i]; {
	case alphanumeric(c), c == '.', c == '-':
		return false
	case c == '_':
		return i+2 < len(name) && hexadecimal(name[i+1]) && hexadecimal(name[i+2])
	}
	return true
}

func alphanumeric(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func hexadecimal(c byte) bool { return c >= 'a' && c <= 'f' || c >= '0' && c <= '9' }

func value(c byte) byte { return byte(strings.IndexByte(digits, c)) }

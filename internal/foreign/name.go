// Package foreign turns the names of other systems' counters into names of tags, and back.
//
// A name of a tag has fewer letters than a key of Redis or of Leaf. A byte that a tag
// cannot have is written as _ and two hexadecimal digits, so order:id is the tag
// order_3aid. A _ before two hexadecimal digits is escaped, too; every other _ stays. A
// tag begins with a letter or a digit, so a name that does not gets 0_30 in front. No
// other tag begins with 0_30, because a 0 is never escaped.
//
// A tag has up to 63 bytes. Of a name that would need more, the tag has the first 34 bytes, _30, and 26 letters and
// digits of the name's hash. So it begins as the tags of other names that begin as this one, and policies hold for it.
//
// Key is the inverse of Tag, but for such long names: no two names have the same tag, short of two with one hash of 128
// bits.
package foreign

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/march-id/march/allocator"
)

// marker begins the tag of a name that does not begin with a letter or a digit. What follows its 0 comes before the
// hash of a long name.
const marker = "0_30"

const digits = "0123456789abcdef"

// maxName is the longest foreign name, in bytes.
const maxName = 1024

// hash has 26 digits for 128 bits.
var hash = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// Tag returns the tag of a foreign name. Its error is Invalid: the name is empty, or has more than 1,024 bytes.
func Tag(name string) (allocator.Tag, error) {
	switch {
	case len(name) > maxName:
		return "", allocator.Errorf(allocator.Invalid, "key: %.16q... has %d bytes; allowed: up to %d", name, len(name),
			maxName)
	case plain(name) && len(name) <= allocator.MaxNameLength:
		if name == "" {
			return allocator.ParseTag(name) // it has the error
		}
		return allocator.Tag(name), nil
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
	if len(b) > allocator.MaxNameLength {
		sum := sha256.Sum256([]byte(name))
		b = append(b[:34], marker[1:]...)
		b = hash.AppendEncode(b, sum[:16])
	}
	return allocator.Tag(b), nil
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

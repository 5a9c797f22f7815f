package api

import (
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/march-id/march/allocator"
)

// Enum is an enum of march.v1.
type Enum interface {
	~int32
	protoreflect.Enum
}

// Word returns an enum's value as commands, pages and metrics show it: running for
// MIGRATION_STATE_RUNNING. A number that a newer server sent is shown as it is.
func Word(value protoreflect.Enum) string {
	if known := value.Descriptor().Values().ByNumber(value.Number()); known != nil {
		return WordOf(known)
	}
	return strconv.Itoa(int(value.Number()))
}

// WordOf returns the word of an enum's value.
func WordOf(value protoreflect.EnumValueDescriptor) string {
	enum, _ := value.Parent().(protoreflect.EnumDescriptor)
	return strings.ToLower(strings.TrimPrefix(string(value.Name()), prefix(enum)))
}

// prefix returns the common prefix of the names of an enum's values, as buf's lint
// demands it: MIGRATION_STATE_ for MigrationState.
func prefix(enum protoreflect.EnumDescriptor) string {
	var b strings.Builder
	for i, r := range string(enum.Name()) {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String() + "_"
}

// Named returns the value of an enum that a word names, or nil.
func Named(enum protoreflect.EnumDescriptor, word string) protoreflect.EnumValueDescriptor {
	if word != strings.ToLower(word) {
		return nil
	}
	return enum.Values().ByName(protoreflect.Name(prefix(enum) + strings.ToUpper(word)))
}

// FromWord returns the value that a word names, or the unspecified one.
func FromWord[E Enum](word string) E {
	var none E
	if value := Named(none.Descriptor(), word); value != nil {
		return E(value.Number())
	}
	return none
}

// ParseWord returns the value that a word names. Its error is Invalid, and begins with
// field.
func ParseWord[E Enum](field, word string) (E, error) {
	value := FromWord[E](word)
	if value == 0 {
		return value, notAllowed(field, strconv.Quote(word), value.Descriptor(), WordOf)
	}
	return value, nil
}

// NotAllowed returns the error of a message's field whose value its enum does not have. It
// is Invalid.
func NotAllowed(field string, value protoreflect.Enum) error {
	return notAllowed(field, strconv.Itoa(int(value.Number())), value.Descriptor(),
		func(v protoreflect.EnumValueDescriptor) string {
			return string(v.Name())
		})
}

func notAllowed(field, value string, enum protoreflect.EnumDescriptor,
	show func(protoreflect.EnumValueDescriptor) string) error {
	var allowed []string
	for i := range enum.Values().Len() {
		if v := enum.Values().Get(i); v.Number() != 0 {
			allowed = append(allowed, show(v))
		}
	}
	return allocator.Errorf(allocator.Invalid, "%s: %s; allowed: %s", field, value, strings.Join(allowed, ", "))
}

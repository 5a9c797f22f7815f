package allocator

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Kind classifies errors by what a caller can do about them. The set is closed:
// package api maps each Kind to a gRPC code and back. A Kind is itself an error, so
// that errors.Is(err, allocator.Exhausted) works at any depth.
type Kind uint8

const (
	// Internal is a defect in March, or a damaged value in etcd. It is the zero value, so that an error without
	// a Kind is never mistaken for one that a caller may act on.
	Internal Kind = iota
	// Invalid: the request can never succeed as it is. The message names the
	// field, its value and what is allowed.
	Invalid
	// NotFound: the tag, room or layout version does not exist.
	NotFound
	// Exists: the object to create exists already.
	Exists
	// Exhausted: the tag has reached its limit.
	Exhausted
	// Unavailable: the store cannot be reached and nothing is held. Retryable.
	Unavailable
	// NoRange: the room has no range in the current layout.
	NoRange
	// Refused: the state of the cluster forbids the request until an operator acts.
	// The message says what to do.
	Refused
	// WentBack: the store was seen to go back in time, or leasing is halted.
	WentBack
	// Conflict: another process changed the object first. Read it again, then
	// retry.
	Conflict
	// Denied: the caller is authenticated, but lacks the necessary role.
	Denied
	// Unauthenticated: no valid credentials.
	Unauthenticated
	// TooMany: a limit of the server was reached, such as that of connections,
	// streams or tags. The message names the limit and its number. Retryable.
	TooMany

	Kinds // how many there are
)

var kindNames = [Kinds]string{
	Internal: "internal", Invalid: "invalid", NotFound: "not_found", Exists: "exists",
	Exhausted: "exhausted", Unavailable: "unavailable", NoRange: "no_range", Refused: "refused",
	WentBack: "went_back", Conflict: "conflict", Denied: "denied", Unauthenticated: "unauthenticated",
	TooMany: "too_many",
}

// Error returns the Kind's name in snake_case, as it appears in gRPC's
// ErrorInfo and in metric labels.
func (k Kind) Error() string {
	if k < Kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind_%d", uint8(k))
}

// Error is an error with a Kind. The zero value is an Internal error without
// a message.
type Error struct {
	Kind Kind
	Msg  string // the field or object, its value, and what is allowed or what to do
	Err  error  // the cause, may be nil
}

// Errorf makes an Error. A %w verb's operand becomes its cause.
func Errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if _, several := err.(interface{ Unwrap() []error }); several {
		cause = err
	}
	return &Error{Kind: kind, Msg: err.Error(), Err: cause}
}

func (e *Error) Error() string {
	if e.Msg == "" {
		return e.Kind.Error()
	}
	return e.Msg
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is e's Kind.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// OverLimit returns the TooMany error of a server that has reached a limit. what names
// the objects that are too many; limit is the name of the limit's flag without --max-.
func OverLimit(what string, allowed int64, limit string) *Error {
	return Errorf(TooMany, "too many %s; allowed: %d (--max-%s)", what, allowed, limit)
}

// AwayError is the error of a tag without IDs in memory while the source does not
// answer. Its Kind is Unavailable.
type AwayError struct {
	Tag   Tag       // the tag without IDs
	Since time.Time // the start of the first attempt that failed
	Err   error     // the last failure, of any tag, because one lease is tried for all tags
}

func (e *AwayError) Error() string {
	return fmt.Sprintf("tag %s has no IDs left in memory, and no segment of any tag could be leased since %s; "+
		"the last try: %v; retry later",
		e.Tag, e.Since.UTC().Format(time.RFC3339), e.Err)
}

// Unwrap returns the last failure.
func (e *AwayError) Unwrap() error { return e.Err }

// Is reports whether target is Unavailable, so that an AwayError keeps its
// Kind whatever its cause.
func (e *AwayError) Is(target error) bool { return target == Unavailable }

// LimitError is an Exhausted error of a tag with a known limit.
type LimitError struct {
	Limit int64
	Err   error
}

func (e *LimitError) Error() string { return e.Err.Error() }

// Unwrap returns the error, which has the Kind.
func (e *LimitError) Unwrap() error { return e.Err }

// OrderedError is the Refused error of a tag with a strict order, of which callers may keep no IDs for later.
type OrderedError struct{ Tag Tag }

func (e *OrderedError) Error() string {
	return "tag " + string(e.Tag) + " has a strict order, so callers may keep none of its IDs for later; " +
		"take each one when it is needed"
}

func (e *OrderedError) Unwrap() error { return Refused }

// WaitError is a TooMany error of a caller that may try again after some time.
type WaitError struct {
	After time.Duration
	Err   error
}

func (e *WaitError) Error() string { return e.Err.Error() }

// Unwrap returns the error, which has the Kind.
func (e *WaitError) Unwrap() error { return e.Err }

// RightError is a Denied or Unauthenticated error of a caller that lacks a right.
type RightError struct {
	Right string // what the caller may not do, in words
	Err   error
}

func (e *RightError) Error() string { return e.Err.Error() }

// Unwrap returns the error, which has the Kind.
func (e *RightError) Unwrap() error { return e.Err }

// ConnectionText returns why gRPC could not make a connection, without gRPC's own words. Any other text is unchanged.
func ConnectionText(text string) string {
	_, quoted, is := strings.Cut(text, "connection error: desc = ")
	if !is {
		return text
	}
	if why, err := strconv.QuotedPrefix(quoted); err == nil {
		text, _ = strconv.Unquote(why)
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "transport: "), "Error while dialing: ")
	if strings.HasPrefix(text, "error reading server preface") {
		text += ": a server that asks for TLS ends a plain connection so"
	}
	return text
}

// KindOf returns the Kind of the first classified error in err's tree, from
// the outside in, or Internal. It is meaningless for a nil error.
func KindOf(err error) Kind {
	switch e := err.(type) {
	case *Error:
		return e.Kind
	case *AwayError:
		return Unavailable
	case *LayoutError:
		return Invalid
	case Kind:
		return e
	case interface{ Unwrap() error }:
		return KindOf(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if kind := KindOf(err); kind != Internal {
				return kind
			}
		}
	}
	return Internal
}

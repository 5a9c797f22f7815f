package client

import (
	"context"

	"github.com/march-id/march/allocator"
)

// Issuer issues IDs. A *Client does, and so does the Issuer of package clienttest, which asks no room: a service that
// takes an Issuer can be tested without one.
type Issuer interface {
	// Next returns an ID of a tag.
	Next(ctx context.Context, tag string) (int64, error)
	// NextN returns n IDs of a tag.
	NextN(ctx context.Context, tag string, n int64) (Runs, error)
	// NextText returns an ID of a tag as a text, and the ID.
	NextText(ctx context.Context, tag string) (text string, id int64, err error)
	// Lease returns up to n IDs of a tag, which the caller issues itself.
	Lease(ctx context.Context, tag string, n int64) (Segment, error)
}

var _ Issuer = (*Client)(nil)

// The types of IDs and errors, by which callers need no other package.
type (
	// Run is IDs of the same distance.
	Run = allocator.Run
	// Runs are IDs: for id := range runs.IDs().
	Runs = allocator.Runs
	// Segment is leased IDs.
	Segment = allocator.Segment
	// Layout is which room has which residues.
	Layout = allocator.Layout
	// Status is what a client holds of a tag.
	Status = allocator.Status
	// Kind is what a caller can do about an error; errors.Is(err, client.Exhausted) finds it at any depth.
	Kind = allocator.Kind
	// Error is an error with a Kind.
	Error = allocator.Error
	// AwayError is an Unavailable error that says since when no room has answered.
	AwayError = allocator.AwayError
	// LimitError is an Exhausted error with the limit of the tag.
	LimitError = allocator.LimitError
	// WaitError is a TooMany error that says when to try again.
	WaitError = allocator.WaitError
)

// The kinds of errors.
const (
	Internal        = allocator.Internal
	Invalid         = allocator.Invalid
	NotFound        = allocator.NotFound
	Exists          = allocator.Exists
	Exhausted       = allocator.Exhausted
	Unavailable     = allocator.Unavailable
	NoRange         = allocator.NoRange
	Refused         = allocator.Refused
	WentBack        = allocator.WentBack
	Conflict        = allocator.Conflict
	Denied          = allocator.Denied
	Unauthenticated = allocator.Unauthenticated
	TooMany         = allocator.TooMany
)

// KindOf returns an error's kind: Internal for an error that has none.
func KindOf(err error) Kind { return allocator.KindOf(err) }

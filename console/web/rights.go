package web

import (
	"context"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

// May reports whether the caller may make a call of the console, by its short name: for the
// page's tag if it has one, or for any tag.
func (f *frame) May(name string) bool {
	if tag := f.call.PathValue("tag"); tag != "" {
		return f.call.may(methodOf(name), tag)
	}
	return f.call.mayAny(name)
}

func methodOf(name string) string {
	return "/" + marchv1.ConsoleService_ServiceDesc.ServiceName + "/" + name
}

// mayAny reports whether the policy lets the caller make a call of the console, by its short
// name, for any tag or room.
func (c *call) mayAny(name string) bool {
	s := access.From(c.Context())
	return s == nil || s.May(methodOf(name))
}

// may reports whether the policy lets the caller make a call for a tag and rooms. Pages do
// not offer what it refuses; the console refuses it anyway.
func (c *call) may(method, tag string, rooms ...string) bool {
	return may(c.Context(), method, tag, rooms...)
}

func may(ctx context.Context, method, tag string, rooms ...string) bool {
	s := access.From(ctx)
	return s == nil || s.Allows(method, tag, rooms...)
}

// Package clienttest has an issuer of IDs for the unit tests of services. It asks no room and needs no network. Its IDs
// have the residues of a room's range, as those of a real room, and it fails when a test wants it to.
package clienttest

import (
	"context"
	"sync"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/client"
)

// Issuer issues IDs from memory: of each tag those of one room's range, from 1 on. All methods are safe for concurrent
// use.
type Issuer struct {
	layout allocator.Layout
	mu     struct {
		sync.Mutex
		tags  map[string]*tag
		known map[string]bool // the tags that exist; nil: all
		fault error           // of all tags
	}
}

var _ client.Issuer = (*Issuer)(nil)

// tag is what an Issuer knows of a tag.
type tag struct {
	next, limit, taken int64
	texts              *texts.Text
	fault              error
}

const room = "a"

// New returns an Issuer of the IDs with lower <= id mod boundary < upper. It panics if there are none. Every tag exists
// until Tags is called.
func New(boundary, lower, upper int64) *Issuer {
	i := &Issuer{layout: allocator.Layout{Version: 1, Boundary: boundary,
		Ranges: map[allocator.Room]allocator.Range{room: {Lower: lower, Upper: upper}}}}
	if err := i.layout.Validate(); err != nil {
		panic(err)
	}
	i.mu.tags = make(map[string]*tag)
	return i
}

// Tags makes these tags, and no others exist from then on.
func (i *Issuer) Tags(names ...string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.known == nil {
		i.mu.known = make(map[string]bool)
	}
	for _, name := range names {
		i.mu.known[name] = true
	}
}

// Limit has a tag end before an ID: its calls then fail with client.Exhausted.
func (i *Issuer) Limit(name string, limit int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tag(name).limit = limit
}

// Format gives a tag a format, which the texts of its IDs have: "prefix(ORD-) | radix62(11)", say. Its error is
// client.Invalid.
func (i *Issuer) Format(name, format string) error {
	t := texts.New(format, "", nil)
	if err := t.Usable(); err != nil {
		return allocator.Errorf(allocator.Invalid, "format: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tag(name).texts = t
	return nil
}

// Fail has all calls for a tag fail with an error until Fail is called with nil. A kind is an error, too:
// ids.Fail("order", client.Unavailable).
func (i *Issuer) Fail(name string, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.tag(name).fault = err
}

// FailAll is Fail of all tags.
func (i *Issuer) FailAll(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mu.fault = err
}

// Taken returns how many IDs of a tag were issued or leased.
func (i *Issuer) Taken(name string) int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	if t := i.mu.tags[name]; t != nil {
		return t.taken
	}
	return 0
}

// Next returns an ID.
func (i *Issuer) Next(ctx context.Context, tag string) (int64, error) {
	_, s, err := i.take(ctx, tag, 1, 1, false)
	return s.First, err
}

// NextN returns n IDs.
func (i *Issuer) NextN(ctx context.Context, tag string, n int64) (runs client.Runs, err error) {
	_, s, err := i.take(ctx, tag, n, n, false)
	for run := range s.Runs() {
		runs = append(runs, run)
	}
	return runs, err
}

// NextText returns an ID as a text. Its error is client.Refused for a tag without a format.
func (i *Issuer) NextText(ctx context.Context, tag string) (text string, id int64, err error) {
	t, s, err := i.take(ctx, tag, 1, 1, true)
	if err == nil {
		text, err = t.Of(s.First)
	}
	return text, s.First, err
}

// Lease returns up to n IDs, without an end.
func (i *Issuer) Lease(ctx context.Context, tag string, n int64) (client.Segment, error) {
	if n > api.MaxLease {
		return client.Segment{}, tooMany(n, api.MaxLease)
	}
	_, s, err := i.take(ctx, tag, 1, n, false)
	return s, err
}

// take takes n IDs, or at least as many as least, of a tag that must have a format if the caller wants texts.
func (i *Issuer) take(ctx context.Context, name string, least, n int64, asText bool) (*texts.Text, allocator.Segment,
	error) {
	none := allocator.Segment{}
	if _, err := allocator.ParseTag(name); err != nil {
		return nil, none, err
	}
	if n < 1 || n > allocator.LargestStep {
		return nil, none, tooMany(n, allocator.LargestStep)
	}
	if err := ctx.Err(); err != nil {
		return nil, none, allocator.Errorf(allocator.Unavailable, "tag %s: %w", name, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.mu.known != nil && !i.mu.known[name] {
		return nil, none, allocator.Errorf(allocator.NotFound, "there is no tag %s", name)
	}
	t := i.tag(name)
	for _, fault := range []error{t.fault, i.mu.fault} {
		if fault != nil {
			return nil, none, fault
		}
	}
	if asText {
		if err := t.texts.Usable(); err != nil {
			return nil, none, allocator.Errorf(allocator.KindOf(err), "tag %s: %w", name, err)
		}
	}
	s, err := i.layout.Segment(room, t.next, n, t.limit)
	if err == nil && s.Count < least {
		err = allocator.Errorf(allocator.Exhausted, "tag %s: %d IDs are left below the limit %d", name, s.Count,
			t.limit)
	}
	if err != nil {
		return nil, none, &allocator.LimitError{Limit: t.limit, Err: err}
	}
	t.next, t.taken = s.Last()+1, t.taken+s.Count
	return t.texts, s, nil
}

func tooMany(n, most int64) error {
	return allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, most)
}

// tag returns what is known of a tag, which need not exist. The lock is held.
func (i *Issuer) tag(name string) *tag {
	t := i.mu.tags[name]
	if t == nil {
		t = &tag{next: 1, limit: allocator.MaxID}
		i.mu.tags[name] = t
	}
	return t
}

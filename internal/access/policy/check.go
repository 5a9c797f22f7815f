package policy

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/march-id/march/allocator"
)

// Request is what a caller wants to do.
type Request struct {
	Call *Call
	// Tag is the tag that the request names; empty for none.
	Tag string
	// Room is the room of the server that is asked; empty for a console.
	Room string
	// Rooms are further rooms that the request names. If it names none, a call that concerns
	// the rooms it names concerns all of them.
	Rooms []string
	// IDs is how many IDs it takes.
	IDs int64
}

// Caller is what a subject may do under a policy. Its methods are safe for concurrent use.
type Caller struct {
	names  []string
	rights [][]right // by a call's index, in the policy's order
}

// right is a grant as one subject has it.
type right struct {
	*grant
	used *usage // nil without quotas
}

// Rights returns what a subject with these names may do. The first name is the subject's own,
// under which quotas count. No names mean an anonymous caller.
func (p *Policy) Rights(usages *Usages, names ...string) *Caller {
	c := &Caller{names: names, rights: make([][]right, len(table))}
	for k, g := range p.grants {
		if !g.grants(names) {
			continue
		}
		r := right{grant: g}
		if g.bounded {
			r.used = usages.of(usageKey{k, c.Name()}, g.quotas)
		}
		for call, allowed := range g.calls {
			if allowed {
				c.rights[call] = append(c.rights[call], r)
			}
		}
	}
	return c
}

// grants reports whether a grant is for a subject with these names.
func (g *grant) grants(names []string) bool {
	if len(names) == 0 {
		return g.subjects.exact[Anonymous]
	}
	for _, name := range names {
		if g.subjects.Match(name) {
			return true
		}
	}
	return false
}

// Name returns the subject's name.
func (c *Caller) Name() string {
	if len(c.names) == 0 {
		return Anonymous
	}
	return c.names[0]
}

// Check returns nil if the caller may do what it wants, and counts it against the quotas of
// the first grant that allows it. Its errors are Denied, Unauthenticated or TooMany. It
// allocates nothing if it allows the request.
func (c *Caller) Check(now time.Time, r Request) error {
	if r.Call != nil && r.Call.Open() {
		return nil
	}
	found := c.find(r)
	if found == nil {
		return c.refuse(r)
	}
	if found.used == nil {
		return nil
	}
	return found.used.take(now, c, r)
}

// TagIDs is how many IDs of a tag a request takes.
type TagIDs struct {
	Tag string
	IDs int64
}

// CheckMany is Check for a request that takes IDs of several tags. All of them, each by the
// first grant that allows it, or none are counted against quotas. With an error it returns
// the place of the tag that is refused.
func (c *Caller) CheckMany(now time.Time, r Request, tags []TagIDs) (refused int, err error) {
	of := make([]*right, len(tags))
	for i, t := range tags {
		r.Tag, r.IDs = t.Tag, t.IDs
		if of[i] = c.find(r); of[i] == nil {
			return i, c.refuse(r)
		}
	}
	sums := make(map[*usage]int64)
	for i, t := range tags {
		used := of[i].used
		if used == nil {
			continue
		}
		r.Tag, r.IDs = t.Tag, t.IDs
		sums[used] += t.IDs
		if err := used.may(now, c, r, sums[used]); err != nil {
			return i, err
		}
	}
	for i, t := range tags {
		if of[i].used != nil {
			of[i].used.charge(now, t)
		}
	}
	return 0, nil
}

// streamWait is when to ask for a stream again: one that is open may end at any time.
const streamWait = time.Second

// Stream counts a stream that the caller opens, until end is called.
func (c *Caller) Stream(r Request) (end func(), err error) {
	found := c.find(r)
	if found == nil || found.used == nil || found.quotas.Streams == 0 {
		return func() {}, nil
	}
	open := &found.used.streams
	if n := open.Add(1); n > found.quotas.Streams {
		open.Add(-1)
		return nil, &allocator.WaitError{After: streamWait, Err: allocator.Errorf(allocator.TooMany,
			"subject %s has %d open streams; allowed by its quota streams: %d", c.Name(), n-1, found.quotas.Streams)}
	}
	return func() { open.Add(-1) }, nil
}

// Holder returns how many workers the caller may hold for a request, by the grant that allows it.
func (c *Caller) Holder(r Request) allocator.Holder {
	h := allocator.Holder{Name: "subject " + c.Name(), Share: allocator.DefaultShare}
	if found := c.find(r); found != nil {
		h.Most, h.Share = found.quotas.Workers, cmp.Or(found.quotas.WorkerShare, h.Share)
	}
	return h
}

// May reports whether some tag and room exists for which the caller may make a call.
func (c *Caller) May(call *Call) bool {
	return call != nil && (call.Open() || len(c.rights[call.index]) > 0)
}

// Allows reports whether the caller has the right to a request. It asks no quota.
func (c *Caller) Allows(r Request) bool {
	return r.Call != nil && (r.Call.Open() || c.find(r) != nil)
}

// Right returns nil if the caller has the right to a request, and otherwise the error of Check.
// It asks no quota.
func (c *Caller) Right(r Request) error {
	if c.Allows(r) {
		return nil
	}
	return c.refuse(r)
}

// find returns the first right that covers a request, or nil.
func (c *Caller) find(r Request) *right {
	if r.Call == nil {
		return nil
	}
	rights := c.rights[r.Call.index]
	for k := range rights {
		if rights[k].covers(&r) {
			return &rights[k]
		}
	}
	return nil
}

// covers reports whether a grant covers the tag and the rooms of a request for one of its
// calls.
func (g *grant) covers(r *Request) bool {
	return g.coversTag(r) && g.coversRooms(r)
}

func (g *grant) coversTag(r *Request) bool {
	switch r.Call.tags {
	case named:
		return g.tags.Match(r.Tag)
	case all:
		return g.tags.all
	}
	return true
}

func (g *grant) coversRooms(r *Request) bool {
	if g.rooms.all {
		return true
	}
	if r.Room != "" && !g.rooms.Match(r.Room) || r.Call.rooms == all {
		return false
	}
	if r.Call.rooms == named {
		for _, room := range r.Rooms {
			if !g.rooms.Match(room) {
				return false
			}
		}
		return len(r.Rooms) > 0
	}
	return true
}

// refuse returns the error of a request that no grant covers.
func (c *Caller) refuse(r Request) error {
	if r.Call == nil {
		return allocator.Errorf(allocator.Denied, "the policy has no rule for this call, so it is refused")
	}
	right := wanted(r)
	if len(c.names) == 0 {
		return &allocator.RightError{Right: right, Err: allocator.Errorf(allocator.Unauthenticated,
			"no identity was given, and an anonymous caller may not %s; give a client certificate or a token", right)}
	}
	needs, _, _ := r.Call.Needs()
	return &allocator.RightError{Right: right, Err: allocator.Errorf(allocator.Denied,
		"subject %s may not %s; the role %s, or one of the policy's own, allows it", c.Name(), right, needs)}
}

// wanted names the right that a request needs.
func wanted(r Request) string {
	var b strings.Builder
	b.WriteString("call " + r.Call.Name())
	switch r.Call.tags {
	case named:
		fmt.Fprintf(&b, " for tag %.64q", r.Tag)
	case all:
		b.WriteString(" for all tags")
	}
	switch {
	case r.Call.rooms == all, r.Call.rooms == named && len(r.Rooms) == 0:
		b.WriteString(" in all rooms")
	case r.Call.rooms == named:
		fmt.Fprintf(&b, " in %.300q", r.Rooms)
	case r.Room != "":
		b.WriteString(" in room " + r.Room)
	}
	return b.String()
}

// Explain writes whether a subject with these names may make a call for a tag in a room, and
// for each grant of the policy why it does, or does not, allow it.
func (p *Policy) Explain(call *Call, tag, room string, names ...string) (text string, allowed bool) {
	r := Request{Call: call, Tag: tag, Room: room}
	if room != "" {
		r.Rooms = []string{room}
	}
	var b strings.Builder
	caller := p.Rights(&Usages{}, names...)
	err := caller.Check(time.Unix(0, 0), r)
	if err == nil {
		fmt.Fprintf(&b, "allowed: %s may %s\n", caller.Name(), wanted(r))
	} else {
		fmt.Fprintf(&b, "refused: %s\n", err)
	}
	if call.Open() {
		b.WriteString("the call needs no identity\n")
		return b.String(), true
	}
	for _, g := range p.grants {
		fmt.Fprintf(&b, "grant in line %d: %s\n", g.line, g.verdict(&r, names))
	}
	if len(p.grants) == 0 {
		b.WriteString("the policy has no grants\n")
	}
	return b.String(), err == nil
}

// verdict says whether a grant covers a request of a subject, and if not, why.
func (g *grant) verdict(r *Request, names []string) string {
	switch {
	case !g.grants(names):
		return "is for other subjects: " + strings.Join(g.subjects.texts, ", ")
	case !g.calls[r.Call.index]:
		return "has no role with this call: " + strings.Join(g.roles, ", ")
	case !g.coversTag(r) && r.Call.tags == all:
		return "is not for all tags, which the call concerns: " + strings.Join(g.tags.texts, ", ")
	case !g.coversTag(r):
		return "is for other tags: " + strings.Join(g.tags.texts, ", ")
	case !g.coversRooms(r) && (r.Call.rooms == all || r.Room == ""):
		return "is not for all rooms, which the call concerns: " + strings.Join(g.rooms.texts, ", ")
	case !g.coversRooms(r):
		return "is for other rooms: " + strings.Join(g.rooms.texts, ", ")
	}
	return "allows it" + g.quotas.text()
}

func (q Quotas) text() string {
	var parts []string
	for _, of := range q.all() {
		if *of.to > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", of.name, *of.to))
		}
	}
	if parts == nil {
		return ""
	}
	return ", with quotas: " + strings.Join(parts, ", ")
}

package policy

import (
	"fmt"
	"strings"
	"time"
)

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
	for _, of := range []struct {
		name string
		most int64
	}{
		{"ids_per_second", q.IDsPerSecond}, {"tag_ids_per_second", q.TagIDsPerSecond}, {"ids_per_lease", q.IDsPerLease},
		{"tags", q.Tags}, {"streams", q.Streams}, {"workers", q.Workers}, {"worker_share", q.WorkerShare},
	} {
		if of.most > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", of.name, of.most))
		}
	}
	if parts == nil {
		return ""
	}
	return ", with quotas: " + strings.Join(parts, ", ")
}

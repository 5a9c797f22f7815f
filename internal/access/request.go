package access

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access/policy"
)

// checkMessage returns nil if a subject may make a call with this message.
func (g *Gate) checkMessage(ctx context.Context, s *Subject, call *policy.Call, message any) error {
	if many, ok := message.(*marchv1.NextManyRequest); ok {
		return g.checkMany(ctx, s, call, many)
	}
	return g.Check(ctx, s, request(call, message))
}

// checkMany checks each tag of a call. A caller that has the right for no tag learns that
// first; then the message must be in order, which bounds the work of the rest.
func (g *Gate) checkMany(ctx context.Context, s *Subject, call *policy.Call, r *marchv1.NextManyRequest) error {
	if g == nil {
		return nil
	}
	if !s.caller.May(call) {
		return g.Check(ctx, s, policy.Request{Call: call, Tag: first(r.GetTags()).GetTag()})
	}
	if err := api.CheckMany(r); err != nil {
		return err
	}
	tags := make([]policy.TagIDs, len(r.GetTags()))
	for i, t := range r.GetTags() {
		tags[i] = policy.TagIDs{Tag: t.GetTag(), IDs: t.GetCount()}
	}
	refused, err := s.caller.CheckMany(time.Now(), policy.Request{Call: call, Room: g.cfg.Room}, tags)
	if err != nil {
		err = api.InMany(refused, tags[refused].Tag, err)
		g.refused(ctx, s.Name(), call, tags[refused].Tag, err)
	}
	return err
}

// first returns the first tag, or nil.
func first(tags []*marchv1.TagCount) *marchv1.TagCount {
	if len(tags) == 0 {
		return nil
	}
	return tags[0]
}

// request returns what a message asks for.
func request(call *policy.Call, message any) policy.Request {
	r := policy.Request{Call: call}
	switch m := message.(type) {
	case *marchv1.NextRequest:
		r.Tag, r.IDs = m.GetTag(), 1
	case *marchv1.NextBatchRequest:
		r.Tag, r.IDs = m.GetTag(), max(m.GetCount(), 1)
	case *marchv1.LeaseRequest:
		r.Tag, r.IDs = m.GetTag(), max(m.GetCount(), 1)
	case *marchv1.SkipTagRequest:
		r.Tag, r.Rooms = m.GetName(), m.GetRooms()
	case *marchv1.ForgetInstanceRequest:
		r.Rooms = one(m.GetRoom())
	case *marchv1.ConfirmInstanceRequest:
		r.Rooms = one(m.GetRoom())
	case interface{ GetTag() string }: // of ParseText, Decode and GetChain
		r.Tag = m.GetTag()
	case interface{ GetTag() *marchv1.Tag }: // of CreateTag and UpdateTag
		r.Tag = m.GetTag().GetName()
	case interface{ GetName() string }: // of GetTag, DeleteTag and PrescaleTag
		r.Tag = m.GetName()
	}
	return r
}

func one(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// addressOf returns where a call comes from, without the port.
func addressOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return tcp.IP.String()
	}
	return p.Addr.String()
}

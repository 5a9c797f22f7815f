package access

import (
	"context"

	"google.golang.org/grpc/peer"

	"github.com/march-id/march/internal/access/policy"

	marchv1 "github.com/march-id/march/api/march/v1"
)

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
	if p, ok := peer.FromContext(ctx); ok {
		return host(p.Addr)
	}
	return ""
}

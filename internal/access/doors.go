package access

import (
	"cmp"
	"context"
	"errors"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access/policy"
)

// Take returns nil if a context's subject may take n IDs of a tag; a context without one is that
// of the peer's certificate, or an anonymous caller's. The doors for other systems' clients ask it before each call.
func (g *Gate) Take(ctx context.Context, tag string, n int64) error {
	if g == nil { // before the request is made: a door asks for each ID
		return nil
	}
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.IDService_NextBatch_FullMethodName),
		Tag: tag, IDs: n})
}

// Knows reports whether Take knows a context's subject without asking an issuer of tokens.
func (g *Gate) Knows(ctx context.Context) bool {
	if g == nil {
		return true
	}
	p := of(ctx)
	return p == nil || p.subject.current(g.current.Load())
}

// Barred reports whether a context's caller has proven nothing, and the policy lets anonymous callers do nothing at a
// door.
func (g *Gate) Barred(ctx context.Context) bool {
	s, _, err := g.caller(ctx)
	return err != nil || len(s.Names) == 0 && !s.May(marchv1.IDService_NextBatch_FullMethodName) &&
		!s.May(marchv1.IDService_Decode_FullMethodName)
}

// MayCreate returns nil if a context's subject may create a tag at a door.
func (g *Gate) MayCreate(ctx context.Context, tag string) error {
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.ConsoleService_CreateTag_FullMethodName), Tag: tag})
}

// MayRead returns nil if a context's subject may read where a tag is: it may decode the tag's
// IDs, as issuers and viewers may.
func (g *Gate) MayRead(ctx context.Context, tag string) error {
	return g.door(ctx, policy.Request{Call: policy.CallOf(marchv1.IDService_Decode_FullMethodName), Tag: tag})
}

func (g *Gate) door(ctx context.Context, r policy.Request) error {
	if g == nil {
		return nil
	}
	s, _, err := g.identify(ctx, r.Call, r.Tag)
	if err != nil {
		return err
	}
	return g.Check(ctx, s, r)
}

// Holder returns a context's caller by the name under which its workers are counted, with its quotas for a call with
// this full name. A caller that proved nothing is its address.
func (g *Gate) Holder(ctx context.Context, method, tag string) allocator.Holder {
	h := allocator.Holder{Share: allocator.DefaultShare}
	if g != nil {
		s, _, err := g.caller(ctx)
		if err != nil { // the proof has ended since the call was checked
			s = g.current.Load().anonymous
		}
		h = s.caller.Holder(policy.Request{Call: policy.CallOf(method), Tag: tag, Room: g.cfg.Room})
		if len(s.Names) > 0 {
			return h
		}
	}
	h.Name = "address " + cmp.Or(network(addressOf(ctx)), "unknown")
	return h
}

// OverQuota counts a call that was refused because of what its caller holds. It passes over other errors.
func (g *Gate) OverQuota(err error) {
	if _, is := errors.AsType[*allocator.WaitError](err); is && g != nil {
		g.metrics.refused(allocator.KindOf(err))
	}
}

package access

import (
	"context"

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
	var s *Subject
	var err error
	if p := of(ctx); p != nil {
		s, err = g.fresh(ctx, p.subject, p.credentials)
	} else {
		s, err = g.Authenticate(ctx, Credentials{Certificate: certificateOf(ctx)})
	}
	if err != nil {
		g.refused(ctx, unknown, r.Call, r.Tag, err)
		return err
	}
	return g.Check(ctx, s, r)
}

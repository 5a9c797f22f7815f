package access

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
)

// lasting is a call that lasts, such as a stream. Each of its messages is checked when it comes.
// Between messages Run checks the call, so that one that is idle loses a right, too.
type lasting struct {
	call    *policy.Call
	tag     atomic.Pointer[string] // of the last request; nil while there is none
	end     context.CancelCauseFunc
	subject *Subject // as Run found it last; its own
	given   Credentials
}

// allLasting are the calls that last.
type allLasting struct {
	sync.Mutex
	open map[*lasting]struct{}
}

// last begins a call that lasts. Its context ends when the caller has lost the right to it, and
// then Lost has the reason. The call must be given to over.
func (g *Gate) last(ctx context.Context, s *Subject, c Credentials, call *policy.Call) (context.Context, *lasting) {
	ctx, end := context.WithCancelCause(ctx)
	l := &lasting{call: call, end: end, subject: s, given: c}
	g.lasting.Lock()
	defer g.lasting.Unlock()
	if g.lasting.open == nil {
		g.lasting.open = make(map[*lasting]struct{})
	}
	g.lasting.open[l] = struct{}{}
	return ctx, l
}

// over ends a call that lasted. It returns the call's error: where the caller has lost the
// right to the call, the reason, as that is why it ended.
func (g *Gate) over(ctx context.Context, l *lasting, err error) error {
	if why := Lost(ctx); why != nil && err != nil {
		err = why
	}
	l.end(nil)
	g.lasting.Lock()
	defer g.lasting.Unlock()
	delete(g.lasting.open, l)
	return err
}

// asks notes the tag of the last request.
func (l *lasting) asks(tag string) {
	if before := l.tag.Load(); before == nil || *before != tag {
		now := tag // else the parameter would be allocated with each message
		l.tag.Store(&now)
	}
}

// lost is why a context ended.
type lost struct{ error }

// Unwrap returns the reason.
func (l lost) Unwrap() error { return l.error }

// Lost returns why a caller has lost the right to a call that lasts, and nil while it has not.
// The call's context has ended then.
func Lost(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	if l, ok := errors.AsType[lost](context.Cause(ctx)); ok {
		return l.error
	}
	return nil
}

// endLost ends each call that its caller has lost the right to.
func (g *Gate) endLost(ctx context.Context) {
	g.lasting.Lock()
	all := slices.Collect(maps.Keys(g.lasting.open))
	g.lasting.Unlock()
	for _, l := range all {
		before := l.subject
		if before.current(g.current.Load()) {
			continue
		}
		name, err := unknown, g.stillMay(ctx, l)
		switch allocator.KindOf(err) {
		case allocator.Denied:
			name = before.Name()
		case allocator.Unauthenticated:
		default: // it still may
			continue
		}
		tag := ""
		if asked := l.tag.Load(); asked != nil {
			tag = *asked
		}
		g.refused(ctx, name, l.call, tag, err)
		l.end(lost{err})
	}
}

// stillMay returns nil if the caller of a call may go on with it.
func (g *Gate) stillMay(ctx context.Context, l *lasting) error {
	now, given := g.current.Load(), l.given
	given.known = true
	found, err := g.Authenticate(ctx, given)
	if allocator.KindOf(err) == allocator.Unavailable { // its issuer is away: what it has proven holds until it ends
		found, err = g.subject(now, l.subject.Identity), nil
		if found.expired(time.Now()) {
			err = allocator.Errorf(allocator.Unauthenticated, "the proof of %s expired at %s", found.Name(),
				found.Expires.UTC().Format(time.RFC3339))
		}
	}
	if err != nil {
		return err
	}
	l.subject = found
	tag := l.tag.Load()
	if tag == nil {
		if found.caller.May(l.call) {
			return nil
		}
		tag = new(string)
	}
	return found.caller.Right(policy.Request{Call: l.call, Tag: *tag, Room: g.cfg.Room})
}

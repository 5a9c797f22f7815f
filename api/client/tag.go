package client

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// Tag issues the IDs of one tag, from what rooms lease. All methods are safe for concurrent use.
//
// The first answer of a room shows the kind of the tag, and so of its leases: segments, whose IDs
// a chain issues, or for time-ordered IDs a worker's windows, in which a generator issues them.
type Tag struct {
	// The chain of a counter; empty for a time-ordered tag. It is the first field, and
	// not a pointer, so that TryNext costs no more than the chain's TryNext.
	chain allocator.Chain
	timed atomic.Pointer[timed]   // nil for a counter, and before the kind is known
	text  atomic.Pointer[tagText] // nil before a room's first answer

	ordered atomic.Int64 // until when a room issues each ID, in Unix ns; see orderedFor

	client  *Client
	name    allocator.Tag
	kept    bool                  // the program has a handle; guarded by client.mu
	last    atomic.Pointer[lease] // of the chain's last segment; nil before
	keeping keeping               // the keeper's alone
}

// tagText is what is known of a tag's texts: how they are written, nil where the tag has no
// format.
type tagText struct{ *texts.Text }

// newTag returns a tag of which nothing is known yet.
func newTag(c *Client, name allocator.Tag) (*Tag, error) {
	t := &Tag{client: c, name: name}
	cfg := allocator.ChainConfig{
		Tag: name, Source: source{t}, Refiller: c.refiller, Settings: c.opts.settings(),
		// Two instances' segments may come in any order.
		Unordered: true,
	}
	if c.opts.Strict {
		// With a gate the chain checks the segment's end at each ID. The gate
		// itself allows all: new layouts replace segments elsewhere.
		cfg.Gate = func(allocator.Segment) (allocator.Part, error) { return allocator.Part{}, nil }
	}
	return t, t.chain.Init(cfg)
}

// Name returns the tag's name.
func (t *Tag) Name() string { return string(t.name) }

// TryNext returns an ID if one is at hand, and false otherwise: then call Next. It is
// small enough for the compiler to inline it into the caller's loop. It always returns
// false under Options.Strict, and for time-ordered IDs; Next issues these without
// waiting. Of a tag with a strict order a room issues each ID.
func (t *Tag) TryNext() (id int64, ok bool) { return t.chain.TryNext() }

// Next returns an ID; see Client.Next.
func (t *Tag) Next(ctx context.Context) (id int64, err error) {
	if d := t.timed.Load(); d != nil {
		if id, ok := d.tryNext(); ok {
			return id, nil
		}
	} else if id, ok := t.chain.TryNext(); ok {
		return id, nil
	}
	return byKind(t, func() (int64, error) {
		return leased(t, func() (int64, error) { return t.chain.Next(ctx) }, func() (int64, error) {
			answer, err := t.nextOfRoom(ctx)
			return answer.GetId(), err
		})
	}, func(d *timed) (int64, error) { return d.next(ctx) })
}

// NextN appends n IDs, 1 to 2^40, to dst as runs and returns the longer slice. The IDs of
// a run are consecutive, unless it has a Stride. For time-ordered IDs n is at most the
// number that one worker has in a second. Runs that NextN appended before an error are
// lost, a gap. Its errors are Next's and Invalid.
func (t *Tag) NextN(ctx context.Context, n int64, dst []allocator.Run) (Runs, error) {
	return byKind(t, func() (Runs, error) {
		return leased(t, func() (Runs, error) { return t.chain.NextN(ctx, n, dst) },
			func() (Runs, error) { return t.nextNOfRoom(ctx, n, dst) })
	}, func(d *timed) (Runs, error) { return d.nextN(ctx, n, dst) })
}

// NextRun returns n consecutive IDs, 1 to 100,000: of what the client holds, or else of the
// room, which issues them in one call (NextBatch with contiguous). n is at most the width of
// the room's range, and at most half of the tag's max_step. If the rest of a block is too
// short, it is skipped, a gap. Its errors are Next's; Invalid (n); and Refused for a tag of
// kind time, which has no consecutive IDs, and if the room's release knows no contiguous.
func (t *Tag) NextRun(ctx context.Context, n int64) (run allocator.Run, err error) {
	if n < 1 || n > api.MaxBatch {
		return run, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, api.MaxBatch)
	}
	if t.timed.Load() == nil {
		if run, ok := t.chain.TryRun(n); ok {
			return run, nil
		}
	}
	_, err = ask(ctx, t.client.pool, "consecutive IDs of tag "+string(t.name), marchv1.IDServiceClient.NextBatch,
		&marchv1.NextBatchRequest{Tag: string(t.name), Count: n, Contiguous: true},
		func(answer *marchv1.NextBatchResponse) (err error) {
			run, err = runOf(n, answer)
			return err
		})
	return run, t.ofClient(err)
}

// runOf returns the run of a room's answer, which must be what was asked for. Rooms of
// earlier releases do not know the field contiguous, and may answer with several runs.
func runOf(n int64, answer *marchv1.NextBatchResponse) (allocator.Run, error) {
	runs := answer.GetRuns()
	if len(runs) > 1 {
		return allocator.Run{}, allocator.Errorf(allocator.Refused,
			"it answered with %d runs, because its release does not know contiguous; "+
				"upgrade the room (these IDs are a gap)", len(runs))
	}
	if len(runs) == 0 || runs[0].GetCount() != n {
		return allocator.Run{}, allocator.Errorf(allocator.Internal,
			"its answer makes no sense: %v; asked for: %d consecutive IDs", runs, n)
	}
	return allocator.Run{First: runs[0].GetFirst(), Count: n}, nil
}

// Warm returns when the tag holds IDs. For time-ordered IDs it takes one ID. Its
// errors are Next's.
func (t *Tag) Warm(ctx context.Context) error {
	_, err := byKind(t, func() (int64, error) {
		return leased(t, func() (int64, error) { return 0, t.chain.Warm(ctx) }, func() (int64, error) { return 0, nil })
	}, func(d *timed) (int64, error) {
		if d.wide {
			_, err := d.appendNext(ctx, nil, t.text.Load())
			return 0, err
		}
		return d.next(ctx)
	})
	return err
}

// Status returns how many IDs are held, how long they last, and more. For
// time-ordered IDs it has only the name, how long the worker's window lasts, and why
// there is none.
func (t *Tag) Status() allocator.Status {
	s := t.chain.Status()
	if d := t.timed.Load(); d != nil {
		s.Lasts, s.Failure = d.worker.status()
	}
	return s
}

// NextText returns an ID as a text, and the ID; see AppendNext.
func (t *Tag) NextText(ctx context.Context) (text string, id int64, err error) {
	var buffer [64]byte
	b, id, err := t.AppendNext(ctx, buffer[:0])
	return string(b), id, err
}

// AppendNext takes an ID, appends its text to dst, and returns both. The client writes the
// text itself, and allocates nothing where dst has room for it. Only of a tag whose key it
// does not have, it asks a room for each ID. Its errors are Next's, and Refused where the
// tag has no format or Options.OpaqueKeys has another key than the tag's. With an error it
// returns dst as it was. The id is 0 for a tag whose IDs have 80 bits: they exist only as
// texts.
func (t *Tag) AppendNext(ctx context.Context, dst []byte) (_ []byte, id int64, err error) {
	text, err := t.known(ctx)
	if err != nil {
		return dst, 0, err
	}
	if text == nil || text.Lacking() { // only a room can write the text
		answer, err := t.nextOfRoom(ctx)
		if err == nil && answer.GetText() == "" {
			t.setText("", "") // so that no more IDs are lost
			_, err = t.AppendText(dst, answer.GetId())
		}
		if err != nil {
			return dst, 0, t.ofClient(err)
		}
		return append(dst, answer.GetText()...), answer.GetId(), nil
	}
	if err := text.Usable(); err != nil { // before an ID is taken, which would be lost
		return dst, 0, t.ofText(err)
	}
	if text.Wide() {
		dst, err = t.appendWide(ctx, dst)
		return dst, 0, err
	}
	if id, err = t.Next(ctx); err != nil {
		return dst, 0, err
	}
	if dst, err = text.Append(dst, id); err != nil {
		return dst, 0, t.ofText(err)
	}
	return dst, id, nil
}

// appendWide is AppendNext of a tag whose IDs exist only as texts.
func (t *Tag) appendWide(ctx context.Context, dst []byte) ([]byte, error) {
	numbers := allocator.Errorf(allocator.Conflict,
		"tag %s was deleted and made anew, with IDs that are numbers: retry", t.name)
	return byKind(t, func() ([]byte, error) { return dst, cmp.Or(t.chain.Warm(ctx), error(numbers)) },
		func(d *timed) ([]byte, error) {
			if !d.wide {
				return dst, numbers
			}
			return d.appendNext(ctx, dst, t.text.Load())
		})
}

// AppendText appends the text of an ID of the tag, of NextN for example. It asks no room.
// Its errors are Invalid, for an ID that the format has no text of, and Refused, where the
// tag has no format, the client does not have the tag's key, or no ID was taken yet.
func (t *Tag) AppendText(dst []byte, id int64) ([]byte, error) {
	text := t.text.Load()
	if text == nil {
		return dst, allocator.Errorf(allocator.Refused,
			"tag %s: its format is not known yet; take an ID, or call Warm", t.name)
	}
	dst, err := text.Append(dst, id)
	if err != nil {
		return dst, t.ofText(err)
	}
	return dst, nil
}

// ParseText returns the ID of a text of the tag. It asks a room where the client does not
// know the format, or does not have the key. Its errors are Invalid, for a text that is
// none of the tag's, Refused, as AppendNext's, NotFound and Unavailable.
func (t *Tag) ParseText(ctx context.Context, text string) (id int64, err error) {
	if known := t.text.Load(); known != nil && !known.Lacking() {
		if id, err = known.ID(text); err != nil {
			return 0, t.ofText(err)
		}
		return id, nil
	}
	answer, err := ask(ctx, t.client.pool, "text of tag "+string(t.name), marchv1.IDServiceClient.ParseText,
		&marchv1.ParseTextRequest{Tag: string(t.name), Text: text}, nil)
	return answer.GetId(), t.ofClient(err)
}

// known returns how the tag's IDs are texts, after a room's first answer. Of a tag with a strict order that may be
// nil: only a room knows.
func (t *Tag) known(ctx context.Context) (*tagText, error) {
	text := t.text.Load()
	if text != nil {
		return text, nil
	}
	if err := t.Warm(ctx); err != nil {
		return nil, err
	}
	if text = t.text.Load(); text == nil && !t.isOrdered() {
		return nil, allocator.Errorf(allocator.Internal,
			"tag %s is warm, and no room has said whether it has a format", t.name)
	}
	return text, nil
}

// setText notes the format that an answer has. It never changes, unless the tag was deleted
// and made anew.
func (t *Tag) setText(format, keyCheck string) {
	if was := t.text.Load(); was == nil || !was.Is(format, keyCheck) {
		t.text.Store(&tagText{texts.New(format, keyCheck, t.client.opts.OpaqueKeys)})
	}
}

// nextOfRoom has a room issue an ID, with its text.
func (t *Tag) nextOfRoom(ctx context.Context) (*marchv1.NextResponse, error) {
	return ask(ctx, t.client.pool, "tag "+string(t.name), marchv1.IDServiceClient.Next,
		&marchv1.NextRequest{Tag: string(t.name)}, nil)
}

// nextNOfRoom has rooms issue n IDs, and appends their runs to dst.
func (t *Tag) nextNOfRoom(ctx context.Context, n int64, dst Runs) (Runs, error) {
	if n < 1 {
		return t.chain.NextN(ctx, n, dst) // which refuses it
	}
	for n > 0 {
		request := &marchv1.NextBatchRequest{Tag: string(t.name), Count: min(n, api.MaxBatch)}
		answer, err := ask(ctx, t.client.pool, "IDs of tag "+string(t.name), marchv1.IDServiceClient.NextBatch, request,
			nil)
		if err != nil {
			return dst, err
		}
		t.setText(answer.GetFormat(), answer.GetKeyCheck())
		dst = api.AppendRuns(dst, answer.GetRuns())
		n -= request.GetCount()
	}
	return dst, nil
}

// leased returns what chain does, or for a tag with a strict order, of which rooms lease nothing, what room returns.
func leased[T any](t *Tag, chain, room func() (T, error)) (T, error) {
	if !t.isOrdered() {
		got, err := chain()
		if !api.Ordered(err) {
			return got, err
		}
	}
	return room()
}

// orderedFor is for how long no lease of a tag is asked for after a room refused one because of the tag's strict order.
// A next life of the name may have none.
const orderedFor = time.Minute

// setOrdered notes that the tag has a strict order, and drops what is held of a life that had none.
func (t *Tag) setOrdered() {
	t.ordered.Store(time.Now().Add(orderedFor).UnixNano())
	t.chain.Limit(1)
}

func (t *Tag) isOrdered() bool {
	until := t.ordered.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// byKind returns what counter or windows returns, by the kind of the tag as it is known now. Where
// a room has answered meanwhile that the tag is of another kind, or has other settings, it calls
// the one of that kind.
func byKind[T any](t *Tag, counter func() (T, error), windows func(*timed) (T, error)) (got T, err error) {
	for {
		d := t.timed.Load()
		if d != nil {
			got, err = windows(d)
		} else {
			got, err = counter()
		}
		other := errors.Is(err, error(errEnded)) || d == nil && t.timed.Load() != nil
		if err == nil || !other {
			return got, t.ofClient(err)
		}
	}
}

// ofClient converts an error of a call into the client's error.
func (t *Tag) ofClient(err error) error {
	if err != nil && (errors.Is(err, error(allocator.ErrClosed)) || t.client.closed()) {
		return ErrClosed
	}
	return err
}

// ofText returns an error of a text with the tag's name.
func (t *Tag) ofText(err error) error {
	return allocator.Errorf(allocator.KindOf(err), "tag %s: %w", t.name, err)
}

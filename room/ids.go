package room

import (
	"cmp"
	"context"
	"errors"
	"io"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/operator"
)

// next returns the next ID of a tag and the format of its text, nil if it has none. It needs no
// closure, which would cost as much as the ID.
func (s *Server) next(ctx context.Context, name string) (int64, *texts.Text, error) {
	for {
		tag, err := s.tags.get(ctx, name)
		if err == nil {
			var id int64
			if id, err = nextOf(ctx, name, tag); err == nil {
				return id, tag.Text(), nil
			}
			err = s.again(name, tag, err)
		}
		if err != nil {
			return 0, nil, s.failed(ctx, name, err)
		}
	}
}

// nextOf returns the next ID of an issuer.
func nextOf(ctx context.Context, name string, tag issuer) (int64, error) {
	tag.ask()
	if err := usable(name, tag.Text()); err != nil {
		return 0, err
	}
	return tag.Next(ctx)
}

func (c *counter) Next(ctx context.Context) (int64, error) {
	if c.tenure == nil {
		return c.Chain.Next(ctx)
	}
	ctx, cancel, err := c.wait(ctx)
	defer cancel()
	if err != nil {
		return 0, err
	}
	id, err := c.Chain.Next(ctx)
	return id, c.ended(err)
}

func (c *counter) NextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error) {
	if c.tenure == nil {
		return c.Chain.NextN(ctx, n, dst)
	}
	ctx, cancel, err := c.wait(ctx)
	defer cancel()
	if err != nil {
		return dst, err
	}
	dst, err = c.Chain.NextN(ctx, n, dst)
	return dst, c.ended(err)
}

func (c *counter) NextRun(ctx context.Context, n int64) (run allocator.Run, skipped int64, err error) {
	if c.tenure == nil {
		return c.Chain.NextRun(ctx, n)
	}
	ctx, cancel, err := c.wait(ctx)
	defer cancel()
	if err != nil {
		return run, 0, err
	}
	run, skipped, err = c.Chain.NextRun(ctx, n)
	return run, skipped, c.ended(err)
}

// ended returns the error of a call, which is allocator.ErrClosed if the tenure has ended: the tag's next issuer then
// answers the call.
func (c *counter) ended(err error) error {
	if err != nil && c.tenure.Ended() {
		return allocator.ErrClosed
	}
	return err
}

// again returns the error of a call as it is, or nil if the tag was closed, so that the call
// is to be made again with the tag's next issuer.
func (s *Server) again(name string, tag issuer, err error) error {
	if !errors.Is(err, error(allocator.ErrClosed)) {
		return err
	}
	s.tags.forget(allocator.Tag(name), tag)
	return s.status.stopping()
}

// with is a request for IDs of a tag: it counts the request, and calls use with the tag's
// issuer, as reach does.
func (s *Server) with(ctx context.Context, name string, use func(issuer) error) error {
	return s.reach(ctx, name, func(tag issuer) error {
		tag.ask()
		return use(tag)
	})
}

// reach calls use with a tag's issuer, and again with the next one if that was closed meanwhile.
func (s *Server) reach(ctx context.Context, name string, use func(issuer) error) error {
	for {
		tag, err := s.tags.get(ctx, name)
		if err == nil {
			if err = use(tag); err == nil {
				return nil
			}
			err = s.again(name, tag, err)
		}
		if err != nil {
			return s.failed(ctx, name, err)
		}
	}
}

// Next implements IDService.
func (s *Server) Next(ctx context.Context, r *marchv1.NextRequest) (*marchv1.NextResponse, error) {
	id, text, err := s.next(ctx, r.GetTag())
	if err != nil {
		return nil, err
	}
	answer, err := issued(id, text)
	if err != nil {
		return nil, ofTag(r.GetTag(), err)
	}
	s.count(1)
	return answer, nil
}

// count counts IDs that a caller is about to get.
func (s *Server) count(n int64) {
	s.issued.Add(n)
	crash.Here(crash.BeforeReply)
}

// issued returns the answer with an ID. An ID that the format has no text of is a gap: the
// console that raised the limit so far knew no formats.
func issued(id int64, text *texts.Text) (*marchv1.NextResponse, error) {
	answer := &marchv1.NextResponse{Id: id}
	if text == nil {
		return answer, nil
	}
	var err error
	answer.Text, err = text.Of(id)
	return answer, err
}

// ofTag returns an error of a tag's texts with the tag's name.
func ofTag(tag string, err error) error {
	return allocator.Errorf(allocator.KindOf(err), "tag %s: %w", tag, err)
}

// NextBatch implements IDService.
func (s *Server) NextBatch(ctx context.Context, r *marchv1.NextBatchRequest) (*marchv1.NextBatchResponse, error) {
	if n := r.GetCount(); n < 1 || n > api.MaxBatch {
		return nil, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, api.MaxBatch)
	}
	runs, wide, text, err := s.nextN(ctx, r)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.NextBatchResponse{Runs: api.RunsToProto(runs), Texts: wide}
	answer.Format, answer.KeyCheck = text.Description()
	if r.GetTexts() && wide == nil {
		if answer.Texts, err = text.OfRuns(runs); err != nil {
			return nil, ofTag(r.GetTag(), err)
		}
	}
	s.count(r.GetCount())
	return answer, nil
}

// nextN takes a batch. Of a tag whose IDs exist only as texts it returns these, wide, and no
// runs.
func (s *Server) nextN(ctx context.Context, r *marchv1.NextBatchRequest) (runs []allocator.Run, wide []string,
	text *texts.Text, err error) {
	err = s.with(ctx, r.GetTag(), func(tag issuer) (err error) {
		// If the texts cannot be made, no IDs are issued.
		if text = tag.Text(); text != nil && r.GetTexts() {
			if err := usable(r.GetTag(), text); err != nil {
				return err
			}
			if n := r.GetCount(); n > api.MaxTexts {
				return allocator.Errorf(allocator.Invalid, "count: %d; allowed with texts: 1 to %d", n, api.MaxTexts)
			}
		}
		if r.GetContiguous() {
			run, err := s.takeRun(ctx, tag, r.GetCount())
			runs = []allocator.Run{run}
			return err
		}
		if timed, is := tag.(*TimeTag); is && timed.wide && r.GetTexts() {
			wide, err = timed.NextTexts(ctx, r.GetCount())
			return err
		}
		runs, err = tag.NextN(ctx, r.GetCount(), runs[:0])
		return err
	})
	return runs, wide, text, err
}

// manyAtOnce is how many tags one NextMany prepares at the same time.
const manyAtOnce = 8

// NextMany implements IDService. First it prepares every tag, so that what can be known to
// fail fails before an ID is taken. IDs that it took before a tag fails are a gap.
func (s *Server) NextMany(ctx context.Context, r *marchv1.NextManyRequest) (*marchv1.NextManyResponse, error) {
	if err := api.CheckMany(r); err != nil {
		return nil, err
	}
	tags := r.GetTags()
	if err := s.prepareMany(ctx, tags); err != nil {
		return nil, err
	}
	answer := &marchv1.NextManyResponse{Tags: make([]*marchv1.TagIDs, len(tags))}
	taken := int64(0)
	for i, t := range tags {
		runs, _, text, err := s.nextN(ctx, &marchv1.NextBatchRequest{Tag: t.GetTag(), Count: t.GetCount(), Texts: true})
		if err == nil {
			answer.Tags[i] = &marchv1.TagIDs{Tag: t.GetTag()}
			answer.Tags[i].Ids, err = issuedRuns(t.GetCount(), runs, text)
		}
		if err != nil {
			return nil, api.Skipped(api.InMany(i, t.GetTag(), err), taken)
		}
		taken += t.GetCount()
	}
	s.count(taken)
	return answer, nil
}

// issuedRuns returns n answers: the IDs of runs, each with its text.
func issuedRuns(n int64, runs []allocator.Run, text *texts.Text) ([]*marchv1.NextResponse, error) {
	all := make([]*marchv1.NextResponse, 0, n)
	for _, run := range runs {
		for k := range run.Count {
			answer, err := issued(run.First+k*max(run.Stride, 1), text)
			if err != nil {
				return nil, err
			}
			all = append(all, answer)
		}
	}
	return all, nil
}

// prepareMany puts tags into memory, and returns the error of the first that cannot issue
// its IDs: because it does not exist, its texts cannot be written, a worker has fewer IDs in
// a second, or its chain does not get so many.
func (s *Server) prepareMany(ctx context.Context, tags []*marchv1.TagCount) error {
	errs := make([]error, len(tags))
	var preparing errgroup.Group
	preparing.SetLimit(manyAtOnce)
	for i, t := range tags {
		if s.tags.memory.get(t.GetTag()) != nil { // most often; it costs no goroutine
			errs[i] = s.prepare(ctx, t)
			continue
		}
		preparing.Go(func() error {
			errs[i] = s.prepare(ctx, t)
			return nil
		})
	}
	_ = preparing.Wait() // it has no error: the first of errs is that of the first tag
	for i, err := range errs {
		if err != nil {
			return api.InMany(i, tags[i].GetTag(), err)
		}
	}
	return nil
}

// prepare prepares one tag. The taking counts the request.
func (s *Server) prepare(ctx context.Context, t *marchv1.TagCount) error {
	return s.reach(ctx, t.GetTag(), func(tag issuer) error {
		err := usable(t.GetTag(), tag.Text())
		if err == nil {
			err = tag.prepare(ctx, t.GetCount())
		}
		if err != nil {
			tag.ask() // it is not taken
		}
		return err
	})
}

// takeRun takes n consecutive IDs, and counts those that it skips.
func (s *Server) takeRun(ctx context.Context, tag issuer, n int64) (allocator.Run, error) {
	run, skipped, err := tag.NextRun(ctx, n)
	if s.metrics != nil {
		s.metrics.skipped.Add(float64(skipped))
	}
	return run, err
}

// Lease implements IDService.
func (s *Server) Lease(ctx context.Context, r *marchv1.LeaseRequest) (answer *marchv1.LeaseResponse, err error) {
	if n := r.GetCount(); n < 1 || n > api.MaxLease {
		return nil, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, api.MaxLease)
	}
	if err := s.with(ctx, r.GetTag(), func(tag issuer) (err error) {
		if answer, err = tag.lease(ctx, &s.tags, r); err == nil {
			answer.Format, answer.KeyCheck = tag.Text().Description()
		}
		return err
	}); err != nil {
		return nil, err
	}
	s.count(answer.GetSegment().GetCount())
	s.leased.Add(answer.GetSegment().GetCount())
	if part := s.served.Load(); part != nil {
		answer.Serves = api.PartToProto(*part)
	}
	return answer, nil
}

// Decode implements IDService.
func (s *Server) Decode(ctx context.Context, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	answer, err := operator.Decode(ctx, s.admin, r, s.tags.texts)
	return answer, s.forCaller(err)
}

// ParseText implements IDService.
func (s *Server) ParseText(ctx context.Context, r *marchv1.ParseTextRequest) (*marchv1.ParseTextResponse, error) {
	var text *texts.Text
	if tag := s.tags.memory.get(r.GetTag()); tag != nil {
		text = tag.Text()
	} else {
		tag, err := allocator.ParseTag(r.GetTag())
		if err != nil {
			return nil, err
		}
		stored, err := s.admin.Tag(ctx, tag)
		if err != nil {
			return nil, s.forCaller(err)
		}
		text = s.tags.texts.Of(stored.Format, stored.KeyCheck)
	}
	id, err := text.ID(r.GetText())
	if err != nil {
		return nil, ofTag(r.GetTag(), err)
	}
	return &marchv1.ParseTextResponse{Id: id}, nil
}

// Stream implements IDService. A drain ends it with UNAVAILABLE between two
// answers, so that the client goes to another instance. It ends an idle stream at
// once: otherwise every client that keeps a stream open would delay each stop for
// the whole drain. The loss of the caller's right ends an idle stream, too.
func (s *Server) Stream(stream marchv1.IDService_StreamServer) error {
	var turn turn
	ended := make(chan error, 1)
	s.streams.Go(func() { ended <- s.answer(stream, &turn) })
	select {
	case err := <-ended:
		return err
	case <-stream.Context().Done():
		if err := access.Lost(stream.Context()); err != nil && turn.end() {
			return err // this also ends Recv
		}
		return <-ended
	case <-s.status.stop:
	}
	if turn.end() {
		return s.status.stopping() // this also ends Recv
	}
	return <-ended
}

// answer answers the requests of a stream until it ends.
func (s *Server) answer(stream marchv1.IDService_StreamServer, turn *turn) error {
	request := &marchv1.NextRequest{} // reused for every message: no call below keeps it
	tag := ""
	var kept issuer // the tag's, to avoid a lookup for each message
	for {
		err := stream.RecvMsg(request)
		if !turn.begin() {
			return nil // Stream has returned
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if next := request.GetTag(); next != "" && next != tag {
			tag, kept = next, nil
		}
		var id int64
		var text *texts.Text
		if kept != nil {
			text = kept.Text()
			id, err = nextOf(stream.Context(), tag, kept)
			if err != nil && !errors.Is(err, error(allocator.ErrClosed)) {
				err = s.failed(stream.Context(), tag, err)
			}
		}
		if kept == nil || errors.Is(err, error(allocator.ErrClosed)) {
			id, text, err = s.next(stream.Context(), tag)
			kept = s.tags.memory.get(tag)
		}
		if err == nil {
			err = s.send(stream, tag, id, text)
		}
		if err != nil {
			return err
		}
		turn.rest()
		// Stream may have found an answer under way before rest.
		if err := cmp.Or(s.status.stopping(), access.Lost(stream.Context())); err != nil {
			return err
		}
	}
}

// send answers with an ID.
func (s *Server) send(stream marchv1.IDService_StreamServer, tag string, id int64, text *texts.Text) error {
	answer, err := issued(id, text)
	if err != nil {
		return ofTag(tag, err)
	}
	s.count(1)
	return stream.Send(answer)
}

// turn says whether a stream has an answer under way, or may be ended. One
// goroutine calls begin and rest, another calls end.
type turn struct{ state atomic.Int32 }

const (
	resting int32 = iota
	answering
	over
)

func (t *turn) rest() { t.state.Store(resting) }

// begin reports whether an answer may begin.
func (t *turn) begin() bool { return t.state.CompareAndSwap(resting, answering) }

// end reports whether no answer was under way. If so, no answer begins after it.
func (t *turn) end() bool { return t.state.CompareAndSwap(resting, over) }

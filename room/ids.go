package room

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/room/timetags"
)

// withTag is a request for IDs of a tag: it calls use with the tag's chain, or timed with a
// tag of time-ordered IDs, as reach does.
func (s *Server) withTag(ctx context.Context, tag string, use func(*tagChain) error,
	timed func(*timetags.Tag) error) error {
	return s.failed(ctx, tag, s.reach(ctx, tag, func(c *tagChain) error {
		c.asked.Add(1)
		return use(c)
	}, timed))
}

// reach calls use with a tag's chain, or timed with a tag of time-ordered IDs. A chain may
// be closed in between, because it was unused for long or its tag was deleted. Then reach
// calls use again, with a new one.
func (s *Server) reach(ctx context.Context, tag string, use func(*tagChain) error,
	timed func(*timetags.Tag) error) error {
	for {
		if t := s.times.Get(tag); t != nil {
			if err := timed(t); !errors.Is(err, error(timeid.ErrClosed)) {
				return err
			}
			if err := s.status.stopping(); err != nil {
				return err
			}
		}
		chain, err := s.chain(ctx, tag)
		if err != nil {
			return err
		}
		if chain == nil {
			continue // the tag has time-ordered IDs
		}
		if err = use(chain); !errors.Is(err, error(allocator.ErrClosed)) {
			return err
		}
		s.chains.remove(allocator.Tag(tag), chain)
		if err := s.status.stopping(); err != nil {
			return err
		}
	}
}

// next returns the next ID of a tag, and how it is a text. If the tag is in memory it needs
// no closure, which would cost as much as the ID. A cold tag takes the way of load.go.
func (s *Server) next(ctx context.Context, tag string) (id int64, text *texts.Text, err error) {
	if chain := s.chains.get(tag); chain != nil {
		chain.asked.Add(1)
		if err := usable(tag, chain.text); err != nil {
			return 0, nil, s.failed(ctx, tag, err)
		}
		if id, err = chain.Next(ctx); err == nil {
			return id, chain.text, nil
		} else if !errors.Is(err, error(allocator.ErrClosed)) {
			return id, chain.text, s.failed(ctx, tag, err)
		}
	}
	if t := s.times.Get(tag); t != nil {
		if err := usable(tag, t.Text()); err != nil {
			return 0, nil, s.failed(ctx, tag, err)
		}
		if id, err = t.Next(ctx); err == nil {
			return id, t.Text(), nil
		} else if !errors.Is(err, error(timeid.ErrClosed)) {
			return id, t.Text(), s.failed(ctx, tag, err)
		}
	}
	err = s.withTag(ctx, tag, func(c *tagChain) (err error) {
		text = c.text
		if err := usable(tag, text); err != nil {
			return err
		}
		id, err = c.Next(ctx)
		return err
	}, func(t *timetags.Tag) (err error) {
		text = t.Text()
		if err := usable(tag, text); err != nil {
			return err
		}
		id, err = t.Next(ctx)
		return err
	})
	return id, text, err
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
	s.issued.Add(1)
	crash.Here(crash.BeforeReply)
	return answer, nil
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
	s.issued.Add(r.GetCount())
	crash.Here(crash.BeforeReply)
	return answer, nil
}

// nextN takes a batch. Of a tag whose IDs exist only as texts it returns these, wide, and no
// runs.
func (s *Server) nextN(ctx context.Context, r *marchv1.NextBatchRequest) (runs []allocator.Run, wide []string,
	text *texts.Text, err error) {
	// If the texts cannot be made, no IDs are issued.
	take := func(of *texts.Text, ids func() error) error {
		if text = of; text != nil && r.GetTexts() {
			if err := usable(r.GetTag(), text); err != nil {
				return err
			}
			if n := r.GetCount(); n > api.MaxTexts {
				return allocator.Errorf(allocator.Invalid, "count: %d; allowed with texts: 1 to %d", n, api.MaxTexts)
			}
		}
		return ids()
	}
	err = s.withTag(ctx, r.GetTag(), func(c *tagChain) error {
		return take(c.text, func() (err error) {
			if r.GetContiguous() {
				run, err := s.takeRun(ctx, c, r.GetCount())
				runs = []allocator.Run{run}
				return err
			}
			// Runs taken before an error are lost: a gap.
			runs, err = c.NextN(ctx, r.GetCount(), runs[:0])
			return err
		})
	}, func(t *timetags.Tag) error {
		return take(t.Text(), func() (err error) {
			if r.GetContiguous() {
				return notInARow(t)
			}
			if t.Wide() && r.GetTexts() {
				wide, err = t.NextTexts(ctx, r.GetCount())
				return err
			}
			runs, err = t.NextN(ctx, r.GetCount(), runs[:0])
			return err
		})
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
	s.issued.Add(taken)
	crash.Here(crash.BeforeReply)
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
		if s.chains.get(t.GetTag()) != nil || s.times.Get(t.GetTag()) != nil { // most often; it costs no goroutine
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

// prepare prepares one tag.
func (s *Server) prepare(ctx context.Context, t *marchv1.TagCount) error {
	return s.failed(ctx, t.GetTag(), s.reach(ctx, t.GetTag(), func(c *tagChain) error {
		err := usable(t.GetTag(), c.text)
		if err == nil {
			err = c.WarmN(ctx, t.GetCount())
		}
		if err != nil {
			c.asked.Add(1) // otherwise the taking counts the request
		}
		return err
	}, func(of *timetags.Tag) error {
		if of.Wide() {
			return of.NoNumber()
		}
		if most := of.PerSecond(); t.GetCount() > most {
			return allocator.Errorf(allocator.Invalid,
				"count: %d; allowed: 1 to %d, what one worker has in a second", t.GetCount(), most)
		}
		return usable(t.GetTag(), of.Text())
	}))
}

// takeRun takes n consecutive IDs of a chain, and counts those that it skips.
func (s *Server) takeRun(ctx context.Context, c *tagChain, n int64) (allocator.Run, error) {
	run, skipped, err := c.NextRun(ctx, n)
	if s.metrics != nil {
		s.metrics.skipped.Add(float64(skipped))
	}
	return run, err
}

// notInARow refuses consecutive IDs of a tag.
func notInARow(t *timetags.Tag) error {
	return allocator.Errorf(allocator.Refused,
		"tag %s has time-ordered IDs, which are not consecutive; only a counter has consecutive IDs", t.Name())
}

// Lease implements IDService.
func (s *Server) Lease(ctx context.Context, r *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error) {
	if n := r.GetCount(); n < 1 || n > api.MaxLease {
		return nil, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to %d", n, api.MaxLease)
	}
	var seg allocator.Segment
	var timed *marchv1.TimeLease
	var ttl time.Duration
	var limit int64
	var text *texts.Text
	err := s.withTag(ctx, r.GetTag(), func(c *tagChain) (err error) {
		seg, err = c.Lease(ctx, r.GetCount())
		limit, text = c.Limited(), c.text
		ttl = s.ttlInPeriod(c.Tag(), seg, s.ttl(c.Chain, seg))
		return err
	}, func(t *timetags.Tag) (err error) {
		text = t.Text()
		timed, err = s.leaseTime(ctx, t, r.GetWindow())
		return err
	})
	if err != nil && allocator.KindOf(err) == allocator.Exhausted {
		err = &allocator.LimitError{Limit: limit, Err: err}
	}
	if err != nil {
		return nil, err
	}
	s.issued.Add(seg.Count)
	s.leased.Add(seg.Count)
	crash.Here(crash.BeforeReply)
	answer := &marchv1.LeaseResponse{Time: timed}
	answer.Format, answer.KeyCheck = text.Description()
	if timed == nil {
		answer.Segment, answer.Ttl, answer.Limit = api.SegmentToProto(seg), durationpb.New(ttl), limit
	}
	if part := s.served.Load(); part != nil {
		answer.Serves = api.PartToProto(*part)
	}
	return answer, nil
}

// Decode implements IDService.
func (s *Server) Decode(ctx context.Context, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	answer, err := operator.Decode(ctx, s.admin, r, s.texts)
	return answer, s.forCaller(err)
}

// ParseText implements IDService.
func (s *Server) ParseText(ctx context.Context, r *marchv1.ParseTextRequest) (*marchv1.ParseTextResponse, error) {
	var text *texts.Text
	if chain := s.chains.get(r.GetTag()); chain != nil {
		text = chain.text
	} else if t := s.times.Get(r.GetTag()); t != nil {
		text = t.Text()
	} else {
		tag, err := allocator.ParseTag(r.GetTag())
		if err != nil {
			return nil, err
		}
		stored, err := s.admin.Tag(ctx, tag)
		if err != nil {
			return nil, s.forCaller(err)
		}
		text = s.texts.Of(stored.Format, stored.KeyCheck)
	}
	id, err := text.ID(r.GetText())
	if err != nil {
		return nil, ofTag(r.GetTag(), err)
	}
	return &marchv1.ParseTextResponse{Id: id}, nil
}

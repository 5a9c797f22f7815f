package room

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/serve"
)

// The way of a tag from etcd into memory: Server.chain, load, loadOnce, makeChain,
// readTag, readChain, in the order of the calls.

// chain returns a tag's chain, and makes it if there is none. It returns nil for a tag of
// time-ordered IDs, after it has put that into memory. Its errors are Invalid (the name),
// NotFound, and those of a ledger's Source.
func (s *Server) chain(ctx context.Context, name string) (*tagChain, error) {
	if chain := s.chains.get(name); chain != nil {
		return chain, nil
	}
	return s.load(ctx, name)
}

// load waits for loadOnce. Callers that ask for one tag at the same time share one, which
// goes on when the first of them gives up.
func (s *Server) load(ctx context.Context, name string) (*tagChain, error) {
	tag, err := allocator.ParseTag(name)
	if err != nil {
		return nil, err
	}
	if err := s.chains.unknown.ask(ctx, tag); err != nil {
		return nil, err
	}
	type result struct {
		chain *tagChain
		err   error
	}
	// A caller may have an earlier deadline than the work that it shares, so the work has a
	// goroutine of its own. The channel has a place for the result of which no caller waits.
	loaded := make(chan result, 1)
	if !s.loads.begin(func() {
		made, err, _ := s.chains.loading.Do(name, func() (any, error) { return s.loadOnce(ctx, tag) })
		chain, _ := made.(*tagChain) // nil with an error
		loaded <- result{chain, err}
	}) {
		return nil, errStopping
	}
	select {
	case <-ctx.Done():
		return nil, allocator.Errorf(allocator.Unavailable,
			"tag %s was not read from etcd before the caller's deadline: %w", tag, context.Cause(ctx))
	case r := <-loaded:
		return r.chain, r.err
	}
}

// loads is the work that makes chains. It goes on when its callers give up, and ends with
// the server.
type loads struct {
	mu struct {
		sync.Mutex
		ended bool
	}
	work sync.WaitGroup
}

// begin runs work in a goroutine, and returns false once end was called.
func (l *loads) begin(work func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.mu.ended {
		l.work.Go(work)
	}
	return !l.mu.ended
}

// end waits for what has begun, and lets nothing more begin.
func (l *loads) end() {
	l.mu.Lock()
	l.mu.ended = true
	l.mu.Unlock()
	l.work.Wait()
}

// loadOnce makes the chain of a cold tag for all callers that wait for it. It goes on when
// ctx ends, for ledger.LongestWork at most and not after the server has ended. It notes a tag that does not exist.
func (s *Server) loadOnce(ctx context.Context, tag allocator.Tag) (*tagChain, error) {
	if chain := s.chains.get(string(tag)); chain != nil {
		return chain, nil
	}
	// The work keeps the first caller's span and address, and not its deadline: other callers
	// wait for it, too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.LongestWork)
	defer cancel()
	defer context.AfterFunc(s.background, cancel)()
	heard := s.chains.unknown.changes() // before the read: the tag may be created after it
	chain, err := s.makeChain(ctx, tag)
	s.noteTag(tag, err)
	switch away := s.ledger.Contact().Away; {
	case err == nil:
	case allocator.KindOf(err) == allocator.NotFound:
		s.chains.unknown.add(serve.Caller(ctx), tag, time.Now(), heard)
		return nil, ledger.UnknownTag(tag)
	case allocator.KindOf(err) == allocator.Unavailable && !away.IsZero():
		return nil, &allocator.AwayError{Tag: tag, Since: away, Err: err}
	}
	return chain, err
}

// makeChain reads a tag, makes its chain and puts the chain into memory. With
// Config.CreateTags it creates a tag that does not exist. It returns nil for a tag of
// time-ordered IDs.
func (s *Server) makeChain(ctx context.Context, tag allocator.Tag) (_ *tagChain, err error) {
	ctx, end := s.span(ctx, "room.load", tag)
	defer func() { end(err) }()
	leave, err := s.chains.enter(ctx, tag)
	if err != nil {
		return nil, err
	}
	defer leave()
	chain, err := s.readTag(ctx, tag)
	if s.cfg.CreateTags && err != nil && allocator.KindOf(err) == allocator.NotFound {
		switch timed, deletedErr := s.chains.deleted.has(ctx, s.admin, tag); {
		case deletedErr != nil:
			return nil, deletedErr
		case timed:
			return nil, err // as a counter its IDs would be quite others
		}
		// Two instances may create the tag at once: the second one reads what the first one made.
		_, createErr := s.admin.CreateTag(ctx, tag, record.DefaultTag(), "room "+string(s.cfg.Room))
		switch allocator.KindOf(createErr) {
		case allocator.Exists:
		case allocator.Refused:
			return nil, err // only an operator gives the name another life
		default:
			if createErr != nil {
				return nil, createErr
			}
		}
		chain, err = s.readTag(ctx, tag)
	}
	if err != nil || chain == nil {
		return nil, err
	}
	s.chains.put(tag, chain)
	// The tag's period may have ended since it was read, before the chain was there to turn.
	if its := s.chains.periods.of(tag); its != (period.Period{}) {
		chain.begin(its.At(s.instance.Now()))
	}
	return chain, nil
}

// readTag reads a tag of any kind. It makes the chain of a counter. It puts a tag of
// time-ordered IDs into memory, and returns nil.
func (s *Server) readTag(ctx context.Context, tag allocator.Tag) (*tagChain, error) {
	chain, err := s.readChain(ctx, tag)
	var timed *ledger.TimeTagError
	if !errors.As(err, &timed) {
		return chain, err
	}
	s.chains.unknown.found(tag)
	_, err = s.times.Load(ctx, tag, *timed.Settings.Time, s.textOf(tag, timed.Settings))
	return nil, err
}

// readChain reads a counter's settings, mark and floor (Instance.Source), and makes a
// chain of them. The chain's first lease then needs one transaction only. The caller holds
// one of the slots (chains.enter).
func (s *Server) readChain(ctx context.Context, tag allocator.Tag) (*tagChain, error) {
	source, settings, err := s.instance.Source(ctx, tag)
	if err != nil {
		return nil, err
	}
	chain := &tagChain{text: s.textOf(tag, settings)}
	chain.setSpace(s.spaceOf(settings))
	if settings.Period != (period.Period{}) {
		s.chains.periods.add(tag, settings.Period, s.instance.Now())
	}
	// The chain needs its source, and the source the chain, so the chain comes in two steps.
	metered := &meteredSource{Source: source, server: s, chain: chain}
	chain.Chain, err = allocator.NewChain(allocator.ChainConfig{Tag: tag, Source: metered, Refiller: s.refiller,
		Settings: settings.Chain(), First: s.firstLease(tag, settings.Chain()), Gate: s.gateOf(settings)})
	if err == nil {
		chain.Limit(settings.Limit)
	}
	return chain, err
}

// firstOf is how much of its last rate an instance that starts again leases at once. A crash loop uses up no more, and
// less each time.
const firstOf = 10 * time.Second

// firstLease returns how many IDs a chain's first lease asks for: some seconds of the rate before a restart.
func (s *Server) firstLease(tag allocator.Tag, settings allocator.Settings) int64 {
	step := min(s.instance.TakeStep(tag), settings.MaxStep)
	return int64(float64(step) * min(1, firstOf.Seconds()/settings.Reserve.Seconds()))
}

// textOf returns how a tag's IDs are texts, and warns where there are none.
func (s *Server) textOf(tag allocator.Tag, settings record.TagSettings) *texts.Text {
	text := s.texts.Of(settings.Format, settings.KeyCheck)
	if err := usable(string(tag), text); err != nil {
		s.lines.keyless.Log(time.Now(), s.log.Warn,
			"this instance issues no single IDs of a tag, as it cannot write their texts", "tag", tag, "error", err)
	}
	return text
}

// meteredSource is the source of a chain: the ledger's, with a span, a count and the tag's
// growth for each lease.
type meteredSource struct {
	allocator.Source
	server *Server
	chain  *tagChain
}

// Lease implements allocator.Source.
func (r *meteredSource) Lease(ctx context.Context, n int64) (allocator.Segment, error) {
	ctx, end := r.server.span(ctx, "room.refill", r.chain.Tag())
	seg, err := r.Source.Lease(ctx, n)
	end(err)
	r.server.noteTag(r.chain.Tag(), err)
	if err == nil {
		crash.Here(crash.BeforeUse)
		r.chain.growth.note(time.Now(), seg.Last())
	}
	if r.server.metrics != nil {
		r.server.metrics.refilled(err)
	}
	return seg, err
}

// loadAtOnce is how many tags are read at once, for callers and for a new layout
// together: so that a thousand cold tags do not overload an etcd that is slow or
// has just come back.
const loadAtOnce = 64

// enter waits until a tag may be read. The caller reads it and then calls leave.
// Its error is Unavailable.
func (c *chains) enter(ctx context.Context, tag allocator.Tag) (leave func(), err error) {
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots }, nil
	case <-ctx.Done():
		return nil, allocator.Errorf(allocator.Unavailable,
			"tag %s was not read: etcd is slow, and %d other tags are being read; try again", tag, loadAtOnce)
	}
}

// warm leases the first segments of the warm tags, then reports that the instance
// is ready.
func (s *Server) warm(ctx context.Context) {
	var warming sync.WaitGroup
	for _, tag := range s.cfg.WarmTags {
		warming.Go(func() { s.warmUntil(ctx, tag) })
	}
	warming.Wait()
	// Enter the epoch in force; a failure is reported below. The instance answers calls that need no lease anyway.
	entering, cancel := context.WithTimeout(ctx, s.ledger.Patience())
	defer cancel()
	_ = s.ledger.Check(entering)
	if ctx.Err() == nil {
		s.status.started()
		s.log.Info("ready", "grpc", s.cfg.GRPC.Addr().String(), "layout", s.layoutVersion())
		if err := s.reportHealth(); err != nil {
			s.log.Warn("the instance has started, but cannot issue IDs", "error", err)
		}
	}
}

// warmUntil warms a tag. While etcd does not answer it tries again.
func (s *Server) warmUntil(ctx context.Context, tag allocator.Tag) {
	for pause := 50 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		err := s.warmTag(ctx, tag)
		if err == nil || allocator.KindOf(err) != allocator.Unavailable {
			if err != nil {
				s.log.Error("tag not warmed", "tag", tag, "error", err)
			}
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (s *Server) warmTag(ctx context.Context, tag allocator.Tag) error {
	chain, err := s.chain(ctx, string(tag))
	if err != nil || chain == nil { // a tag of time-ordered IDs has its worker now
		return err
	}
	return chain.Warm(ctx)
}

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

// The way of a tag from etcd into memory, in the order of the calls.

// get returns a tag's issuer, from memory if it is there.
func (m *tags) get(ctx context.Context, name string) (issuer, error) {
	for {
		if tag := m.inMemory(name); tag != nil {
			return tag, nil
		}
		tag, err := m.load(ctx, name)
		if !errors.Is(err, error(allocator.ErrClosed)) {
			return tag, err
		}
		if err := m.status.stopping(); err != nil { // otherwise the tag was deleted just then
			return nil, err
		}
	}
}

// load waits for loadOnce. Callers that ask for one tag at the same time share one, which
// goes on when the first of them gives up. Its errors are Invalid (the name), NotFound, and those of a ledger's
// Source and of TimeTag.Warm.
func (m *tags) load(ctx context.Context, name string) (issuer, error) {
	tag, err := allocator.ParseTag(name)
	if err != nil {
		return nil, err
	}
	if err := m.unknown.ask(ctx, tag); err != nil {
		return nil, err
	}
	type result struct {
		tag issuer
		err error
	}
	// A caller may have an earlier deadline than the work that it shares, so the work has a
	// goroutine of its own. Buffered: the caller may have given up.
	loaded := make(chan result, 1)
	if !m.loads.begin(func() {
		made, err, _ := m.loading.Do(name, func() (any, error) { return m.loadOnce(ctx, tag) })
		tag, _ := made.(issuer) // nil with an error
		loaded <- result{tag, err}
	}) {
		return nil, errStopping
	}
	select {
	case <-ctx.Done():
		return nil, allocator.Errorf(allocator.Unavailable,
			"tag %s was not read from etcd before the caller's deadline: %w", tag, context.Cause(ctx))
	case r := <-loaded:
		return r.tag, r.err
	}
}

// loads is the work that makes issuers. It goes on when its callers give up, and ends with the server.
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

// loadOnce puts a cold tag into memory for all callers that wait for it. It goes on when
// ctx ends, for ledger.LongestWork at most and not after the server has ended. It notes a tag that does not exist.
func (m *tags) loadOnce(ctx context.Context, name allocator.Tag) (issuer, error) {
	if tag := m.inMemory(string(name)); tag != nil {
		return tag, nil
	}
	// The work keeps the first caller's span and address, and not its deadline: other callers
	// wait for it, too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.LongestWork)
	defer cancel()
	defer context.AfterFunc(m.background, cancel)()
	changes := m.unknown.changes() // before the read: the tag may be created after it
	tag, err := m.makeTag(ctx, name)
	m.damaged.note(name, err)
	switch away := m.ledger.Contact().Away; {
	case err == nil:
		return tag, nil
	case allocator.KindOf(err) == allocator.NotFound:
		m.unknown.add(serve.Caller(ctx), name, time.Now(), changes)
		return nil, ledger.UnknownTag(name)
	case allocator.KindOf(err) == allocator.Unavailable && !away.IsZero():
		return nil, &allocator.AwayError{Tag: name, Since: away, Err: err}
	}
	return nil, err
}

// makeTag reads a tag and puts it into memory. With Config.CreateTags it creates a tag that does not exist.
func (m *tags) makeTag(ctx context.Context, name allocator.Tag) (_ issuer, err error) {
	ctx, end := m.span(ctx, "room.load", name)
	defer func() { end(err) }()
	leave, err := m.enter(ctx, name)
	if err != nil {
		return nil, err
	}
	defer leave()
	tag, err := m.readTag(ctx, name)
	if !m.cfg.CreateTags || tag != nil || allocator.KindOf(err) != allocator.NotFound {
		return tag, err
	}
	switch timed, deletedErr := m.deleted.has(ctx, m.admin, name); {
	case deletedErr != nil:
		return nil, deletedErr
	case timed:
		return nil, err // as a counter its IDs would be quite others
	}
	// Two instances may create the tag at once: the second one reads what the first one made.
	_, createErr := m.admin.CreateTag(ctx, name, record.DefaultTag(), "room "+string(m.cfg.Room))
	switch allocator.KindOf(createErr) {
	case allocator.Exists:
	case allocator.Refused:
		return nil, err // only an operator gives the name another life
	default:
		if createErr != nil {
			return nil, createErr
		}
	}
	return m.readTag(ctx, name)
}

// readTag reads a tag of any kind and puts its issuer into memory. A time-ordered one stays there even if no worker
// is to be had for it: its next caller tries again. A tag that changed meanwhile is read again.
func (m *tags) readTag(ctx context.Context, name allocator.Tag) (issuer, error) {
	m.begin(name)
	tag, err := m.readIssuer(ctx, name)
	if current := m.end(name, tag); err != nil {
		return nil, err
	} else if !current {
		tag.Close()
		return m.readTag(ctx, name)
	}
	switch tag := tag.(type) {
	case *TimeTag:
		err = tag.Warm(ctx)
	case *counter:
		// The tag's period may have ended since it was read, before the chain was there to turn.
		if p := m.periods.of(name); p != (period.Period{}) {
			tag.begin(p.At(m.instance.Now()))
		}
	}
	return tag, err
}

// readIssuer reads a tag of any kind and makes its issuer.
func (m *tags) readIssuer(ctx context.Context, name allocator.Tag) (issuer, error) {
	chain, err := m.readChain(ctx, name)
	if timed, is := errors.AsType[*ledger.TimeTagError](err); is {
		return m.windows.Add(name, *timed.Settings.Time, m.textOf(name, timed.Settings)), nil
	}
	if err != nil {
		return nil, err // and no nil *counter in an issuer
	}
	return chain, nil
}

// readChain reads a counter's settings, mark and floor (Instance.Source), and makes a
// chain of them. The chain's first lease then needs one transaction only. The caller holds
// one of the slots (tags.enter).
func (m *tags) readChain(ctx context.Context, tag allocator.Tag) (*counter, error) {
	source, settings, err := m.instance.Source(ctx, tag)
	if err != nil {
		return nil, err
	}
	chain := &counter{text: m.textOf(tag, settings)}
	chain.setSpace(m.spaceOf(settings))
	if settings.Period != (period.Period{}) {
		m.periods.add(tag, settings.Period, m.instance.Now())
	}
	// The chain needs its source, and the source the chain, so the chain comes in two steps.
	metered := &meteredSource{Source: source, tags: m, chain: chain}
	chain.Chain, err = allocator.NewChain(allocator.ChainConfig{Tag: tag, Source: metered, Refiller: m.refiller,
		Settings: settings.Chain(), First: m.firstLease(tag, settings.Chain()), Gate: m.gateOf(settings)})
	if err == nil {
		chain.Limit(settings.Limit)
	}
	return chain, err
}

// firstOf is how much of its last rate an instance that starts again leases at once. A crash loop uses up no more, and
// less each time.
const firstOf = 10 * time.Second

// firstLease returns how many IDs a chain's first lease asks for: some seconds of the rate before a restart.
func (m *tags) firstLease(tag allocator.Tag, settings allocator.Settings) int64 {
	step := min(m.instance.TakeStep(tag), settings.MaxStep)
	return int64(float64(step) * min(1, firstOf.Seconds()/settings.Reserve.Seconds()))
}

// textOf returns how a tag's IDs are texts, and warns where there are none.
func (m *tags) textOf(tag allocator.Tag, settings record.TagSettings) *texts.Text {
	text := m.texts.Of(settings.Format, settings.KeyCheck)
	if err := usable(string(tag), text); err != nil {
		m.lines.keyless.Log(time.Now(), m.log.Warn,
			"this instance issues no single IDs of a tag, as it cannot write their texts", "tag", tag, "error", err)
	}
	return text
}

// meteredSource is the source of a chain: the ledger's, with a span, a count and the tag's
// growth for each lease.
type meteredSource struct {
	allocator.Source
	tags  *tags
	chain *counter
}

// Lease implements allocator.Source.
func (r *meteredSource) Lease(ctx context.Context, n int64) (allocator.Segment, error) {
	ctx, end := r.tags.span(ctx, "room.refill", r.chain.Tag())
	seg, err := r.Source.Lease(ctx, n)
	end(err)
	r.tags.damaged.note(r.chain.Tag(), err)
	if err == nil {
		crash.Here(crash.BeforeUse)
		r.chain.growth.note(time.Now(), seg.Last())
	}
	if r.tags.metrics != nil {
		r.tags.metrics.refilled(err)
	}
	return seg, err
}

// loadAtOnce is how many tags are read at once, for callers and for a new layout
// together: so that a thousand cold tags do not overload an etcd that is slow or
// has just come back.
const loadAtOnce = 64

// enter waits until a tag may be read. The caller reads it and then calls leave.
// Its error is Unavailable.
func (m *tags) enter(ctx context.Context, tag allocator.Tag) (leave func(), err error) {
	select {
	case m.slots <- struct{}{}:
		return func() { <-m.slots }, nil
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
		if err := s.health.reportHealth(); err != nil {
			s.log.Warn("the instance has started, but cannot issue IDs", "error", err)
		}
	}
}

// warmUntil warms a tag. While etcd does not answer it tries again.
func (s *Server) warmUntil(ctx context.Context, tag allocator.Tag) {
	for pause := 50 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		err := s.tags.warmTag(ctx, tag)
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

func (m *tags) warmTag(ctx context.Context, name allocator.Tag) error {
	tag, err := m.get(ctx, string(name))
	if err != nil {
		return err
	}
	return tag.Warm(ctx)
}

package room

import (
	"cmp"
	"context"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
)

// chains is the chains in memory, by tag.
type chains struct {
	owner   allocator.Instance // whose they are
	loading singleflight.Group // of chains being made, by tag
	slots   chan struct{}      // one for each that is read now
	mu      struct {
		sync.RWMutex
		chains  map[allocator.Tag]*counted
		unknown map[allocator.Tag]time.Time // tags that lately did not exist, until when to believe it
		changes int                         // tags that were heard to have changed
		gone    totals                      // of chains that were removed
	}
}

// Tags that do not exist are remembered for a moment, so that a caller who
// insists costs etcd nothing; no more of them than maxUnknown.
const (
	unknownFor = time.Second
	maxUnknown = 10_000
)

// loadAtOnce is how many tags are read at once, for callers and for a new layout
// together: so that a thousand cold tags do not storm an etcd that is slow, or
// just back.
const loadAtOnce = 64

// enter waits until a tag may be read; whoever read it leaves. Its error is
// Unavailable.
func (c *chains) enter(ctx context.Context, tag allocator.Tag) (leave func(), err error) {
	select {
	case c.slots <- struct{}{}:
		return func() { <-c.slots }, nil
	case <-ctx.Done():
		return nil, allocator.Errorf(allocator.Unavailable, "tag %s was not read: etcd is slow to answer for %d others", tag, loadAtOnce)
	}
}

func (c *chains) init(owner allocator.Instance) {
	c.owner = owner
	c.slots = make(chan struct{}, loadAtOnce)
	c.mu.chains = make(map[allocator.Tag]*counted)
	c.mu.unknown = make(map[allocator.Tag]time.Time)
}

// get returns a tag's chain if there is one.
func (c *chains) get(tag string) *counted {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.chains[allocator.Tag(tag)]
}

// all returns the chains, in no order.
func (c *chains) all() []tagged {
	list, _ := c.counts()
	return list
}

// after returns the first n chains whose tags come after one, empty for all, in
// the order of tags, and whether there are more. It sorts no more than it must:
// to page through many chains must not cost their number times the pages.
func (c *chains) after(tag allocator.Tag, n int) (list []tagged, more bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	cut := func() {
		slices.SortFunc(list, func(a, b tagged) int { return cmp.Compare(a.tag, b.tag) })
		if len(list) > n {
			list, more = list[:n], true
		}
	}
	for name, chain := range c.mu.chains {
		if name <= tag || more && name > list[n-1].tag {
			continue
		}
		if list = append(list, tagged{name, chain}); len(list) > 2*n {
			cut()
		}
	}
	cut()
	return list, more
}

// anyHeld reports whether any chain holds an ID, and whether there is one that
// may be issued: a chain with a gate may issue those of a layout that is open.
func (c *chains) anyHeld(open func(version int64) bool) (held, may bool) {
	for _, t := range c.all() {
		status := t.chain.Status()
		if status.Held == 0 {
			continue
		}
		if held = true; !t.chain.Gated() || open(status.Version) {
			return true, true
		}
	}
	return held, false
}

// byPeak returns the chains by their recent peak rate, the highest first. Those
// that are equally busy come in an order that is the instance's own, so that the
// instances of a room do not all want the same mark at once.
func (c *chains) byPeak() []tagged {
	list := c.all()
	type rank struct {
		peak float64
		own  uint32
	}
	ranks := make(map[allocator.Tag]rank, len(list))
	for _, t := range list {
		ranks[t.tag] = rank{t.chain.Status().Peak, crc32.ChecksumIEEE([]byte(string(c.owner) + "/" + string(t.tag)))}
	}
	slices.SortFunc(list, func(a, b tagged) int {
		x, y := ranks[a.tag], ranks[b.tag]
		return cmp.Or(cmp.Compare(y.peak, x.peak), cmp.Compare(x.own, y.own), cmp.Compare(a.tag, b.tag))
	})
	return list
}

type tagged struct {
	tag   allocator.Tag
	chain *counted
}

func (c *chains) put(tag allocator.Tag, chain *counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.chains[tag] = chain
	delete(c.mu.unknown, tag)
}

// remove takes chain out, where it still is the tag's, and closes it.
func (c *chains) remove(tag allocator.Tag, chain *counted) {
	chain.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.chains[tag] == chain {
		delete(c.mu.chains, tag)
		c.mu.gone.add(chain.finish())
	}
}

// replace puts chain in the place of another, where that still is the tag's,
// and closes the other.
func (c *chains) replace(tag allocator.Tag, other, chain *counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	other.Close() // who finds it closed finds the new one
	if c.mu.chains[tag] == other {
		c.mu.chains[tag] = chain
		c.mu.gone.add(other.finish())
	}
}

// closeAll closes every chain and returns how many IDs were dropped in all.
func (c *chains) closeAll() int64 {
	for _, t := range c.all() {
		c.remove(t.tag, t.chain)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.gone.dropped
}

// counts returns the chains, and the totals of those that were removed before: a
// chain that is removed next goes on to tell what it issued, so whoever adds the
// two up counts none twice and none not at all. It asks no chain anything: a
// writer that waits for the lock meanwhile would hold up every Next.
func (c *chains) counts() (list []tagged, gone totals) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	list = make([]tagged, 0, len(c.mu.chains))
	for tag, chain := range c.mu.chains {
		list = append(list, tagged{tag, chain})
	}
	return list, c.mu.gone
}

// issued returns how many IDs were issued in all.
func (c *chains) issued() int64 {
	list, gone := c.counts()
	sum := gone.issued
	for _, t := range list {
		sum += t.chain.Issued()
	}
	return sum
}

// heard returns how many changes of tags were heard of.
func (c *chains) heard() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.mu.changes
}

// setUnknown remembers that a tag does not exist, unless a change was heard of
// since the ones before it was looked for: it may have been created meanwhile.
func (c *chains) setUnknown(tag allocator.Tag, now time.Time, heard int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.changes != heard {
		return
	}
	if len(c.mu.unknown) >= maxUnknown {
		clear(c.mu.unknown)
	}
	c.mu.unknown[tag] = now.Add(unknownFor)
}

func (c *chains) isUnknown(tag allocator.Tag, now time.Time) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	until, ok := c.mu.unknown[tag]
	return ok && now.Before(until)
}

func (c *chains) forgetUnknown(tag allocator.Tag) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.unknown, tag)
	c.mu.changes++
}

// chain returns a tag's chain, made if need be. Its errors are Invalid (the
// name), NotFound, and those of a ledger's Source.
func (s *Server) chain(ctx context.Context, name string) (*counted, error) {
	if chain := s.chains.get(name); chain != nil {
		return chain, nil
	}
	return s.load(ctx, name)
}

// load makes a tag's chain. Callers who ask for one tag at once share the
// work, which goes on when the first of them gives up.
func (s *Server) load(ctx context.Context, name string) (*counted, error) {
	tag, err := allocator.ParseTag(name)
	if err != nil {
		return nil, err
	}
	if s.chains.isUnknown(tag, time.Now()) {
		return nil, ledger.UnknownTag(tag)
	}
	type result struct {
		chain *counted
		err   error
	}
	loaded := make(chan result, 1)
	s.loads.Go(func() {
		made, err, _ := s.chains.loading.Do(name, func() (any, error) { return s.loadOnce(ctx, tag) })
		chain, _ := made.(*counted) // nil with an error
		loaded <- result{chain, err}
	})
	select {
	case <-ctx.Done():
		return nil, allocator.Errorf(allocator.Unavailable, "tag %s was not read before the caller's deadline: %w", tag, context.Cause(ctx))
	case r := <-loaded:
		return r.chain, r.err
	}
}

// loadOnce is load for all who ask at once. It goes on when ctx ends, until the
// server does.
func (s *Server) loadOnce(ctx context.Context, tag allocator.Tag) (*counted, error) {
	if chain := s.chains.get(string(tag)); chain != nil {
		return chain, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	defer context.AfterFunc(s.background, cancel)()
	heard := s.chains.heard()
	chain, err := s.makeChain(ctx, tag)
	switch away := s.ledger.Contact().Away; {
	case err == nil:
	case allocator.KindOf(err) == allocator.NotFound:
		s.chains.setUnknown(tag, time.Now(), heard)
		return nil, ledger.UnknownTag(tag)
	case allocator.KindOf(err) == allocator.Unavailable && !away.IsZero():
		return nil, &allocator.AwayError{Tag: tag, Since: away, Err: err}
	}
	return chain, err
}

func (s *Server) makeChain(ctx context.Context, tag allocator.Tag) (_ *counted, err error) {
	ctx, end := s.span(ctx, "room.load", tag)
	defer func() { end(err) }()
	leave, err := s.chains.enter(ctx, tag)
	if err != nil {
		return nil, err
	}
	defer leave()
	chain, err := s.readChain(ctx, tag)
	if s.cfg.CreateTags && err != nil && allocator.KindOf(err) == allocator.NotFound {
		_, err = s.ledger.CreateTag(ctx, tag, ledger.DefaultTag(), "room "+string(s.cfg.Room))
		if err != nil && allocator.KindOf(err) != allocator.Exists {
			return nil, err
		}
		chain, err = s.readChain(ctx, tag)
	}
	if err != nil {
		return nil, err
	}
	s.chains.put(tag, chain)
	return chain, nil
}

// readChain reads a tag and makes a chain of it, which then knows all that its
// first lease needs. The caller has entered.
func (s *Server) readChain(ctx context.Context, tag allocator.Tag) (*counted, error) {
	source, settings, err := s.instance.Source(ctx, tag)
	if err != nil {
		return nil, err
	}
	chain := &counted{}
	chain.space.Store(&space{settings.Start, settings.Limit})
	watched := &refills{Source: source, server: s, tag: tag, growth: &chain.growth}
	chain.Chain, err = allocator.NewChain(allocator.ChainConfig{Tag: tag, Source: watched, Refiller: s.refiller, Settings: settings.Chain, Gate: s.gateOf(settings)})
	return chain, err
}

// tagChanged is told by the ledger of a tag whose settings changed. A chain in
// memory takes them up; a deleted tag's chain is dropped; and one that is
// prescaled is made, so that what was asked for is there before its first
// caller.
func (s *Server) tagChanged(change ledger.TagChange) {
	s.chains.forgetUnknown(change.Name)
	chain := s.chains.get(string(change.Name))
	switch {
	case change.Settings == nil && chain != nil:
		s.chains.remove(change.Name, chain)
		s.lines.deleted.Log(time.Now(), s.log.Info, "tag deleted", "tag", change.Name)
	case change.Settings == nil:
	case chain != nil && chain.Gated() != s.strict(*change.Settings):
		s.chains.remove(change.Name, chain) // its next caller gets one that is as it should be
		s.log.Info("tag updated", "tag", change.Name, "strict_retract", s.strict(*change.Settings))
	case chain != nil:
		if err := chain.Update(change.Settings.Chain); err != nil {
			s.lines.refused.Log(time.Now(), s.log.Error, "tag's settings refused", "tag", change.Name, "error", err)
			return
		}
		chain.Skip(change.Settings.Skips[s.cfg.Room])
		chain.space.Store(&space{change.Settings.Start, change.Settings.Limit})
		s.lines.updated.Log(time.Now(), s.log.Info, "tag updated", "tag", change.Name)
	case change.Settings.Chain.Prescale > 0 && time.Now().Before(change.Settings.Chain.PrescaleUntil):
		select {
		case s.prescaled <- change.Name:
		default: // so many at once are made as they are asked for
		}
	}
}

// maxPrescaled is how many tags that nobody has asked for yet may wait for
// their prescale.
const maxPrescaled = 1000

// warmPrescaled makes the chains of tags that were prescaled, until ctx ends.
func (s *Server) warmPrescaled(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case tag := <-s.prescaled:
			warming, cancel := context.WithTimeout(ctx, 5*time.Second)
			if err := s.warmTag(warming, tag); err != nil && ctx.Err() == nil {
				s.lines.unwarmed.Log(time.Now(), s.log.Warn, "tag not prescaled yet, its first caller will", "tag", tag, "error", err)
			}
			cancel()
		}
	}
}

// sweepEvery is how often every chain is looked at, unless IdleAfter asks for
// more: it measures rates and refills chains too slow to look at themselves.
const sweepEvery = 10 * time.Second

// sweep looks after all chains until ctx ends.
func (s *Server) sweep(ctx context.Context) error {
	ticker := time.NewTicker(min(sweepEvery, s.cfg.IdleAfter/2))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, t := range s.chains.all() {
			if t.chain.Observe() >= s.cfg.IdleAfter && t.chain.CloseUnused(s.cfg.IdleAfter) {
				s.chains.remove(t.tag, t.chain)
			}
		}
	}
}

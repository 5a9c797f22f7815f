package room

import (
	"cmp"
	"context"
	"errors"
	"hash/crc32"
	"maps"
	"math"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/serve"
)

// tags has the issuers of tags: those in memory, and those that are being made.
type tags struct {
	*process
	memory    memory
	loads     loads
	gates     gates
	peers     peers
	periods   periods
	scan      scan
	skewed    skewed
	unknown   unknown
	damaged   damaged
	refiller  *allocator.Refiller
	texts     *texts.Cache
	prescaled chan allocator.Tag // tags whose issuers to make before their first caller
}

func (m *tags) init(p *process, refiller *allocator.Refiller) {
	m.process, m.refiller, m.texts = p, refiller, texts.NewCache(p.cfg.OpaqueKeys)
	m.memory.tags = make(map[allocator.Tag]issuer)
	m.loads.init()
	m.gates = gates{process: p, stale: make(chan struct{}, 1)}
	m.peers.process = p
	m.periods.init()
	m.unknown.init(p.cfg.Metrics.Limit(maxUnknownTags, int64(p.cfg.MaxUnknownTags)), p.cfg.Rand)
	m.prescaled = make(chan allocator.Tag, maxPrescaled)
}

// memory has the issuers in memory, by the names of their tags.
type memory struct {
	sync.RWMutex
	tags  map[allocator.Tag]issuer
	index index // of the same issuers
	timed int   // how many of them are a TimeTag
}

// get returns a tag's issuer, or nil if it is not in memory.
func (m *memory) get(tag string) issuer {
	m.RLock()
	defer m.RUnlock()
	return m.tags[allocator.Tag(tag)]
}

// set makes tag the issuer of a name, none for nil. The lock is held.
func (m *memory) set(name allocator.Tag, tag issuer) {
	if _, is := m.tags[name].(*TimeTag); is {
		m.timed--
	}
	if _, is := tag.(*TimeTag); is {
		m.timed++
	}
	if tag == nil {
		delete(m.tags, name)
		m.index.remove(name)
		return
	}
	m.tags[name] = tag
	m.index.put(tagged{name, tag})
}

// size returns how many counters and how many time-ordered tags there are.
func (m *memory) size() (counters, timed int) {
	m.RLock()
	defer m.RUnlock()
	return len(m.tags) - m.timed, m.timed
}

// page appends to list the first n issuers with a tag after the given one; an empty tag
// asks for the first of all.
func (m *memory) page(after allocator.Tag, n int, list []tagged) []tagged {
	m.RLock()
	defer m.RUnlock()
	return m.index.after(after, n, list)
}

// pageOfAll is how many issuers are copied under the lock at once: a writer that
// waits for the lock delays every Next.
const pageOfAll = 1000

// issuersOf returns the first n issuers of a kind with a tag after the given one, in the order of tags,
// and whether there are more. An empty tag asks for the first of all.
func issuersOf[T issuer](m *memory, after allocator.Tag, n int) (list []T, more bool) {
	for page := []tagged(nil); ; after = lastTag(page) {
		page = m.page(after, pageOfAll, page[:0])
		for _, t := range page {
			if found, is := t.issuer.(T); is {
				if len(list) == n {
					return list, true
				}
				list = append(list, found)
			}
		}
		if len(page) < pageOfAll {
			return list, false
		}
	}
}

// tagged is an issuer with its tag.
type tagged struct {
	tag    allocator.Tag
	issuer issuer
}

// lastTag returns the last tag of a list, or "" for an empty list.
func lastTag(list []tagged) allocator.Tag {
	if len(list) == 0 {
		return ""
	}
	return list[len(list)-1].tag
}

// The way of a tag from etcd into memory, in the order of the calls.

// get returns a tag's issuer, from memory if it is there.
func (m *tags) get(ctx context.Context, name string) (issuer, error) {
	for {
		if tag := m.memory.get(name); tag != nil {
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
	// A caller may have an earlier deadline than the work that it shares.
	l := m.loads.share(tag, func(l *load) (issuer, error) { return m.loadOnce(ctx, l) })
	select {
	case <-ctx.Done():
		return nil, allocator.Errorf(allocator.Unavailable,
			"tag %s was not read from etcd before the caller's deadline: %w", tag, context.Cause(ctx))
	case <-l.done:
		return l.tag, l.err
	}
}

// loads are the reads of tags under way.
type loads struct {
	running sync.WaitGroup
	slots   chan struct{} // one token for each tag that is being read
	homes   chan struct{} // one token for each of them that is read again and again, as its home does not issue
	mu      struct {
		sync.Mutex
		all   map[allocator.Tag]*load
		ended bool // no load begins any more
		// deleted has the tags of time-ordered IDs that were deleted, as far as a load read it.
		deleted map[allocator.Tag]bool
	}
}

func (s *loads) init() {
	s.slots, s.homes = make(chan struct{}, loadAtOnce), make(chan struct{}, loadAtOnce/4)
	s.mu.all, s.mu.deleted = make(map[allocator.Tag]*load), make(map[allocator.Tag]bool)
}

// load is the work that reads one tag and makes its issuer, for all callers that wait for it.
type load struct {
	name    allocator.Tag
	reading atomic.Bool   // it has one of the slots (loads.enter)
	changed atomic.Bool   // the tag changed since it was last read
	done    chan struct{} // closed when tag and err are there
	tag     issuer
	err     error
}

// share returns the load of a tag that is under way, or else begins one that does work. It goes on when its callers
// give up, and ends with the server: after end it has failed.
func (s *loads) share(name allocator.Tag, work func(*load) (issuer, error)) *load {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mu.all[name]; l != nil {
		return l
	}
	l := &load{name: name, done: make(chan struct{})}
	if s.mu.ended {
		l.err = errStopping
		close(l.done)
		return l
	}
	s.mu.all[name] = l
	s.running.Go(func() {
		l.tag, l.err = work(l)
		s.mu.Lock()
		delete(s.mu.all, name)
		s.mu.Unlock()
		close(l.done)
	})
	return l
}

// loadAtOnce is how many tags are read at once, for callers and for a new layout
// together: so that a thousand cold tags do not overload an etcd that is slow or
// has just come back.
const loadAtOnce = 64

// enter waits until a tag may be read. The caller reads it and then calls leave.
// Its error is Unavailable.
func (s *loads) enter(ctx context.Context, tag allocator.Tag) (leave func(), err error) {
	select {
	case s.slots <- struct{}{}:
		return func() { <-s.slots }, nil
	case <-ctx.Done():
		return nil, allocator.Errorf(allocator.Unavailable,
			"tag %s was not read: etcd is slow, and %d other tags are being read; try again", tag, loadAtOnce)
	}
}

// change notes that a tag has changed, if a load of it is under way.
func (s *loads) change(name allocator.Tag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.mu.all[name]; l != nil {
		l.changed.Store(true)
	}
}

// reading returns the tags that are being read.
func (s *loads) reading() (names []allocator.Tag) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, l := range s.mu.all {
		if l.reading.Load() {
			names = append(names, name)
		}
	}
	return names
}

// end waits for the loads under way, and lets no more begin.
func (s *loads) end() {
	s.mu.Lock()
	s.mu.ended = true
	s.mu.Unlock()
	s.running.Wait()
}

// loadOnce puts a cold tag into memory for all callers that wait for it. It goes on when
// ctx ends, for ledger.LongestWork at most and not after the server has ended. It notes a tag that does not exist.
func (m *tags) loadOnce(ctx context.Context, l *load) (issuer, error) {
	if tag := m.memory.get(string(l.name)); tag != nil {
		return tag, nil
	}
	// The work keeps the first caller's span and address, and not its deadline: other callers
	// wait for it, too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.LongestWork)
	defer cancel()
	defer context.AfterFunc(m.background, cancel)()
	changes := m.unknown.changes() // before the read: the tag may be created after it
	tag, err := m.makeTag(ctx, l)
	m.damaged.note(l.name, err)
	switch away := m.ledger.Contact().Away; {
	case err == nil:
		return tag, nil
	case allocator.KindOf(err) == allocator.NotFound:
		m.unknown.add(serve.Caller(ctx), l.name, time.Now(), changes)
		return nil, ledger.UnknownTag(l.name)
	case allocator.KindOf(err) == allocator.Unavailable && !away.IsZero():
		return nil, &allocator.AwayError{Tag: l.name, Since: away, Err: err}
	}
	return nil, err
}

// makeTag reads a tag and puts it into memory. With Config.CreateTags it creates a tag that does not exist.
func (m *tags) makeTag(ctx context.Context, l *load) (_ issuer, err error) {
	ctx, end := m.span(ctx, "room.load", l.name)
	defer func() { end(err) }()
	leave, err := m.loads.enter(ctx, l.name)
	if err != nil {
		return nil, err
	}
	defer leave()
	tag, err := m.readTag(ctx, l)
	if !m.cfg.CreateTags || tag != nil || allocator.KindOf(err) != allocator.NotFound {
		return tag, err
	}
	if stored, _ := m.ledger.Layout(); !stored.Upgraded() { // since the upgrade a tombstone refuses what follows
		deleted, deletedErr := m.admin.DeletedTimeTags(ctx)
		m.loads.mu.Lock()
		maps.Copy(m.loads.mu.deleted, deleted) // the audit log forgets
		was := m.loads.mu.deleted[l.name]
		m.loads.mu.Unlock()
		if deletedErr != nil || was {
			return nil, cmp.Or(deletedErr, err) // as a counter its IDs would be quite others
		}
	}
	// Two instances may create the tag at once: the second one reads what the first one made.
	_, createErr := m.admin.CreateTag(ctx, l.name, record.DefaultTag(), "room "+string(m.cfg.Room))
	switch allocator.KindOf(createErr) {
	case allocator.Exists:
	case allocator.Refused:
		return nil, err // only an operator gives the name another life
	default:
		if createErr != nil {
			return nil, createErr
		}
	}
	return m.readTag(ctx, l)
}

// readTag reads a tag of any kind and puts its issuer into memory, in the place of one that is there. A time-ordered
// one stays there even if no worker is to be had for it: its next caller tries again. A tag that changed meanwhile is
// read again. The caller holds one of the slots (loads.enter).
func (m *tags) readTag(ctx context.Context, l *load) (issuer, error) {
	for {
		l.reading.Store(true)
		l.changed.Store(false)
		tag, err := m.readIssuer(ctx, l.name)
		if err != nil {
			return nil, err
		}
		if !m.put(l, tag) {
			tag.Close()
			continue
		}
		switch tag := tag.(type) {
		case *TimeTag:
			err = tag.Warm(ctx)
		case *counter:
			if stopping := m.status.stopping(); tag.tenure != nil && stopping != nil {
				m.remove(l.name, tag) // it came after those that were released
				return nil, stopping
			}
			// Its period may have ended since it was read, before the counter was there to turn.
			if tag.period != (period.Period{}) {
				tag.begin(tag.period.At(m.instance.Now()))
			}
		}
		return tag, err
	}
}

// put puts the issuer that was made of a tag as it was read into memory. One that is there is closed: a call that
// finds it closed looks the tag up again, and finds the new one. put returns false, and puts nothing there, if the tag
// changed since it was read: no one would tell the issuer.
func (m *tags) put(l *load, tag issuer) bool {
	m.memory.Lock()
	if l.changed.Load() {
		m.memory.Unlock()
		return false
	}
	old := m.memory.tags[l.name]
	m.unknown.found(l.name)
	if old != nil {
		old.Close()
	}
	m.seed(tag)
	m.memory.set(l.name, tag)
	m.memory.Unlock()
	if c, is := tag.(*counter); is {
		m.noteSkew(c, c.skewed)
	}
	if old != nil {
		m.scan.finish(old)
	}
	return true
}

// readIssuer reads a tag of any kind and makes its issuer.
func (m *tags) readIssuer(ctx context.Context, name allocator.Tag) (issuer, error) {
	tag, err := m.readCounter(ctx, name)
	if timed, is := errors.AsType[*ledger.TimeTagError](err); is {
		return m.windows.Add(name, *timed.Settings.Time, m.textOf(name, timed.Settings)), nil
	}
	return tag, err
}

// readCounter reads a counter's settings, mark and floor (Instance.Source), and makes a
// chain of them. The chain's first lease then needs one transaction only.
func (m *tags) readCounter(ctx context.Context, name allocator.Tag) (issuer, error) {
	source, settings, err := m.instance.Source(ctx, name)
	if err != nil {
		return nil, err
	}
	if settings.StrictOrder == "" {
		return m.makeCounter(name, source, settings, nil)
	}
	return m.holdOrPass(ctx, name, source, settings)
}

// makeCounter makes the chain of a tag that was read; in a tenure that of an ordered one.
func (m *tags) makeCounter(tag allocator.Tag, source allocator.Source, settings record.TagSettings,
	tenure *ledger.Tenure) (issuer, error) {
	chain := &counter{text: m.textOf(tag, settings), period: settings.Period, tenure: tenure}
	chain.strict, chain.skewed = m.strict(settings), settings.MaxSkew > 0
	gate := m.gates.of(settings)
	if tenure != nil {
		gate = gateIn(tenure, gate)
	}
	chain.setSpace(m.spaceOf(settings))
	m.periods.add(settings.Period, m.instance.Now())
	// The chain needs its source, and the source the chain, so the chain comes in two steps.
	chain.source = meteredSource{Source: source, tags: m, chain: chain}
	var err error
	chain.Chain, err = allocator.NewChain(allocator.ChainConfig{Tag: tag, Source: &chain.source, Refiller: m.refiller,
		Settings: settings.Chain(), First: m.firstLease(tag, settings.Chain()), Gate: gate})
	if err != nil {
		return nil, err // and no nil *counter in an issuer
	}
	chain.Limit(settings.Limit)
	if tenure != nil {
		tenure.OnEnd(func() { m.remove(tag, chain) })
	}
	return chain, nil
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

func (r *meteredSource) Lease(ctx context.Context, n int64) (allocator.Segment, error) {
	ctx, end := r.tags.span(ctx, "room.refill", r.chain.Tag())
	seg, err := r.Source.Lease(ctx, n)
	end(err)
	r.tags.damaged.note(r.chain.Tag(), err)
	if err == nil {
		crash.Here(crash.BeforeUse)
		r.chain.leased(seg.Last())
	}
	if r.tags.metrics != nil {
		r.tags.metrics.refilled(err)
	}
	return seg, err
}

// remove closes an issuer, and removes it if it still is the tag's.
func (m *tags) remove(name allocator.Tag, tag issuer) {
	tag.Close()
	m.forget(name, tag)
}

// forget removes an issuer that is closed, if it still is the tag's. No ID comes of it any more, so
// the totals that finish adds are its last, and the tag's next issuer begins above its IDs.
func (m *tags) forget(name allocator.Tag, tag issuer) {
	m.memory.Lock()
	was := m.memory.tags[name] == tag
	if was {
		m.memory.set(name, nil)
	}
	m.memory.Unlock()
	if was {
		m.scan.finish(tag)
	}
}

// dropIDs closes every counter and every generator. Time-ordered tags stay in memory, for workers that are taken anew.
func (m *tags) dropIDs() {
	list, _ := m.counters("", math.MaxInt)
	for _, c := range list {
		m.remove(c.Tag(), c)
	}
	m.windows.Drop()
}

// tagChanged applies a change of a tag that the ledger saw. An issuer in memory gets the new settings, and that
// of a deleted tag is dropped. The issuer of a prescaled tag is made, so that its IDs are there before its first
// caller.
func (m *tags) tagChanged(change ledger.TagChange) {
	m.unknown.changed(change.Name)
	m.damaged.note(change.Name, change.Err)
	m.loads.change(change.Name) // a load that does not see this has put its issuer into memory, where it is found below
	tag := m.memory.get(string(change.Name))
	switch {
	case tag != nil && change.Settings == nil:
		m.remove(change.Name, tag)
		m.logDropped(change)
	case tag != nil:
		keeps, err := tag.update(m, *change.Settings)
		if err != nil {
			m.lines.refused.Log(time.Now(), m.log.Error, "tag's settings refused", "tag", change.Name, "error", err)
			return
		}
		if !keeps { // its next caller makes another one
			m.remove(change.Name, tag)
		}
		m.lines.updated.Log(time.Now(), m.log.Info, "tag updated", "tag", change.Name)
	case change.Settings != nil && change.Settings.Prescale > 0 && time.Now().Before(change.Settings.PrescaleUntil):
		select {
		case m.prescaled <- change.Name:
		default: // beyond maxPrescaled, tags are made by their first callers
		}
	}
}

// maxPrescaled is how many tags that no caller has asked for yet may wait for
// their prescale.
const maxPrescaled = 1000

// warmPrescaled makes the issuers of tags that were prescaled, until ctx ends.
func (m *tags) warmPrescaled(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case tag := <-m.prescaled:
			warming, cancel := context.WithTimeout(ctx, ledger.LongestWork)
			if err := m.warmTag(warming, tag); err != nil && ctx.Err() == nil {
				m.lines.unwarmed.Log(time.Now(), m.log.Warn,
					"tag not prescaled yet; its first caller prescales it", "tag", tag, "error", err)
			}
			cancel()
		}
	}
}

// counter returns the issuer of a tag that is a counter, or nil if it is not in memory.
func (m *tags) counter(tag string) *counter {
	found, _ := m.memory.get(tag).(*counter)
	return found
}

// counters is issuersOf for counters.
func (m *tags) counters(after allocator.Tag, n int) (list []*counter, more bool) {
	return issuersOf[*counter](&m.memory, after, n)
}

// unleased returns the tags that are being read, and the time-ordered tags in memory: in this order, as a tag goes from
// those to these.
func (m *tags) unleased() []allocator.Tag {
	names := m.loads.reading()
	list, _ := issuersOf[*TimeTag](&m.memory, "", math.MaxInt)
	for _, t := range list {
		names = append(names, t.name)
	}
	return names
}

// sortByPeak sorts counters by their recent peak rate, the highest first. The order
// of equally busy ones differs between instances, so that the instances of a room
// do not all compete for the same mark.
func (m *tags) sortByPeak(list []*counter) {
	type rank struct {
		peak float64
		own  uint32
	}
	ranks := make(map[*counter]rank, len(list))
	for _, of := range list {
		ranks[of] = rank{of.Status().Peak, crc32.ChecksumIEEE([]byte(string(m.cfg.Name) + "/" + string(of.Tag())))}
	}
	slices.SortFunc(list, func(a, b *counter) int {
		x, y := ranks[a], ranks[b]
		return cmp.Or(cmp.Compare(y.peak, x.peak), cmp.Compare(x.own, y.own), cmp.Compare(a.Tag(), b.Tag()))
	})
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
		s.status.started.Store(true)
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

// index has the issuers in the order of their tags, in sorted blocks. So adding or
// removing one, and finding the start of a page, are cheap however many issuers
// there are. The zero value is empty.
type index struct{ blocks [][]tagged }

// maxBlock is how many issuers a block has at most. A full block is split in two.
const maxBlock = 256

func (x tagged) compare(tag allocator.Tag) int { return cmp.Compare(x.tag, tag) }

// find returns the block in which a tag is or belongs, and the place in it.
func (x *index) find(tag allocator.Tag) (block, at int, found bool) {
	block = max(sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i][0].tag > tag })-1, 0)
	if len(x.blocks) == 0 {
		return 0, 0, false
	}
	at, found = slices.BinarySearchFunc(x.blocks[block], tag, tagged.compare)
	return block, at, found
}

// put adds an issuer, or replaces the one of its tag.
func (x *index) put(t tagged) {
	block, at, found := x.find(t.tag)
	switch {
	case found:
		x.blocks[block][at] = t
		return
	case len(x.blocks) == 0:
		x.blocks = [][]tagged{{t}}
		return
	}
	b := slices.Insert(x.blocks[block], at, t)
	if x.blocks[block] = b; len(b) <= maxBlock {
		return
	}
	half := len(b) / 2
	if at == len(b)-1 {
		half = at // tags that come in order fill their blocks
	}
	x.blocks[block] = slices.Clone(b[:half])
	x.blocks = slices.Insert(x.blocks, block+1, slices.Clone(b[half:]))
}

// remove removes the issuer of a tag.
func (x *index) remove(tag allocator.Tag) {
	block, at, found := x.find(tag)
	if !found {
		return
	}
	if x.blocks[block] = slices.Delete(x.blocks[block], at, at+1); len(x.blocks[block]) == 0 {
		x.blocks = slices.Delete(x.blocks, block, block+1)
	}
}

// after appends to list the first n issuers with a tag after the given one; an empty tag
// asks for the first of all.
func (x *index) after(tag allocator.Tag, n int, list []tagged) []tagged {
	block, at, found := x.find(tag)
	if found {
		at++
	}
	for ; block < len(x.blocks) && n > 0; block, at = block+1, 0 {
		part := x.blocks[block][at:]
		part = part[:min(len(part), n)]
		list, n = append(list, part...), n-len(part)
	}
	return list
}

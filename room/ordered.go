package room

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
)

// Of a tag with a strict order one instance of the room, or of the tag's home, the holder, has a counter. Its chain is
// of one tenure (ledger.Tenure), and its gate asks the tenure. Each other instance has a passed, which passes calls on
// to the holder.

// holdOrPass returns the issuer of an ordered tag: a counter if this instance holds the tag from now on, and otherwise
// a passed. An instance that stops, or is not in the tag's home, takes no tag.
func (m *tags) holdOrPass(ctx context.Context, name allocator.Tag, source allocator.Source,
	settings record.TagSettings) (issuer, error) {
	p := &passed{tags: m, name: name, home: settings.Home, text: m.textOf(name, settings)}
	before, _ := m.memory.get(string(name)).(*passed)
	silent := ""
	if before != nil {
		switch state := before.state.Load(); {
		case state == takes:
			silent = before.holder.Nonce
		case state == refused:
			p.nth = before.nth + 1
			fallthrough
		case state == fails || time.Now().UnixNano() < before.again.Load():
			silent = before.silent
		}
	}
	var tenure *ledger.Tenure
	var other *record.Holder
	var err error
	stopping := m.status.stopping()
	switch {
	case p.elsewhere():
		other, err = m.instance.Holder(ctx, name, p.home)
		if err == nil && (other == nil || other.Nonce == silent) {
			again := time.Now()
			if other != nil {
				p.silent, again = silent, again.Add(asideFor)
			}
			p.again.Store(again.UnixNano())
			other, err = m.atHome(ctx, p, before, other)
		}
	case stopping == nil:
		tenure, other, err = m.instance.Hold(ctx, source, settings.TenureHold.Duration(), silent)
	default:
		if other, err = m.instance.Holder(ctx, name, p.home); err == nil && other == nil {
			err = stopping
		}
	}
	switch {
	case err != nil:
		return nil, err
	case tenure != nil:
		return m.makeCounter(name, source, settings, tenure)
	}
	p.holder = *other
	p.used.Store(time.Now().UnixNano())
	if p.to, err = m.peers.dial(cmp.Or(other.Room, m.cfg.Room), other.Instance, other.Address); err != nil {
		return nil, err
	}
	return p, nil
}

// atHome returns an instance of the home of p's tag, at random, which is to take the tag, or to pass calls on to its
// holder. It is not the one that the issuer before passed calls on to, if there is another one, and at first not
// silent, a holder that does not answer; later not each time: it may answer again, and no other. Its nonce is empty.
func (m *tags) atHome(ctx context.Context, p, before *passed, silent *record.Holder) (*record.Holder, error) {
	list, err := m.instance.AnyOf(ctx, p.home)
	if err != nil {
		return nil, err
	}
	without := func(h *record.Holder) {
		if len(list) > 1 {
			list = slices.DeleteFunc(list, func(other record.Holder) bool { return other.Instance == h.Instance })
		}
	}
	if silent != nil && (before.silent != silent.Nonce || m.cfg.Rand() < 0.5) {
		without(silent)
	}
	if before != nil && before.state.Load() != asks {
		without(&before.holder)
	}
	if len(list) == 0 {
		return nil, allocator.Errorf(allocator.NoRange, "tag %s: its IDs are issued in room %s, its home, of "+
			"which no instance is registered; `march tag update %s --home ROOM` moves it", p.name, p.home, p.name)
	}
	p.mu.looks, p.mu.last = 10, time.Now() // if it does not issue, another one is asked after the longest pause
	return &list[int(m.cfg.Rand()*float64(len(list)))], nil
}

// releaseOrdered closes the counters of ordered tags, so that other instances take these at once.
func (m *tags) releaseOrdered() {
	list, _ := m.counters("", math.MaxInt)
	for _, c := range list {
		if c.tenure != nil {
			m.remove(c.Tag(), c)
		}
	}
}

// gateIn returns the gate of an ordered tag's chain. inner is the gate that the tag has beside it, nil for none.
func gateIn(tenure *ledger.Tenure, inner allocator.Gate) allocator.Gate {
	return func(s allocator.Segment) (newest allocator.Part, err error) {
		if err := tenure.Admits(); err != nil || inner == nil {
			return newest, err
		}
		return inner(s)
	}
}

// ordered reports whether an issuer is one of an ordered tag.
func ordered(i issuer) bool {
	c, counts := i.(*counter)
	_, passes := i.(*passed)
	return passes || counts && c.tenure != nil
}

// passedOn is the metadata key of a call that another instance passed on: the room of that. It goes no further, but in
// the home of its tag to the holder if it came from another room.
const passedOn = "march-passed"

const (
	// A holder that does not answer within passFor is silent, and it answers a call that was passed on, and has to
	// wait, within answerFor.
	passFor   = time.Second / 3
	answerFor = time.Second / 4
	// Any instance of the home, which may pass the call on, too, has homeFor.
	homeFor = time.Second
	// A holder that stops releases the tag while its address refuses calls already: it is silent after silentFor.
	silentFor = 300 * time.Millisecond
	// Where the home's instances reach a holder that this one does not reach, it is tried again after asideFor.
	asideFor = 10 * time.Minute
	// leastPause and longestPause bound the pause before an instance looks at a holder's key again.
	leastPause   = 5 * time.Millisecond
	longestPause = 320 * time.Millisecond
)

// passedFrom returns the room of the instance that passed a call on; empty if none did.
func passedFrom(ctx context.Context) allocator.Room {
	if by := metadata.ValueFromIncomingContext(ctx, passedOn); len(by) > 0 {
		return allocator.Room(by[0])
	}
	return ""
}

// wait waits until an ordered tag may be issued. The context is that of the call, for as long as it may wait. A call
// that was passed on is refused where etcd no longer confirms the tenure: its instance may reach etcd, and takes the
// tag. That error is Conflict.
func (c *counter) wait(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if passedFrom(ctx) == "" {
		return ctx, func() {}, c.tenure.Wait(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, answerFor)
	err := c.tenure.Wait(ctx)
	if err == nil && c.tenure.Lasts(time.Now()) <= 0 {
		err = allocator.Errorf(allocator.Conflict, "tag %s: %w", c.Tag(), c.tenure.Admits())
	}
	return ctx, cancel, err
}

func (c *counter) Warm(ctx context.Context) error {
	if c.tenure != nil {
		return c.prepare(ctx, 1)
	}
	return c.Chain.Warm(ctx)
}

// passed is the issuer of an ordered tag that another instance holds.
type passed struct {
	tally
	tags   *tags
	name   allocator.Tag
	home   allocator.Room // of a tag that is ordered over all rooms; empty for the order of a room
	text   *texts.Text
	holder record.Holder // without a nonce any instance of the home: see atHome
	nth    int           // how many instances of the home have refused a call before, one after another
	silent string        // the nonce of a holder that does not answer, in place of which any instance is asked
	to     *neighbour

	together together

	closed atomic.Bool
	state  atomic.Int32 // asks and so on
	// In Unix nanoseconds:
	used  atomic.Int64
	alone atomic.Int64 // until when each call goes by itself
	again atomic.Int64 // when the holder itself is tried again, once a call was answered: see tryAgain; 0 for never
	mu    struct {
		sync.Mutex
		looks int       // at the holder's key, since the state was asks
		first time.Time // when the first of them showed it unchanged, since when none failed; zero for none
		last  time.Time // when the last one ended
	}
}

// The states of a passed. Each is by calls since the last one that was answered, with IDs or with a reason.
const (
	asks    = iota // none was not answered
	fails          // one was not
	refused        // an instance of the home refused one
	takes          // this instance is to take the tag, or have it taken
)

// elsewhere reports whether the tag is issued in another room, its home.
func (p *passed) elsewhere() bool { return p.home != "" && p.home != p.tags.cfg.Room }

// pass makes a call for n IDs at the holder. Its errors are the holder's, allocator.ErrClosed if the tag has another
// issuer, and Unavailable. A call that another instance passed on goes no further, but from another room to the home's
// holder.
func (p *passed) pass(ctx context.Context, n int64, call func(context.Context) error) (err error) {
	p.used.Store(time.Now().UnixNano())
	if p.closed.Load() { // the tag may have another life, with other texts
		return allocator.ErrClosed
	}
	if from := passedFrom(ctx); from != "" && (from == p.tags.cfg.Room || p.home != p.tags.cfg.Room) {
		if err := p.look(ctx); err != nil {
			return err
		}
		return allocator.Errorf(allocator.Unavailable, "tag %s: instance %s holds it, and not this one", p.name,
			p.holder.Instance)
	}
	if p.nth > 0 {
		defer func() {
			if err != nil { // the next call begins with any instance
				p.tags.remove(p.name, p)
			}
		}()
	}
	for {
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, p.most())
		err := call(metadata.AppendToOutgoingContext(bounded, passedOn, string(p.tags.cfg.Room)))
		cancel()
		kind := allocator.KindOf(err)
		switch answered := api.FromServer(err); {
		case err == nil:
			if p.state.Load() != asks {
				p.answers()
			}
			p.tags.elsewhere.Add(n)
			p.tryAgain()
			return nil
		case errors.Is(err, errAlone):
			p.alone.Store(began.Add(aloneFor).UnixNano())
			continue
		case ctx.Err() != nil && p.holder.Nonce == "":
			return p.late(ctx)
		case ctx.Err() != nil:
			return allocator.Errorf(allocator.Unavailable, "tag %s: instance %s, which issues its IDs, did not answer "+
				"before the caller's deadline: %w", p.name, p.holder.Instance, context.Cause(ctx))
		case answered && p.holder.Nonce == "" && kind != allocator.Invalid && kind != allocator.Exhausted && p.nth < 2:
			p.state.Store(refused) // another instance of the home may issue
		case answered && (kind == allocator.Denied || kind == allocator.Unauthenticated || kind == allocator.TooMany):
			p.tags.lines.refused.Log(time.Now(), p.tags.log.Error, "another instance refuses the calls for an ordered "+
				"tag that this one passes on: its policy must allow them to this instance", "tag", p.name, "instance",
				p.holder.Instance, "error", err)
			p.answers()
			return allocator.Errorf(allocator.Unavailable, "tag %s: instance %s, which issues its IDs, refuses this "+
				"instance; the instance's log says why", p.name, p.holder.Instance)
		case answered && kind != allocator.Unavailable && kind != allocator.Conflict:
			p.answers()
			return allocator.Errorf(kind, "instance %s, which issues the IDs: %w", p.holder.Instance, err)
		case !answered || kind == allocator.Conflict:
			p.fails(began, answered, err)
		}
		p.state.CompareAndSwap(asks, fails)
		if err := p.look(ctx); err != nil {
			return err
		}
	}
}

// tryAgain finds out, beside the calls, whether they can go to the holder itself again, which had not answered, or go
// to another one by now. No call waits for that: a firewall may keep this instance from the holder for ever.
func (p *passed) tryAgain() {
	again := p.again.Load()
	if now := time.Now(); again == 0 || now.UnixNano() < again ||
		!p.again.CompareAndSwap(again, now.Add(asideFor).UnixNano()) {
		return
	}
	m := p.tags
	m.peers.asking.Go(func() {
		ctx, cancel := context.WithTimeout(m.background, homeFor)
		defer cancel()
		holder, err := m.instance.Holder(ctx, p.name, p.home)
		if err == nil && holder != nil && holder.Nonce == p.silent {
			var to *neighbour
			if to, err = m.peers.dial(holder.Room, holder.Instance, holder.Address); err == nil {
				_, err = to.Lease(ctx, &marchv1.LeaseRequest{Tag: string(p.name), Count: 1})
				m.peers.leave(to)
				if api.FromServer(err) { // it refuses that, as any instance does
					err = nil
				}
			}
		}
		if err == nil {
			p.again.Store(time.Now().UnixNano())
			m.reread(ctx, p.name, p)
		}
	})
}

// most is how long the holder has to answer a call.
func (p *passed) most() time.Duration {
	if p.holder.Nonce == "" {
		return homeFor
	}
	return passFor
}

// late returns the error of a call whose deadline ended before an instance of the home issued its IDs.
func (p *passed) late(ctx context.Context) error {
	return allocator.Errorf(allocator.Unavailable, "tag %s: its IDs are issued in room %s, its home, of which "+
		"instance %s issued none before the caller's deadline; if the home is lost, `march tag update %s --home ROOM` "+
		"moves it: %w", p.name, p.home, p.holder.Instance, p.name, context.Cause(ctx))
}

// answers notes that the holder issues, or says why it does not.
func (p *passed) answers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.Store(asks)
	p.mu.looks, p.mu.first = 0, time.Time{}
}

// fails notes that the holder did not answer a call that began at a time, or answered that its tenure is not confirmed.
// This instance takes the tag if etcd had shown here before that the holder has the tag still, and has answered here
// since: for silentFor where the holder did not answer, and its tenure is no longer young, and for half of the hold
// where it did. In another room than the tag's home it has any instance of the home do that, young or not.
func (p *passed) fails(began time.Time, answered bool, err error) {
	p.mu.Lock()
	first := p.mu.first
	p.mu.Unlock()
	if p.holder.Nonce == "" {
		p.unanswered(err)
	}
	if first.IsZero() || !began.After(first) {
		return
	}
	least := silentFor
	if answered {
		least = p.holder.Hold.Duration() / 2
	}
	if time.Since(first) < least || !answered && !p.elsewhere() && p.tags.instance.Sticky(p.name, &p.holder) {
		return
	}
	if p.state.Swap(takes) != takes { // where instances cannot call each other, of TLS say, this comes again and again
		p.unanswered(err)
	}
}

func (p *passed) unanswered(err error) {
	p.tags.lines.silent.Log(time.Now(), p.tags.log.Warn, "another instance does not answer the calls for an "+
		"ordered tag that this one passes on: the tag gets another holder, or is asked for elsewhere", "tag",
		p.name, "instance", p.holder.Instance, "address", p.holder.Address, "error", err)
}

// look reads the holder's key after a pause, for all callers that wait for it. It returns allocator.ErrClosed if the
// tag has another issuer now, and nil if it is as it was.
func (p *passed) look(ctx context.Context) error {
	l := p.tags.loads.share(p.name, func(l *load) (issuer, error) { return p.read(ctx, l) })
	select {
	case <-l.done:
		if l.err == nil && l.tag != issuer(p) {
			return allocator.ErrClosed
		}
		return l.err
	case <-ctx.Done():
		if p.holder.Nonce == "" {
			return p.late(ctx)
		}
		return allocator.Errorf(allocator.Unavailable, "tag %s: it was not read who issues its IDs before the "+
			"caller's deadline: %w", p.name, context.Cause(ctx))
	}
}

// read returns p if its holder has the tag still, and otherwise the tag's next issuer. It goes on when ctx ends, as
// reread does.
func (p *passed) read(ctx context.Context, l *load) (issuer, error) {
	m, work := p.tags, context.WithoutCancel(ctx)
	work, cancel := context.WithTimeout(work, ledger.LongestWork)
	defer cancel()
	defer context.AfterFunc(m.background, cancel)()
	p.mu.Lock()
	pause := min(leastPause<<min(p.mu.looks, 10), longestPause) - time.Since(p.mu.last)
	p.mu.Unlock()
	if !store.Sleep(work, pause) {
		return nil, allocator.ErrClosed
	}
	if p.state.Load() != takes && m.memory.get(string(p.name)) == issuer(p) {
		holder, err := m.instance.Holder(work, p.name, p.home)
		same := holder != nil && holder.Nonce == p.holder.Nonce
		p.looked(err == nil && same)
		if err != nil || same {
			return p, err
		}
	}
	if p.holder.Nonce == "" { // a home that is lost may be that of many tags, beside which other tags are read
		select {
		case m.loads.homes <- struct{}{}:
			defer func() { <-m.loads.homes }()
		case <-work.Done(): // as the reading finds, too
		}
	}
	return m.rereadNow(work, l, p)
}

// looked notes a look at the holder's key.
func (p *passed) looked(same bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.looks++
	p.mu.last = time.Now()
	switch {
	case !same:
		p.mu.first = time.Time{}
	case p.mu.first.IsZero() && p.state.Load() != asks: // a call that was answered meanwhile makes it no evidence
		p.mu.first = p.mu.last
	}
}

func (p *passed) Text() *texts.Text { return p.text }

func (p *passed) Next(ctx context.Context) (id int64, err error) {
	err = p.pass(ctx, 1, func(alone context.Context) (err error) {
		if p.state.Load() != asks || time.Now().UnixNano() < p.alone.Load() {
			id, err = p.next(alone)
		} else {
			id, err = p.join(ctx)
		}
		return err
	})
	return id, err
}

func (p *passed) NextN(ctx context.Context, n int64, dst []allocator.Run) ([]allocator.Run, error) {
	return p.batch(ctx, &marchv1.NextBatchRequest{Tag: string(p.name), Count: n}, dst)
}

// NextRun implements issuer. The holder counts what it skips.
func (p *passed) NextRun(ctx context.Context, n int64) (run allocator.Run, skipped int64, err error) {
	runs, err := p.batch(ctx, &marchv1.NextBatchRequest{Tag: string(p.name), Count: n, Contiguous: true}, nil)
	if err == nil && len(runs) != 1 {
		err = allocator.Errorf(allocator.Internal, "instance %s answered with %d runs", p.holder.Instance, len(runs))
	}
	if err != nil {
		return run, 0, err
	}
	return runs[0], 0, nil
}

func (p *passed) batch(ctx context.Context, r *marchv1.NextBatchRequest, dst []allocator.Run) ([]allocator.Run, error) {
	err := p.pass(ctx, r.GetCount(), func(ctx context.Context) error {
		answer, err := p.to.NextBatch(ctx, r)
		dst = api.AppendRuns(dst, answer.GetRuns())
		return err
	})
	return dst, err
}

// prepare implements issuer: what can fail is the holder's to know.
func (p *passed) prepare(context.Context, int64) error { return nil }

func (p *passed) lease(context.Context, *tags, *marchv1.LeaseRequest) (*marchv1.LeaseResponse, error) {
	return nil, &allocator.OrderedError{Tag: p.name}
}

func (p *passed) Warm(context.Context) error { return nil }

func (p *passed) update(_ *tags, settings record.TagSettings) (keeps bool, err error) {
	return settings.StrictOrder != "" && settings.Home == p.home && p.text.Is(settings.Format, settings.KeyCheck), nil
}

func (p *passed) report(m *tags, _ *round, _ time.Time) { m.scan.see(p, p.totals()) }

func (p *passed) totals() totals { return totals{asked: p.asked.Load()} }

func (p *passed) CloseUnused(after time.Duration) bool {
	if time.Since(time.Unix(0, p.used.Load())) < after {
		return false
	}
	p.Close()
	return true
}

// Close implements issuer. Calls under way are answered as long as the holder has the tag.
func (p *passed) Close() {
	if !p.closed.Swap(true) {
		p.tags.peers.leave(p.to)
	}
}

// peers has the connections to other instances.
type peers struct {
	*process
	asking sync.WaitGroup // for together
	mu     struct {
		sync.Mutex
		all map[string]*neighbour // by room, name and address
	}
}

// neighbour is the connection to another instance.
type neighbour struct {
	marchv1.IDServiceClient
	conn grpc.ClientConnInterface
	uses int // how many issuers pass calls on by it; guarded by peers
}

// maxPeers bounds the connections that no issuer uses: instances come and go.
const maxPeers = 256

// dial returns a connection to an instance. Under TLS its certificate must name the instance.
func (p *peers) dial(room allocator.Room, name allocator.Instance, address string) (*neighbour, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := string(room) + "/" + string(name) + " " + address
	to := p.mu.all[key]
	if to == nil {
		options := append(serve.CallsOut(p.cfg.Tracer), grpc.WithIdleTimeout(time.Minute))
		options = append(options, p.cfg.Peers.InstanceOptions(string(room), string(name))...)
		conn, err := p.cfg.Dial(address, options...)
		if err != nil {
			return nil, err
		}
		if p.mu.all == nil || len(p.mu.all) >= maxPeers {
			p.closeLocked()
		}
		to = &neighbour{IDServiceClient: marchv1.NewIDServiceClient(conn), conn: conn}
		p.mu.all[key] = to
	}
	to.uses++
	return to, nil
}

// leave notes that an issuer no longer uses a connection.
func (p *peers) leave(to *neighbour) {
	p.mu.Lock()
	defer p.mu.Unlock()
	to.uses--
}

// close closes the connections, of which no call passes on anything any more.
func (p *peers) close() {
	p.asking.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, to := range p.mu.all {
		to.uses = 0
	}
	p.closeLocked()
}

// closeLocked closes the connections that no issuer uses. The lock is held.
func (p *peers) closeLocked() {
	kept := make(map[string]*neighbour)
	for key, to := range p.mu.all {
		if to.uses > 0 {
			kept[key] = to
		} else if c, ok := to.conn.(io.Closer); ok {
			_ = c.Close()
		}
	}
	p.mu.all = kept
}

// reread reads a tag again, and puts its issuer in the place of one, for all callers that wait for that. It goes on
// when ctx ends, for ledger.LongestWork at most and not after the server has ended.
func (m *tags) reread(ctx context.Context, name allocator.Tag, old issuer) *load {
	return m.loads.share(name, func(l *load) (issuer, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ledger.LongestWork)
		defer cancel()
		defer context.AfterFunc(m.background, cancel)()
		return m.rereadNow(ctx, l, old)
	})
}

// rereadNow is reread in a load that is under way.
func (m *tags) rereadNow(ctx context.Context, l *load, old issuer) (issuer, error) {
	if m.memory.get(string(l.name)) != old {
		return nil, allocator.ErrClosed // it went meanwhile: callers that wait for the tag look again
	}
	leave, err := m.loads.enter(ctx, l.name)
	if err != nil {
		return nil, err
	}
	defer leave()
	return m.readTag(ctx, l)
}

// together passes calls for single IDs of an ordered tag on, those that wait at the same time as one call for as many
// IDs. The holder takes these after each of the calls came in, so the calls keep their order.
type together struct {
	sync.Mutex
	waiting []*single
	asking  bool // a goroutine passes calls on: one at a time, as a trip costs more than the wait for the one before
}

// single is a call for one ID.
type single struct {
	ctx  context.Context //nolint:containedctx // the call's own
	done chan struct{}   // closed when these are there:
	id   int64
	err  error
}

// errAlone is the error of a call that is to be made by itself.
var errAlone = errors.New("room: the holder refused the call that it shared")

// aloneFor is how long calls are not shared after one that was.
const aloneFor = 10 * time.Second

// join returns an ID that the holder gives. A request has most() from its sending on, however long the call waited.
func (p *passed) join(ctx context.Context) (int64, error) {
	s := &single{ctx: ctx, done: make(chan struct{})}
	p.together.Lock()
	p.together.waiting = append(p.together.waiting, s)
	if !p.together.asking {
		p.together.asking = true
		p.tags.peers.asking.Go(p.askAll)
	}
	p.together.Unlock()
	select {
	case <-s.done:
		return s.id, s.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// next asks the holder for one ID.
func (p *passed) next(ctx context.Context) (int64, error) {
	answer, err := p.to.Next(ctx, &marchv1.NextRequest{Tag: string(p.name)})
	return answer.GetId(), err
}

// askAll passes calls on while any wait.
func (p *passed) askAll() {
	for {
		p.together.Lock()
		var list []*single
		for len(p.together.waiting) > 0 && len(list) < api.MaxBatch {
			if s := p.together.waiting[0]; s.ctx.Err() == nil {
				list = append(list, s)
			}
			p.together.waiting = p.together.waiting[1:]
		}
		if len(list) == 0 {
			p.together.asking = false
			p.together.Unlock()
			return
		}
		p.together.Unlock()
		p.share(list)
	}
}

// share makes one call for several. Where the holder refuses it, each of them is to be made by itself: fewer IDs than
// all of them want may be left.
func (p *passed) share(list []*single) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(list[0].ctx), p.most())
	defer cancel()
	defer context.AfterFunc(p.tags.background, cancel)()
	ctx = metadata.AppendToOutgoingContext(ctx, passedOn, string(p.tags.cfg.Room))
	if len(list) == 1 {
		defer context.AfterFunc(list[0].ctx, cancel)()
		list[0].id, list[0].err = p.next(ctx)
		close(list[0].done)
		return
	}
	answer, err := p.to.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: string(p.name), Count: int64(len(list))})
	runs := api.AppendRuns(nil, answer.GetRuns())
	left := int64(len(list))
	for _, run := range runs {
		if run.Count < 1 || run.Count > left {
			left = -1
			break
		}
		left -= run.Count
	}
	switch kind := allocator.KindOf(err); {
	case err == nil && left != 0:
		err = allocator.Errorf(allocator.Internal, "instance %s answered with other than %d IDs", p.holder.Instance,
			len(list))
	case api.FromServer(err) && kind != allocator.Unavailable && kind != allocator.Conflict:
		err = errAlone
	}
	if err == nil {
		k := 0
		for _, run := range runs {
			for id := range run.IDs() {
				list[k].id = id
				k++
			}
		}
	}
	for _, s := range list {
		s.err = err
		close(s.done)
	}
}

package room

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/minutes"
	"github.com/march-id/march/internal/operator"
	"github.com/march-id/march/internal/serve"
)

// operators is the service of a room for operators, and what it remembers for them.
type operators struct {
	marchv1.UnimplementedRoomServiceServer

	*process
	tags    *tags
	health  *health
	rates   rates
	history minutes.History
}

func (o *operators) GetInstance(context.Context, *marchv1.GetInstanceRequest) (*marchv1.GetInstanceResponse, error) {
	last, contact := o.tags.currentRound(), o.ledger.Contact()
	counters, _ := o.tags.memory.size()
	p := &marchv1.InstanceStatus{
		Room: string(o.cfg.Room), Instance: string(o.cfg.Name), Build: o.cfg.Build, Started: timestamppb.New(o.started),
		Version: o.instance.Version(), Issued: o.issuedHere(), Held: last.held, Tags: int64(counters),
		ReserveTag: string(last.scarce),
	}
	if last.scarce != "" {
		p.Reserve = durationpb.New(last.reserve)
	}
	if !contact.Last.IsZero() {
		p.EtcdLatency, p.EtcdLastContact = durationpb.New(contact.Latency), timestamppb.New(contact.Last)
	}
	if !contact.Away.IsZero() {
		p.EtcdAwaySince = timestamppb.New(contact.Away)
	}
	checks, lacks := o.health.readiness()
	if err := serve.Failed(checks); err != nil {
		p.NotReady = err.Error()
	}
	p.Barred, p.Problems, p.Certificates = o.barred(), o.health.problemsOf(lacks), o.cfg.Diagnose.Certificates()
	return &marchv1.GetInstanceResponse{Status: p, Rates: o.rates.get()}, nil
}

func (o *operators) GetInstanceHistory(_ context.Context,
	r *marchv1.GetInstanceHistoryRequest) (*marchv1.GetInstanceHistoryResponse, error) {
	back, step, err := minutes.Check(r.GetMinutes(), r.GetStep())
	if err != nil {
		return nil, err
	}
	first, all, tags := o.history.Last(o.instance.Now(), back, step)
	return &marchv1.GetInstanceHistoryResponse{First: timestamppb.New(first), All: all, Tags: tags}, nil
}

func (o *operators) GetChain(_ context.Context, r *marchv1.GetChainRequest) (*marchv1.GetChainResponse, error) {
	tag, err := allocator.ParseTag(r.GetTag())
	if err != nil {
		return nil, err
	}
	chain := o.tags.counter(string(tag))
	if chain == nil {
		return nil, allocator.Errorf(allocator.NotFound, "instance %s of room %s holds no chain of tag %s",
			o.cfg.Name, o.cfg.Room, tag)
	}
	return &marchv1.GetChainResponse{Chain: o.chainToProto(chain)}, nil
}

func (o *operators) ListChains(_ context.Context, r *marchv1.ListChainsRequest) (*marchv1.ListChainsResponse, error) {
	size, err := api.PageSize(r.GetPageSize())
	if err != nil {
		return nil, err
	}
	page, more := o.tags.counters(allocator.Tag(r.GetPageToken()), size)
	answer := &marchv1.ListChainsResponse{}
	for _, c := range page {
		answer.Chains = append(answer.Chains, o.chainToProto(c))
	}
	if more {
		answer.NextPageToken = string(page[len(page)-1].Tag())
	}
	return answer, nil
}

func (o *operators) chainToProto(chain *counter) *marchv1.Chain {
	c := o.tags.gates.statusOf(chain)
	p := &marchv1.Chain{
		Tag: string(c.Tag), Room: string(o.cfg.Room), Instance: string(o.cfg.Name),
		Issued: c.Issued, Held: c.Held, Dropped: c.Dropped, Step: c.Target, Peak: c.Peak,
		Reserve: durationpb.New(c.Lasts), Refills: c.Refills, Waits: c.Waits, Version: c.Version,
		Used: timestamppb.New(c.Used),
	}
	if held := chain.Segments(); len(held) > 0 {
		p.First, p.End = held[0].First, held[len(held)-1].Last()+1
	}
	if c.Failure != nil {
		p.Failure = c.Failure.Error()
	}
	return p
}

func (o *operators) UpdateTag(ctx context.Context, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	return operator.UpdateTag(ctx, o.admin, r)
}

// SkipTag implements RoomService. A request without rooms skips for this room only.
func (o *operators) SkipTag(ctx context.Context, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	if len(r.GetRooms()) == 0 {
		r.Rooms = []string{string(o.cfg.Room)}
	}
	return operator.SkipTag(ctx, o.admin, r)
}

func (o *operators) PrescaleTag(ctx context.Context,
	r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	return operator.PrescaleTag(ctx, o.admin, r)
}

// rateEvery is how often the rate of all chains together is measured. The room
// remembers api.RatesKept rates, so that every console sees the rates of the last
// minutes, and all consoles see the same.
const rateEvery = time.Second

// rates remembers how many IDs callers took per second in the last minutes.
type rates struct {
	mu struct {
		sync.Mutex
		list   []float64             // the oldest first
		issued int64                 // in total, at the last note
		leased int64                 // of these, to callers that issue them themselves
		coming [api.RateOver]float64 // of leases, in each of the seconds to come
		at     time.Time             // the time of the last note
	}
}

// start begins at a time before which nothing was issued.
func (r *rates) start(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.at = now
}

// note adds a rate from issued, the number of IDs issued until now, of which callers leased some. If a call comes
// late, its rate counts for all seconds since the last one. The instance does not see when callers take what they
// lease: it counts as taken evenly over the seconds that follow, for which clients lease.
func (r *rates) note(now time.Time, issued, leased int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed := now.Sub(r.mu.at)
	if passed <= 0 {
		return
	}
	more := leased - r.mu.leased
	rate := float64(issued-r.mu.issued-more) / passed.Seconds()
	for k := range r.mu.coming {
		r.mu.coming[k] += float64(more) / api.RateOver
	}
	for range min(max(int((passed+rateEvery/2)/rateEvery), 1), api.RatesKept) {
		r.mu.list = append(r.mu.list, rate+r.mu.coming[0])
		copy(r.mu.coming[:], r.mu.coming[1:])
		r.mu.coming[api.RateOver-1] = 0
	}
	r.mu.list = slices.Delete(r.mu.list, 0, max(len(r.mu.list)-api.RatesKept, 0))
	r.mu.issued, r.mu.leased, r.mu.at = issued, leased, now
}

// get returns the rates, the oldest first.
func (r *rates) get() []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.mu.list)
}

// issuedHere returns how many IDs this instance issued. It never falls, though those of a call that another instance
// answered are taken off before they are counted.
func (p *process) issuedHere() int64 {
	n := p.issued.Load() - p.elsewhere.Load()
	for most := p.shown.Load(); ; most = p.shown.Load() {
		if n <= most || p.shown.CompareAndSwap(most, n) {
			return max(n, most)
		}
	}
}

// measure measures the rate until ctx ends.
func (o *operators) measure(ctx context.Context) error {
	return every(ctx, rateEvery, func() {
		now, leased := time.Now(), o.leased.Load() // never ahead of what was issued
		o.rates.note(now, o.issuedHere(), leased)
		o.remember(o.instance.Now())
	})
}

// remember adds the present state to the history, and that of the busiest tags where a
// minute has ended. It visits no chains: the scan does.
func (o *operators) remember(now time.Time) {
	last := o.tags.scan.lastRound()
	contact := o.ledger.Contact()
	r := minutes.Reading{Issued: o.issuedHere(), Reserve: minutes.Unknown, Latency: contact.Latency,
		Away: !contact.Away.IsZero()}
	if last.scarce != "" {
		r.Reserve = last.reserve
	}
	if !o.history.Ends(now) {
		o.history.Note(r)
		return
	}
	o.history.End(now, r, o.readTags(last.busiest))
}

// readTags reads the busiest tags, and those that have a history, as far as these are in
// memory.
func (o *operators) readTags(busiest []seen) []minutes.TagReading {
	var list []minutes.TagReading
	for _, c := range busiest[:min(len(busiest), minutes.MaxTags)] {
		list = append(list, o.readBusy(c.chain))
	}
	for _, p := range o.windows.pools() {
		for tag := range p.all {
			list = append(list, tag.reading())
		}
	}
	slices.SortStableFunc(list, func(a, b minutes.TagReading) int { return cmp.Compare(b.Peak, a.Peak) })
	for _, tag := range o.history.Tags() {
		if chain := o.tags.counter(string(tag)); chain != nil {
			list = append(list, o.readBusy(chain))
		}
	}
	return list
}

// readBusy reads a counter.
func (o *operators) readBusy(chain *counter) minutes.TagReading {
	status := o.tags.gates.statusOf(chain)
	r := minutes.TagReading{Tag: status.Tag, Issued: status.Issued, Reserve: minutes.Unknown, Peak: status.Peak}
	if status.Peak > 0 {
		r.Reserve = status.Lasts
	}
	return r
}

// failed counts a call for IDs that failed, and returns its error as the caller is to have it. A caller's mistake
// is not counted: neither a request that is not valid, nor a tag that does not exist.
func (s *Server) failed(ctx context.Context, tag string, err error) error {
	if err == nil {
		return nil
	}
	switch kind := allocator.KindOf(err); {
	case kind == allocator.Invalid, kind == allocator.NotFound, ctx.Err() != nil &&
		context.Cause(ctx) == context.Canceled:
	default:
		s.operators.history.Fail(allocator.Tag(tag))
	}
	return s.forCaller(err)
}

// forCaller returns an error that the caller can do nothing about as Unavailable: another instance may answer, or
// this one later. Where etcd is, and what etcd says of this instance's user, is in the log and in the instance's
// problems only: that would read as if it were of the caller.
func (p *process) forCaller(err error) error {
	if err == nil {
		return nil
	}
	if _, unreadable := errors.AsType[*record.KeyError](err); unreadable {
		return &allocator.Error{Kind: allocator.Unavailable, Msg: err.Error(), Err: err}
	}
	switch allocator.KindOf(err) {
	case allocator.Denied, allocator.Unauthenticated:
		return allocator.Errorf(allocator.Unavailable,
			"etcd refuses this instance of room %s; the instance's log says why", p.cfg.Room)
	case allocator.Refused:
		// What stops the whole instance is not the caller's. What one tag refuses is, or is an operator's to
		// agree to: other instances refuse it, too.
		_, ahead := errors.AsType[*worker.ClockError](err)
		_, unusable := errors.AsType[*ledger.UnusableError](err)
		_, unconfirmed := errors.AsType[*ledger.UnconfirmedError](err)
		if ahead || unusable || unconfirmed || p.cannotLease() != nil {
			return &allocator.Error{Kind: allocator.Unavailable, Msg: err.Error(), Err: err}
		}
	}
	if etcd, is := errors.AsType[*store.EndpointError](err); is {
		says := "etcd does not answer"
		if errors.Is(etcd, store.ErrNoSpace) {
			says = store.ErrNoSpace.Error()
		}
		return &allocator.Error{Kind: allocator.KindOf(err), Msg: strings.ReplaceAll(err.Error(), etcd.Error(), says),
			Err: err}
	}
	return err
}

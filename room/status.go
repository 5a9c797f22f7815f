package room

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/serve"
)

// Reasons for which an instance is not ready because of its own state.
var (
	errStarting = errors.New("starting")
	errStopping = &allocator.Error{Kind: allocator.Unavailable, Msg: "this instance is stopping; call another"}
)

// health says whether the instance is ready, and what its problems are.
type health struct {
	*process
	tags      *tags
	grpc      *grpchealth.Server
	firstSeen problem.Log // since when each problem exists
}

// status says whether the instance serves calls.
type status struct {
	started atomic.Bool
	stop    chan struct{} // closed when the stop begins
	once    sync.Once
}

// stopped begins the stop.
func (s *status) stopped() { s.once.Do(func() { close(s.stop) }) }

// get returns errStarting, errStopping or nil.
func (s *status) get() error {
	if err := s.stopping(); err != nil || s.started.Load() {
		return err
	}
	return errStarting
}

// stopping returns the error for calls that arrive while the instance stops.
func (s *status) stopping() error {
	select {
	case <-s.stop:
		return errStopping
	default:
		return nil
	}
}

// Ready returns why the instance cannot issue IDs, or nil. The instance is ready
// when it has registered and warmed its tags. Without etcd it stays ready while it
// holds IDs that it may issue.
func (s *Server) Ready() error { return serve.Failed(s.health.checks()) }

// checks are the checks of Ready.
func (h *health) checks() []serve.Check {
	checks, _ := h.readiness()
	return checks
}

// readiness returns the checks of Ready. If the instance can lease nothing and is not ready,
// lacks is the problem that says what is missing.
func (h *health) readiness() (checks []serve.Check, lacks *marchv1.Problem) {
	record, _ := h.ledger.Layout()
	layout := serve.Check{Name: "layout", Note: fmt.Sprintf("version %d, boundary %d",
		record.Layout.Version, record.Layout.Boundary)}
	if _, ok := record.Layout.Ranges[h.cfg.Room]; !ok {
		layout.Err = allocator.Errorf(allocator.NoRange, "room %s has no range in layout version %d",
			h.cfg.Room, record.Layout.Version)
	}
	serving := serve.Check{Name: "serving", Err: h.status.get()}
	if serving.Err != nil { // before Join there is no instance
		return []serve.Check{serving, layout}, nil
	}
	counters, lacks := h.checkCounters()
	checks = []serve.Check{serving, layout, counters}
	if can, err := h.windows.Trouble(); err != nil || can {
		timed := serve.Check{Name: timeOrdered, Family: true, Err: err}
		if can && err != nil {
			timed.Err, timed.Note = nil, "not of all tags: "+err.Error()
		}
		if counters, _ := h.tags.memory.size(); can && counters == 0 { // callers here ask for time-ordered IDs only
			checks[2] = serve.Check{Name: ofCounters, Family: true, Note: "none in memory"}
			lacks = nil
		}
		checks = append(checks, timed)
	}
	if b, is := h.instance.Barred(); is {
		checks = append(checks, serve.Check{Name: "recover", Note: fmt.Sprintf(
			"%s runs a recover that has barred this instance from leasing since %s", b.By,
			b.Since.UTC().Format(time.RFC3339))})
	}
	return checks, lacks
}

// The families of IDs, as /readyz?verbose, gRPC's health service and the metrics name them.
const (
	ofCounters  = "counters"
	timeOrdered = "time-ordered"
)

// checkCounters checks whether this instance can lease IDs of counters, and if not, for how long it can issue
// them. It cannot if it can lease nothing, and no tag in use has IDs
// for longer than ready-reserve. A tag that is at its own limit does not count. lacks
// is as readiness returns it.
func (h *health) checkCounters() (ids serve.Check, lacks *marchv1.Problem) {
	ids = serve.Check{Name: ofCounters, Family: true, Note: "etcd answers and takes writes"}
	why := h.cannotLease()
	if why == nil {
		return ids, nil
	}
	r := h.tags.currentRound()
	lasts := ""
	if r.busy {
		lasts = fmt.Sprintf(", for %v", short(r.longest))
		if r.scarce != "" {
			lasts += fmt.Sprintf(" (tag %s for %v)", r.scarce, short(r.reserve))
		}
	}
	switch {
	case r.held == 0:
		lacks, lasts = problem.New(problem.NoIDs, h.id(), time.Time{}), ""
	case !h.tags.may(r):
		lacks, lasts = problem.New(problem.HeldBack, h.id(), time.Time{}, "hold", h.cfg.Hold), ""
	case r.busy && r.longest <= h.cfg.ReadyReserve:
		lacks = problem.New(problem.ReserveLow, h.id(), time.Time{}, "reserve", h.cfg.ReadyReserve)
	default:
		ids.Note = "only those that are held" + lasts + ": " + why.Error()
		return ids, nil
	}
	_, lacking, _ := strings.Cut(lacks.GetWhat(), ": ") // the instance says it of itself
	ids.Err = allocator.Errorf(allocator.KindOf(why), "%s%s, and %w", lacking, lasts, why)
	return ids, lacks
}

// short rounds a duration for people.
func short(d time.Duration) time.Duration {
	if d > time.Minute {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond)
}

// cannotLease returns why this instance can lease nothing, or nil.
func (p *process) cannotLease() error {
	if err := p.away(); err != nil {
		return err
	}
	trouble := p.instance.Trouble()
	if trouble.Err == nil || trouble.Since.IsZero() {
		return trouble.Err
	}
	return allocator.Errorf(allocator.KindOf(trouble.Err), "nothing can be leased since %s: %w",
		trouble.Since.UTC().Format(time.RFC3339), trouble.Err)
}

// away returns since when and why etcd has not answered, or nil while it answers.
func (p *process) away() error {
	contact := p.ledger.Contact()
	if contact.Away.IsZero() {
		return nil
	}
	return allocator.Errorf(allocator.Unavailable, "etcd has not answered since %s: %v",
		contact.Away.UTC().Format(time.RFC3339), contact.Cause)
}

// healthEvery is how late gRPC's health service may be.
const healthEvery = time.Second

// watchHealth keeps gRPC's health service up to date until ctx ends.
func (h *health) watchHealth(ctx context.Context) error {
	said := false // whether the log has said that nothing can be issued
	var changes problem.Changes
	return every(ctx, healthEvery, func() {
		checks, lacks := h.readiness()
		err := serve.Failed(checks)
		h.setHealth(checks)
		if h.status.get() != nil {
			return // a start or a stop, which has its own log line
		}
		list := h.problemsOf(lacks)
		changes.Write(h.log, list, time.Now())
		switch {
		case err != nil && !said:
			said = h.lines.unready.Log(time.Now(), h.log.Warn, "no IDs can be issued", "error", err, "problems",
				problem.AsLines(list))
		case err == nil && said:
			said = false
			h.log.Info("the instance is ready again")
		}
	})
}

// reportHealth tells gRPC's health service whether the instance is ready, and
// returns what Ready does.
func (h *health) reportHealth() error {
	checks := h.checks()
	h.setHealth(checks)
	return serve.Failed(checks)
}

// setHealth sets the states of gRPC's health service: of the whole, and of each family.
func (h *health) setHealth(checks []serve.Check) {
	set := func(service string, why error) {
		state := healthpb.HealthCheckResponse_SERVING
		if why != nil {
			state = healthpb.HealthCheckResponse_NOT_SERVING
		}
		h.grpc.SetServingStatus(service, state)
	}
	why := serve.Failed(checks)
	for _, service := range []string{"", marchv1.IDService_ServiceDesc.ServiceName,
		marchv1.RoomService_ServiceDesc.ServiceName} {
		set(service, why)
	}
	for family, err := range families(checks) {
		set(family, err)
	}
}

// families returns why the instance cannot issue IDs of each family. Time-ordered IDs for which no caller asks are
// as ready as the instance.
func families(checks []serve.Check) map[string]error {
	all := map[string]error{ofCounters: serve.Failed(checks), timeOrdered: serve.Failed(checks)}
	for _, c := range checks {
		if c.Family {
			all[c.Name] = c.Err
		}
	}
	return all
}

// problems lists the problems of this instance, the worst first.
func (h *health) problems() []*marchv1.Problem {
	_, lacks := h.readiness()
	return h.problemsOf(lacks)
}

// id is how lists of problems name this instance.
func (h *health) id() string { return string(h.cfg.Room) + "/" + string(h.cfg.Name) }

// problemsOf is problems if readiness has already found what the instance lacks.
func (h *health) problemsOf(lacks *marchv1.Problem) []*marchv1.Problem {
	list := h.causes()
	if b, is := h.instance.Barred(); is {
		list = append(list, problem.New(problem.Barred, h.id(), b.Since, "by", b.By))
	}
	if lacks != nil && len(list) > 0 {
		problem.Hit(list[0], lacks)
	} else if lacks != nil {
		list = append(list, lacks)
	} else if can, err := h.windows.Trouble(); err != nil && h.status.get() == nil {
		list = append(list, h.noTimeOrdered(can, err))
	}
	if off := h.windows.ClockOff(); off != 0 {
		side := "ahead of"
		if off < 0 {
			side = "behind"
		}
		value := fmt.Sprintf("%v %s", off.Abs(), side)
		list = append(list, problem.New(problem.Clock, h.id(), time.Time{}, "off", value))
	}
	list = append(list, h.damagedTags()...)
	list = append(list, h.usedUp()...)
	list = append(list, h.early()...)
	missing, more := h.instance.WrongRights()
	wrong := func(kind *problem.Row, rights []store.Right, between string) {
		texts := make([]string, len(rights))
		for k, right := range rights {
			texts[k] = right.String()
		}
		if len(rights) > 0 {
			list = append(list, problem.New(kind, h.id(), time.Time{}, "rights", strings.Join(texts, between)))
		}
	}
	wrong(problem.EtcdRights, missing, ", nor ")
	wrong(problem.EtcdRightsMore, more, ", and ")
	for _, p := range h.cfg.Access.Problems() {
		p.Hits = []string{h.id()}
		list = append(list, p)
	}
	list = append(list, problem.Safety("instance "+h.id(), h.id(), h.cfg.Insecure, h.cfg.TLS.Broken())...)
	return h.firstSeen.Note(problem.Group(list), time.Now())
}

// causes lists what keeps this instance from leasing, the worst first.
func (h *health) causes() (list []*marchv1.Problem) {
	halt, halted := h.ledger.Halted()
	cause := h.cause(halted)
	if cause.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY {
		list, cause = append(list, cause), nil
	}
	if halted {
		list = append(list, problem.New(problem.Halted, "", halt.Time, "by", halt.By, "why", halt.Why))
	}
	if cause != nil {
		list = append(list, cause)
	}
	if stored, _ := h.ledger.Layout(); stored.Layout.Version > 0 {
		if _, has := stored.Layout.Ranges[h.cfg.Room]; !has {
			list = append(list, problem.New(problem.NoRange, string(h.cfg.Room), time.Time{}, "layout",
				stored.Layout.Version))
		}
	}
	return list
}

// noTimeOrdered says why some time-ordered tag issues nothing; can is whether another one does.
func (h *health) noTimeOrdered(can bool, err error) *marchv1.Problem {
	if back, is := errors.AsType[*timeid.RollbackError](err); is {
		return problem.New(problem.ClockBack, h.id(), time.Time{}, "back",
			(time.Duration(back.Last-back.Now) * time.Millisecond).Round(time.Second))
	}
	if ahead, is := errors.AsType[*worker.ClockError](err); is {
		return problem.New(problem.ClockAhead, h.id(), time.Time{}, "ahead", ahead.Ahead.Round(time.Second))
	}
	if busy, is := errors.AsType[*worker.BusyError](err); is && busy.By != "" && !busy.Pinned {
		bits := busy.Worker.Bits
		p := problem.New(problem.NoWorker, problem.Slice(h.cfg.Room, bits), time.Time{}, "in", h.cfg.Room, "bits", bits,
			"why", err)
		p.Hits = []string{h.id()}
		return p
	}
	if can {
		return problem.New(problem.SomeTimeOrdered, h.id(), time.Time{}, "why", err)
	}
	return problem.New(problem.TimeOrdered, h.id(), time.Time{}, "why", err)
}

// damaged has the tags of which nothing can be leased because a key of theirs cannot be read:
// the tag's settings or its mark. Trouble has the keys that stop all tags.
type damaged struct {
	mu struct {
		sync.Mutex
		tags map[allocator.Tag]damagedTag
	}
}

// damagedTag is the key that stops a tag, since when this instance knows it, and when it last
// met the key.
type damagedTag struct {
	key         record.KeyError
	since, last time.Time
}

const (
	// maxDamaged bounds the tags of damaged.
	maxDamaged = 20
	// damagedFor is how long a key counts as damaged if no caller asks for its tag.
	damagedFor = 10 * time.Minute
)

// note notes whether a tag could be read or leased: err is nil if so.
func (d *damaged) note(tag allocator.Tag, err error) {
	key, is := errors.AsType[*record.KeyError](err)
	is = is && key.Tag() == tag // other keys stop all tags, and are Trouble's
	d.mu.Lock()
	was, had := d.mu.tags[tag]
	now := time.Now()
	switch {
	case !is && err == nil && had:
		delete(d.mu.tags, tag)
	case is && had:
		d.mu.tags[tag] = damagedTag{*key, was.since, now}
	case is && len(d.mu.tags) < maxDamaged:
		if d.mu.tags == nil {
			d.mu.tags = make(map[allocator.Tag]damagedTag)
		}
		d.mu.tags[tag] = damagedTag{*key, now, now}
	}
	d.mu.Unlock()
}

// damagedTags lists the keys that stop a single tag.
func (h *health) damagedTags() (list []*marchv1.Problem) {
	d := &h.tags.damaged
	d.mu.Lock()
	defer d.mu.Unlock()
	for tag, t := range d.mu.tags {
		if time.Since(t.last) > damagedFor {
			delete(d.mu.tags, tag)
			continue
		}
		list = append(list, problem.OfKey(&t.key, h.ledger.Damage(t.key.Key, ""), t.since))
	}
	slices.SortFunc(list, func(a, b *marchv1.Problem) int { return strings.Compare(a.GetOf(), b.GetOf()) })
	return list
}

// usedUp lists the tags in use that have no ID left.
func (h *health) usedUp() (list []*marchv1.Problem) {
	for _, c := range h.tags.scan.lastRound().used {
		row := problem.TagUsedUp
		if c.chain.period != (period.Period{}) {
			row = problem.PeriodUsedUp
		}
		p := problem.New(row, string(c.status.Tag), time.Time{}, "why", c.status.Failure)
		p.Hits = []string{h.id()}
		list = append(list, p)
	}
	return list
}

// early lists the tags that lease in a period that has not begun by this instance's clock.
func (h *health) early() (list []*marchv1.Problem) {
	for _, c := range h.tags.scan.lastRound().early {
		span, _ := c.chain.period.Of(c.status.Last)
		if !span.Begins.After(h.instance.Now()) {
			continue
		}
		p := problem.New(problem.PeriodAhead, string(c.status.Tag), time.Time{}, "period", span,
			"begins", span.Begins.UTC().Format(time.RFC3339))
		p.Hits = []string{h.id()}
		list = append(list, p)
	}
	return list
}

// logDropped logs that a tag is no longer in memory: it was deleted, or it cannot be read.
func (m *tags) logDropped(change ledger.TagChange) {
	if change.Err == nil {
		m.lines.deleted.Log(time.Now(), m.log.Info, "tag deleted", "tag", change.Name)
		return
	}
	m.lines.refused.Log(time.Now(), m.log.Error, "the IDs held of a tag are dropped: its settings cannot be read",
		"tag", change.Name, "error", change.Err)
}

// cause returns the problem, other than a halt, that keeps this instance from leasing,
// or nil.
func (h *health) cause(halted bool) *marchv1.Problem {
	if contact := h.ledger.Contact(); !contact.Away.IsZero() {
		return problem.Away(h.id(), "instance "+h.id(), "It leases nothing, and issues the IDs that it holds.",
			contact.Members, contact.Cause, contact.Away, h.ledger.Etcdctl())
	}
	trouble := h.instance.Trouble()
	if trouble.Err == nil || halted && allocator.KindOf(trouble.Err) == allocator.WentBack {
		return nil
	}
	since := trouble.Since
	if h.ledger.Unconfirmed() && since.IsZero() {
		since = h.started
	}
	return h.noLease(trouble.Err, since)
}

// ofJournal has the case of each fault of a journal.
var ofJournal = map[journal.Fault]*problem.Row{journal.Full: problem.JournalFull, journal.Denied: problem.JournalDenied,
	journal.Hangs: problem.JournalHangs, journal.Shared: problem.JournalShared, journal.Other: problem.JournalBroken}

// noLease says that the instance leases no tag because of err.
func (h *health) noLease(err error, since time.Time) *marchv1.Problem {
	id := h.id()
	if key, is := errors.AsType[*record.KeyError](err); is {
		return problem.OfKey(key, h.ledger.Damage(key.Key, ""), since)
	}
	if errors.Is(err, store.ErrNoSpace) {
		return problem.New(problem.EtcdFull, "", since, "revision", h.ledger.Revision(), "etcdctl",
			h.ledger.Etcdctl())
	}
	if unusable, is := errors.AsType[*ledger.UnusableError](err); is {
		return problem.New(problem.Unusable, "", since, "why", unusable)
	}
	if bare, is := errors.AsType[*ledger.UnconfirmedError](err); is {
		return problem.New(problem.Unconfirmed, string(bare.Room)+"/"+string(bare.Name), since)
	}
	if unwritable, is := errors.AsType[*journal.UnwritableError](err); is {
		return problem.New(ofJournal[unwritable.Fault()], id, unwritable.Since, "path", unwritable.Path,
			"folder", filepath.Dir(unwritable.Path), "why", unwritable.Err)
	}
	if other, is := errors.AsType[*record.OtherClusterError](err); is {
		return problem.New(problem.ForeignEtcd, id, since, "why", other.Answered())
	}
	switch kind, user := allocator.KindOf(err), h.ledger.EtcdUser(); {
	case kind == allocator.Unauthenticated && user != "":
		return problem.New(problem.EtcdPassword, id, since, "why", err, "etcdctl", h.ledger.Etcdctl(), "user", user)
	case kind == allocator.Unauthenticated, kind == allocator.Denied:
		return problem.New(problem.EtcdRefuses, id, since, "why", err)
	case kind == allocator.WentBack:
		return problem.New(problem.WentBack, id, since, "why", err)
	}
	return problem.New(problem.NoLease, id, since, "why", err)
}

package room

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	grpchealth "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/march-id/march/allocator"
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

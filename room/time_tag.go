package room

import (
	"context"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/worker"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/skew"
	"github.com/march-id/march/room/timetags"
)

// startTimes makes the tags of time-ordered IDs. Its error is Invalid.
func (s *Server) startTimes() error {
	cfg := worker.DefaultConfig()
	cfg.CallerWorkers = s.cfg.ClientWorkers
	cfg.PinnedWindow, cfg.AgreeClock, cfg.Logger = s.cfg.WorkerWindow, s.cfg.AgreeClock, s.log
	cfg.Span = s.workerSpan
	cfg.Now = s.instance.Now
	if now := skew.Now(); now != nil {
		cfg.Now = now
	}
	times := timetags.Config{Pin: s.cfg.Worker, Hold: s.cfg.Hold, Logger: s.log,
		Clock: func() int64 { return cfg.Now().UnixMilli() }}
	workers, err := worker.New(s.instance, cfg)
	if err == nil {
		times.Workers = workers
		s.instance.OnPeriod(workers.CheckClock)
		s.times = timetags.New(times)
	}
	return err
}

// pinned returns the number of a pin, or nil if none is chosen.
func pinned(p worker.Pin) *int64 {
	if number, is := p.Number(); is {
		return &number
	}
	return nil
}

// deletedTimes are the deleted tags of time-ordered IDs, of which a room that creates tags
// makes no counters. They are for clusters before `march cluster upgrade`: later a tombstone
// refuses that.
type deletedTimes struct {
	mu struct {
		sync.Mutex
		deletions int64                  // that this instance heard of
		read      int64                  // deletions + 1 as it was when tags was read, 0 for never
		tags      map[allocator.Tag]bool // not changed once it is here
	}
}

// changed notes that a tag was deleted.
func (d *deletedTimes) changed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.deletions++
}

// has reports whether a tag that does not exist was one of time-ordered IDs. Its error is
// that etcd cannot be read.
func (d *deletedTimes) has(ctx context.Context, a *admin.Admin, tag allocator.Tag) (bool, error) {
	if stored, _ := a.Ledger.Layout(); stored.Upgraded() {
		return false, nil
	}
	d.mu.Lock()
	tags, read, now := d.mu.tags, d.mu.read, d.mu.deletions+1
	d.mu.Unlock()
	if read == now {
		return tags[tag], nil
	}
	tags, err := a.DeletedTimeTags(ctx)
	if err != nil {
		return false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if now > d.mu.read {
		d.mu.tags, d.mu.read = tags, now
	}
	return tags[tag], nil
}

// timeTagChanged applies the settings of a tag of time-ordered IDs, or the deletion of a
// tag of any kind.
func (s *Server) timeTagChanged(change ledger.TagChange) {
	t := s.times.Get(string(change.Name))
	if t == nil {
		return
	}
	if change.Settings == nil || !t.Text().Is(change.Settings.Format, change.Settings.KeyCheck) ||
		t.Settings().Layout() != change.Settings.Time.Layout() { // or it was made anew
		s.times.Update(change.Name, nil)
		s.logDropped(change)
		return
	}
	s.times.Update(change.Name, change.Settings.Time)
	s.lines.updated.Log(time.Now(), s.log.Info, "tag updated", "tag", change.Name)
}

// leaseTime is Lease of a tag of time-ordered IDs.
func (s *Server) leaseTime(ctx context.Context, t *timetags.Tag, r *marchv1.WindowRequest) (*marchv1.TimeLease, error) {
	if r == nil {
		return nil, allocator.Errorf(allocator.Refused,
			"tag %s has time-ordered IDs, which are not leased in segments; call Next, NextBatch or Stream, "+
				"or use a client that takes windows", t.Name())
	}
	lease := &marchv1.TimeLease{Tag: api.TimeTagToProto(t.Settings().Config(0, timeid.Window{}))}
	nonce, proof := r.GetNonce(), r.GetHeld().GetNonce()
	switch n := len(nonce); {
	case n == 0:
		return lease, nil
	case n < api.MinNonce || n > api.MaxNonce:
		return nil, allocator.Errorf(allocator.Invalid,
			"nonce: %d characters; allowed: %d to %d", n, api.MinNonce, api.MaxNonce)
	case r.GetAge().AsDuration() < 0:
		return nil, allocator.Errorf(allocator.Invalid, "age: %v; allowed: 0s or more", r.GetAge().AsDuration())
	}
	loan, err := s.times.Lend(ctx, t, timetags.Ask{Nonce: nonce, Held: r.GetHeld().GetWorker(), Proof: proof,
		Age: r.GetAge().AsDuration(),
		By:  s.cfg.Access.Holder(ctx, marchv1.IDService_Lease_FullMethodName, string(t.Name()))})
	if err != nil {
		s.cfg.Access.OverQuota(err)
		return nil, err
	}
	lease.Window = &marchv1.WorkerWindow{
		Worker: loan.Worker, FromMs: loan.Window.From, UntilMs: loan.Window.Until, NowMs: loan.Now,
		Room: string(s.cfg.Room), Instance: string(s.cfg.Name),
	}
	return lease, nil
}

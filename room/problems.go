package room

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

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
)

// problems lists the problems of this instance, the worst first.
func (s *Server) problems() []*marchv1.Problem {
	_, lacks := s.readiness()
	return s.problemsOf(lacks)
}

// id is how lists of problems name this instance.
func (s *Server) id() string { return string(s.cfg.Room) + "/" + string(s.cfg.Name) }

// problemsOf is problems if readiness has already found what the instance lacks.
func (s *Server) problemsOf(lacks string) []*marchv1.Problem {
	list := s.causes()
	if b, is := s.instance.Barred(); is {
		list = append(list, problem.New(problem.Barred, s.id(), b.Since, "by", b.By))
	}
	if unready := problem.New(problem.NotReady, s.id(), time.Time{}, "why", lacks); lacks != "" && len(list) > 0 {
		problem.Hit(list[0], unready)
	} else if lacks != "" {
		list = append(list, unready)
	} else if can, err := s.windows.Trouble(); err != nil && s.status.get() == nil {
		list = append(list, s.noTimeOrdered(can, err))
	}
	if off := s.windows.ClockOff(); off != 0 {
		side := "ahead of"
		if off < 0 {
			side = "behind"
		}
		value := fmt.Sprintf("%v %s", off.Abs(), side)
		list = append(list, problem.New(problem.Clock, s.id(), time.Time{}, "off", value))
	}
	list = append(list, s.damagedTags()...)
	list = append(list, s.usedUp()...)
	list = append(list, s.early()...)
	missing, more := s.instance.WrongRights()
	wrong := func(kind problem.Case, rights []store.Right, between string) {
		texts := make([]string, len(rights))
		for k, right := range rights {
			texts[k] = right.String()
		}
		if len(rights) > 0 {
			list = append(list, problem.New(kind, s.id(), time.Time{}, "rights", strings.Join(texts, between)))
		}
	}
	wrong(problem.EtcdRights, missing, ", nor ")
	wrong(problem.EtcdRightsMore, more, ", and ")
	for _, p := range s.cfg.Access.Problems() {
		p.Hits = []string{s.id()}
		list = append(list, p)
	}
	list = append(list, problem.Safety("instance "+s.id(), s.id(), s.cfg.Insecure, s.cfg.TLS.Broken())...)
	return s.met.Note(problem.Group(list), time.Now())
}

// causes lists what keeps this instance from leasing, the worst first.
func (s *Server) causes() (list []*marchv1.Problem) {
	halt, halted := s.ledger.Halted()
	cause := s.cause(halted)
	if cause.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY {
		list, cause = append(list, cause), nil
	}
	if halted {
		list = append(list, problem.New(problem.Halted, "", halt.Time, "by", halt.By, "why", halt.Why))
	}
	if cause != nil {
		list = append(list, cause)
	}
	if stored, _ := s.ledger.Layout(); stored.Layout.Version > 0 {
		if _, has := stored.Layout.Ranges[s.cfg.Room]; !has {
			list = append(list, problem.New(problem.NoRange, string(s.cfg.Room), time.Time{}, "layout",
				stored.Layout.Version))
		}
	}
	return list
}

// noTimeOrdered says why some time-ordered tag issues nothing; can is whether another one does.
func (s *Server) noTimeOrdered(can bool, err error) *marchv1.Problem {
	if back, is := errors.AsType[*timeid.RollbackError](err); is {
		return problem.New(problem.ClockBack, s.id(), time.Time{}, "back",
			(time.Duration(back.Last-back.Now) * time.Millisecond).Round(time.Second))
	}
	if ahead, is := errors.AsType[*worker.ClockError](err); is {
		return problem.New(problem.ClockAhead, s.id(), time.Time{}, "ahead", ahead.Ahead.Round(time.Second))
	}
	if busy, is := errors.AsType[*worker.BusyError](err); is && busy.By != "" && !busy.Pinned {
		bits := busy.Worker.Bits
		p := problem.New(problem.NoWorker, problem.Slice(s.cfg.Room, bits), time.Time{}, "in", s.cfg.Room, "bits", bits,
			"why", err)
		p.Hits = []string{s.id()}
		return p
	}
	if can {
		return problem.New(problem.SomeTimeOrdered, s.id(), time.Time{}, "why", err)
	}
	return problem.New(problem.TimeOrdered, s.id(), time.Time{}, "why", err)
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

// noteTag notes whether a tag could be read or leased: err is nil if so.
func (s *Server) noteTag(tag allocator.Tag, err error) {
	key, is := errors.AsType[*record.KeyError](err)
	is = is && key.Tag() == tag // other keys stop all tags, and are Trouble's
	d := &s.damaged
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
func (s *Server) damagedTags() (list []*marchv1.Problem) {
	d := &s.damaged
	d.mu.Lock()
	defer d.mu.Unlock()
	for tag, t := range d.mu.tags {
		if time.Since(t.last) > damagedFor {
			delete(d.mu.tags, tag)
			continue
		}
		list = append(list, problem.OfKey(t.key, s.ledger.Damage(t.key.Key, ""), t.since))
	}
	slices.SortFunc(list, func(a, b *marchv1.Problem) int { return strings.Compare(a.GetOf(), b.GetOf()) })
	return list
}

// usedUp lists the tags in use that have no ID left.
func (s *Server) usedUp() (list []*marchv1.Problem) {
	for _, c := range s.tags.tour.lastRound().used {
		row := problem.TagUsedUp
		if s.tags.periods.of(c.status.Tag) != (period.Period{}) {
			row = problem.PeriodUsedUp
		}
		p := problem.New(row, string(c.status.Tag), time.Time{}, "why", c.status.Failure)
		p.Hits = []string{s.id()}
		list = append(list, p)
	}
	return list
}

// early lists the tags that lease in a period that has not begun by this instance's clock.
func (s *Server) early() (list []*marchv1.Problem) {
	for _, c := range s.tags.tour.lastRound().early {
		span, _ := s.tags.periods.of(c.status.Tag).Of(c.status.Last)
		if !span.Begins.After(s.instance.Now()) {
			continue
		}
		p := problem.New(problem.PeriodAhead, string(c.status.Tag), time.Time{}, "period", span,
			"begins", span.Begins.UTC().Format(time.RFC3339))
		p.Hits = []string{s.id()}
		list = append(list, p)
	}
	return list
}

// logDropped logs that a tag is no longer in memory: it was deleted, or it cannot be read.
func (s *Server) logDropped(change ledger.TagChange) {
	if change.Err == nil {
		s.lines.deleted.Log(time.Now(), s.log.Info, "tag deleted", "tag", change.Name)
		return
	}
	s.lines.refused.Log(time.Now(), s.log.Error, "the IDs held of a tag are dropped: its settings cannot be read",
		"tag", change.Name, "error", change.Err)
}

// cause returns the problem, other than a halt, that keeps this instance from leasing,
// or nil.
func (s *Server) cause(halted bool) *marchv1.Problem {
	if contact := s.ledger.Contact(); !contact.Away.IsZero() {
		return problem.Away(s.id(), "instance "+s.id(), "It leases nothing, and issues the IDs that it holds.",
			contact.Members, contact.Cause, contact.Away, s.ledger.Etcdctl())
	}
	trouble := s.instance.Trouble()
	if trouble.Err == nil || halted && allocator.KindOf(trouble.Err) == allocator.WentBack {
		return nil
	}
	since := trouble.Since
	if s.ledger.Unconfirmed() && since.IsZero() {
		since = s.started
	}
	return s.noLease(trouble.Err, since)
}

// ofJournal has the case of each fault of a journal.
var ofJournal = map[journal.Fault]problem.Case{journal.Full: problem.JournalFull, journal.Denied: problem.JournalDenied,
	journal.Hangs: problem.JournalHangs, journal.Shared: problem.JournalShared, journal.Other: problem.JournalBroken}

// noLease says that the instance leases no tag because of err.
func (s *Server) noLease(err error, since time.Time) *marchv1.Problem {
	id := s.id()
	if key, is := errors.AsType[*record.KeyError](err); is {
		return problem.OfKey(*key, s.ledger.Damage(key.Key, ""), since)
	}
	if errors.Is(err, store.ErrNoSpace) {
		return problem.New(problem.EtcdFull, "", since, "revision", s.ledger.Revision(), "etcdctl",
			s.ledger.Etcdctl())
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
	switch kind, user := allocator.KindOf(err), s.ledger.EtcdUser(); {
	case kind == allocator.Unauthenticated && user != "":
		return problem.New(problem.EtcdPassword, id, since, "why", err, "etcdctl", s.ledger.Etcdctl(), "user", user)
	case kind == allocator.Unauthenticated, kind == allocator.Denied:
		return problem.New(problem.EtcdRefuses, id, since, "why", err)
	case kind == allocator.WentBack:
		return problem.New(problem.WentBack, id, since, "why", err)
	}
	return problem.New(problem.NoLease, id, since, "why", err)
}

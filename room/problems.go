package room

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// problems lists the problems of this instance, the worst first.
func (s *Server) problems() []*marchv1.Problem {
	_, lacks := s.readiness()
	return s.problemsOf(lacks)
}

// problemsOf is problems if readiness has already found what the instance lacks.
func (s *Server) problemsOf(lacks string) []*marchv1.Problem {
	me := problem.Instance{Room: s.cfg.Room, Name: s.cfg.Name}
	var list []*marchv1.Problem
	halt, halted := s.ledger.Halted()
	if halted {
		list = append(list, problem.Halted(halt.By, halt.Why, halt.Time))
	}
	if b, is := s.instance.Barred(); is {
		list = append(list, me.Barred(b.By, timestamppb.New(b.Since)))
	}
	if lacks != "" {
		list = append(list, me.NotReady(lacks, time.Time{}))
	} else if _, err := s.times.Trouble(); err != nil && s.status.get() == nil {
		list = append(list, me.NoTimeOrdered(err, time.Time{}))
	}
	if cause := s.cause(me, halted); cause != nil {
		list = append(list, cause)
	}
	list = append(list, s.damagedTags()...)
	if missing := s.instance.MissingRights(); len(missing) > 0 {
		list = append(list, me.NoRights(missing))
	}
	if stored, _ := s.ledger.Layout(); stored.Layout.Version > 0 {
		if _, has := stored.Layout.Ranges[s.cfg.Room]; !has {
			list = append(list, problem.NoRange(s.cfg.Room, stored.Layout.Version))
		}
	}
	for _, p := range s.cfg.Access.Problems() {
		p.Of = string(s.cfg.Room) + "/" + string(s.cfg.Name)
		p.What = "instance " + p.GetOf() + ": " + p.GetWhat()
		list = append(list, p)
	}
	id := string(s.cfg.Room) + "/" + string(s.cfg.Name)
	list = append(list, problem.Safety("instance "+id, id, s.cfg.Insecure, s.cfg.TLS.Broken())...)
	return s.met.Note(problem.Unique(list), time.Now())
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

// noteTag notes whether a tag could be read or leased: err is nil if so. The first failure
// because of a damaged key is a line in the log.
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
	switch {
	case is && !had:
		p := problem.Unreadable(*key, s.ledger.Damage(key.Key, ""))
		s.lines.damaged.Log(now, s.log.Error, "no IDs of a tag can be leased", "tag", tag, "error",
			key, "remedy", problem.Plain(p))
	case err == nil && had:
		s.log.Info("IDs of a tag can be leased again", "tag", tag)
	}
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
		p := problem.Unreadable(t.key, s.ledger.Damage(t.key.Key, ""))
		p.Since = timestamppb.New(t.since)
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *marchv1.Problem) int { return strings.Compare(a.GetOf(), b.GetOf()) })
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
func (s *Server) cause(me problem.Instance, halted bool) *marchv1.Problem {
	if contact := s.ledger.Contact(); !contact.Away.IsZero() {
		return me.EtcdAway(contact.Cause, contact.Away)
	}
	trouble := s.instance.Trouble()
	if trouble.Err == nil || halted && allocator.KindOf(trouble.Err) == allocator.WentBack {
		return nil
	}
	since := trouble.Since
	if s.ledger.Unconfirmed() && since.IsZero() {
		since = s.started
	}
	return me.NoLease(trouble.Err, since, func(key string) record.Damage { return s.ledger.Damage(key, "") })
}

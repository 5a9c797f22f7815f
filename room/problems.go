package room

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// problems lists the problems of this instance, the worst first.
func (s *Server) problems() []*marchv1.Problem {
	_, lacks := s.judge()
	return s.problemsOf(lacks)
}

// problemsOf is problems if judge has already found what the instance lacks.
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
	}
	if cause := s.cause(me, halted); cause != nil {
		list = append(list, cause)
	}
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

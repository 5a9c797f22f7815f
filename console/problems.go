package console

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// All problems of a cluster are one list, which is made here. Each problem says since when
// it exists, until when, what the operator can do, and by which command. Package problem
// has the texts; instances use the same texts for their own problems. Every page and
// command that shows problems shows this list.

const (
	// problemsOfKind is how many problems of instances, and of keys, are listed; the
	// last of them says how many more there are.
	problemsOfKind = 20
	// problemsOfInstance bounds the problems that an instance may report of itself.
	problemsOfInstance = 10
)

// findings is the state of a cluster from which a console finds problems.
type findings struct {
	halt        *marchv1.Halt      // nil while leasing is not halted
	unusable    error              // why the layout in etcd cannot be used; nil if it can
	outage      []*marchv1.Problem // that etcd does not answer this console; none if it does
	etcd        etcdSize
	etcdctl     string // the command that asks etcd
	workers     workerUse
	migration   *marchv1.Migration // under way, nil for none
	rooms       []allocator.Room   // that have a range
	instances   []instance
	sample      sample
	own         []*marchv1.Problem // of this console itself
	forgetAfter time.Duration      // a silent instance is forgotten after this
	unreadable  []record.KeyError
	damage      func(key string) record.KeyParts // of an unreadable key
}

// problems finds the problems of a cluster, and keeps since when each exists.
type problems struct {
	*view
	index   *index
	met     problem.Log     // since when problems are
	changes problem.Changes // only watchProblems uses it
}

// findings returns those of a snapshot.
func (s *problems) findings(now *snapshot, outage []*marchv1.Problem) findings {
	f := findings{
		halt: now.halt(), unusable: now.Unusable, outage: outage, etcd: now.etcd, etcdctl: s.ledger.Etcdctl(),
		workers: now.workers, rooms: now.Layout.Layout.Rooms(), instances: now.instances, sample: now.answers,
		own: s.ownProblems(), forgetAfter: s.cfg.ForgetAfter, unreadable: now.Bad,
		damage: func(key string) record.KeyParts { return s.ledger.Damage(key, now.Active) },
	}
	if now.Migration != nil {
		f.migration = migrationToProto(*now.Migration, now.instances)
	}
	return f
}

// withTags returns keys that cannot be read together with those of tags and marks, as the index
// of tags last found them. It waits a moment for an index.
func (s *problems) withTags(ctx context.Context, bad []record.KeyError) []record.KeyError {
	if x := s.index.indexed(ctx).tags; x != nil {
		return slices.Concat(bad, x.bad)
	}
	return bad
}

// problemsEvery is how often a console looks for problems, so that it knows since when
// each exists.
const problemsEvery = 10 * time.Second

// watchProblems notes since when problems exist. Where no caller has just had the instances asked, it
// asks them itself: the log and the alerts are true, also while no page is open. It returns the pause before the next
// time.
func (s *problems) watchProblems(ctx context.Context) (pause time.Duration) {
	now, outage, err := s.shown(ctx)
	if err != nil {
		return problemsEvery
	}
	if time.Since(now.answers.came) > sampleAge {
		s.readAnswers(ctx)
	}
	now = s.last.Load()
	f := s.findings(now, outage)
	s.changes.Write(s.log, lasting(s.met.Note(f.problems(), time.Now())), time.Now())
	return problemsEvery
}

// lasting returns a list without instances that have not answered for a moment only: whether they run is soon known.
func lasting(list []*marchv1.Problem) []*marchv1.Problem {
	return slices.DeleteFunc(slices.Clone(list), func(p *marchv1.Problem) bool {
		return p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_NO_ANSWER && p.GetSince() != nil &&
			time.Since(p.GetSince().AsTime()) < 3*problemsEvery
	})
}

// problemLines is the list of problems as /readyz shows it.
func (s *problems) problemLines(ctx context.Context) []string {
	answer, err := s.GetOverview(ctx, &marchv1.GetOverviewRequest{})
	if allocator.KindOf(err) == allocator.Unavailable {
		return nil // the check of etcd says why
	}
	if err != nil {
		return []string{err.Error()}
	}
	return problem.AsLines(answer.GetProblems())
}

// problems lists the problems, the worst first.
func (f findings) problems() []*marchv1.Problem {
	all := problem.Group(slices.Concat(
		f.outage, f.halted(), f.unusableState(), f.etcd.problems(f.etcdctl), f.instanceProblems(), f.idleRooms(),
		f.workers.problems(time.Now()), f.migration.GetProblems(), f.own, f.unreadableKeys(),
	))
	var cluster, instances, keys []*marchv1.Problem
	first, stopping := errors.AsType[*record.KeyError](f.unusable) // a key that keeps all rooms from leasing
	for _, p := range all {
		switch unreadable := p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE; {
		case unreadable && (!stopping || first.Key != p.GetOf()):
			keys = append(keys, p)
		case unreadable || problem.OfCluster(p.GetKind()) || slices.Contains(f.outage, p):
			cluster = append(cluster, p)
		default:
			instances = append(instances, p)
		}
	}
	return slices.Concat(cluster, problem.Some(instances, problemsOfKind, "instances"),
		problem.Some(keys, problemsOfKind, "keys"))
}

// clusterProblems lists the problems that keep all rooms from leasing.
func (f findings) clusterProblems() []*marchv1.Problem {
	return problem.Group(slices.Concat(f.halted(), f.unusableState()))
}

func (f findings) halted() []*marchv1.Problem {
	if f.halt == nil {
		return nil
	}
	list := []*marchv1.Problem{problem.New(problem.Halted, "", asTime(f.halt.GetTime()), "by",
		f.halt.GetBy(), "why", f.halt.GetWhy())}
	for _, i := range f.halt.GetBarred() {
		list = append(list, problem.New(problem.Barred, i.GetRoom()+"/"+i.GetName(), asTime(i.GetBarred().GetSince()),
			"by", i.GetBarred().GetBy()))
	}
	return list
}

func (f findings) unusableState() []*marchv1.Problem {
	if f.unusable == nil {
		return nil
	}
	if key, is := errors.AsType[*record.KeyError](f.unusable); is {
		return []*marchv1.Problem{problem.OfKey(key, f.damage(key.Key), time.Time{})}
	}
	return []*marchv1.Problem{problem.New(problem.Unusable, "", time.Time{}, "why", f.unusable)}
}

// etcdSize is the size of etcd's database, and since when this console has seen it nearly
// full, full or corrupt, or without a member; zero if it is not.
type etcdSize struct {
	admin.StoreSize
	members               store.Members
	nearly, full, corrupt time.Time
	lost                  time.Time
}

func (e etcdSize) problems(etcdctl string) (list []*marchv1.Problem) {
	if !e.lost.IsZero() {
		list = append(list, problem.New(problem.EtcdMember, "", e.lost, "members", e.members, "etcdctl", etcdctl))
	}
	return append(e.fullness(etcdctl), list...)
}

func (e etcdSize) fullness(etcdctl string) []*marchv1.Problem {
	switch {
	case !e.corrupt.IsZero():
		return []*marchv1.Problem{problem.New(problem.EtcdCorrupt, "etcd", e.corrupt, "etcdctl", etcdctl)}
	case !e.full.IsZero():
		return []*marchv1.Problem{problem.New(problem.EtcdFull, "", e.full, "revision", e.Revision, "etcdctl",
			etcdctl)}
	case !e.nearly.IsZero():
		return []*marchv1.Problem{problem.New(problem.EtcdNearlyFull, "", e.nearly, "size", e.Bytes>>20,
			"quota", e.Quota>>20, "etcdctl", etcdctl)}
	}
	return nil
}

// note returns the size of etcd's database and its alarms by now, and since when each is as it is.
func (e etcdSize) note(size admin.StoreSize, members store.Members, now time.Time) etcdSize {
	e.StoreSize, e.members = size, members
	since := func(at *time.Time, is bool) {
		switch {
		case !is:
			*at = time.Time{}
		case at.IsZero():
			*at = now
		}
	}
	since(&e.nearly, size.Quota > 0 && float64(size.Bytes) > nearQuota*float64(size.Quota))
	since(&e.full, size.NoSpace)
	since(&e.corrupt, size.Corrupt)
	since(&e.lost, 0 < members.Answer && members.Answer < members.All) // where none does, etcd was not asked
	return e
}

// up reports whether an instance is known to be alive, or answers without heartbeats: it sends none while
// etcd takes no writes.
func (s sample) up(i instance) bool {
	return i.Alive && !i.Unknown || s.instances[i.ID()].status != nil
}

// idleRooms lists rooms with a range that no instance serves.
func (f findings) idleRooms() []*marchv1.Problem {
	var list []*marchv1.Problem
	for _, room := range f.rooms {
		of := inRoom(f.instances, room)
		if slices.ContainsFunc(of, func(i instance) bool { return i.Alive || f.sample.up(i) }) {
			continue
		}
		var since time.Time // when the last of its instances fell silent
		for _, i := range of {
			if i.Died.After(since) {
				since = i.Died
			}
		}
		list = append(list, problem.New(problem.NoInstance, string(room), since))
	}
	return list
}

func (f findings) instanceProblems() []*marchv1.Problem {
	var list []*marchv1.Problem
	for _, i := range f.instances {
		list = append(list, f.instanceProblemsOf(i)...)
	}
	return list
}

// instanceProblemsOf returns the problems of an instance. An instance that cannot be
// read is listed by its key.
func (f findings) instanceProblemsOf(i instance) []*marchv1.Problem {
	id := string(i.ID())
	var list []*marchv1.Problem
	switch told, asked := f.sample.instances[i.ID()]; {
	case i.Unreadable != nil:
		return nil
	case !i.Alive && told.status != nil:
		list = append(f.stillSo(ownProblems(id, told.status)), problem.New(problem.NoHeartbeats, id, i.Died))
	case !i.Alive:
		p := problem.New(problem.Silent, id, i.Died)
		if f.halt == nil { // otherwise none is forgotten
			p.Until = timestamppb.New(i.SilentSince.Add(f.forgetAfter))
		}
		return []*marchv1.Problem{p}
	case told.status != nil:
		list = f.stillSo(ownProblems(id, told.status))
	case asked && i.Unknown:
		list = append(list, problem.New(problem.Unheard, id, i.Died, "address", i.Operators(), "why", told.why))
	case asked:
		list = append(list, problem.New(problem.NoAnswer, id, told.mute, "address", i.Operators(),
			"why", told.why))
	}
	if i.Unconfirmed {
		list = problem.Unique(append(list, problem.New(problem.Unconfirmed, id, i.Started)))
	}
	return list
}

// stillSo returns the problems of an instance without those that ended since it was asked: whether leasing is halted,
// and which rooms have a range, this console has read later in etcd itself.
func (f findings) stillSo(list []*marchv1.Problem) []*marchv1.Problem {
	var still []*marchv1.Problem
	for _, p := range list {
		still = append(still, proto.CloneOf(p)) // the list of problems changes its own
	}
	return slices.DeleteFunc(still, func(p *marchv1.Problem) bool {
		switch p.GetKind() {
		case marchv1.ProblemKind_PROBLEM_KIND_HALTED, marchv1.ProblemKind_PROBLEM_KIND_BARRED:
			return f.outage == nil && f.halt == nil
		case marchv1.ProblemKind_PROBLEM_KIND_NO_RANGE:
			return f.outage == nil && slices.Contains(f.rooms, allocator.Room(p.GetOf()))
		}
		return false
	})
}

// ownProblems returns the problems of this console itself.
func (s *problems) ownProblems() []*marchv1.Problem {
	list := s.cfg.Access.Problems()
	for _, p := range list {
		p.Hits = []string{"console " + s.host}
	}
	return append(list, problem.Safety("console "+s.host, s.host, s.cfg.Insecure, s.cfg.TLS.Broken())...)
}

// ownProblems returns the problems that an instance reports of itself.
func ownProblems(id string, s *marchv1.InstanceStatus) []*marchv1.Problem {
	own := s.GetProblems()
	switch {
	case len(own) > 0:
		return own[:min(len(own), problemsOfInstance)]
	case s.GetNotReady() != "": // it starts or stops, or is of a version that lists no problems
		return []*marchv1.Problem{problem.New(problem.NotReady, id, asTime(s.GetEtcdAwaySince()), "why",
			s.GetNotReady())}
	case s.GetEtcdAwaySince() != nil:
		return []*marchv1.Problem{problem.Away(id, "instance "+id, "", store.Members{}, nil,
			asTime(s.GetEtcdAwaySince()), "etcdctl")}
	}
	return nil
}

// asTime returns a time, or the zero time if it is absent.
func asTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func (f findings) unreadableKeys() []*marchv1.Problem {
	var list []*marchv1.Problem
	for _, key := range f.unreadable {
		list = append(list, problem.OfKey(&key, f.damage(key.Key), time.Time{}))
	}
	slices.SortStableFunc(list, func(a, b *marchv1.Problem) int { return cmp.Compare(a.GetOf(), b.GetOf()) })
	return list
}

// migrationProblems lists the problems that stop a migration, for its field problems: clients
// show these and do not find out by themselves. Waiting for an instance that is alive is none.
func migrationProblems(m *marchv1.Migration) []*marchv1.Problem {
	var list []*marchv1.Problem
	if m.GetError() != "" {
		list = append(list, problem.New(problem.Migration, m.GetId(), asTime(m.GetErrorSince()), "why", m.GetError()))
	}
	var silent []*marchv1.Problem
	for _, w := range m.GetWaiting() {
		if w.GetSilentSince() != nil {
			p := problem.New(problem.MigrationWaits, w.GetInstance(), asTime(w.GetSilentSince()), "migration",
				m.GetId())
			p.Until = w.GetUntil()
			silent = append(silent, p)
		}
	}
	return append(list, problem.Some(silent, problemsOfKind, "instances that the migration waits for")...)
}

package console

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// view has everything that a console reads of a cluster to show it. It names the keys
// that cannot be read, and has all others.
type view struct {
	record    record.Layout    // the last good one; zero for none
	unusable  error            // as Ledger.LastLayout returns it
	uuid      string           // empty where the identity cannot be read
	settings  *marchv1.Cluster // nil where they cannot be read
	instances []instance
	migration *record.Migration // under way; nil for none
	active    string            // the ID of the migration under way, also of one that cannot be read
	bad       []record.KeyError
	badRooms  []record.KeyError // those of bad that are of instances
}

// view reads the cluster. A value that cannot be read is not an error.
func (s *Server) view(ctx context.Context) (v view, err error) {
	if v.record, v.unusable, err = s.admin.LastLayout(ctx); err != nil {
		return v, err
	}
	pass := func(err error) error {
		if key, damaged := errors.AsType[*record.KeyError](err); damaged {
			v.bad = append(v.bad, *key)
			return nil
		}
		return err
	}
	_ = pass(v.unusable) // it may be an error without a key
	if v.uuid, err = s.uuid(ctx); err != nil {
		return v, err
	}
	settings, err := s.admin.Settings(ctx)
	if err == nil {
		v.settings = clusterToProto(settings)
	} else if err := pass(err); err != nil {
		return v, err
	}
	if v.instances, v.badRooms, err = s.instances(ctx); err != nil {
		return v, err
	}
	v.bad = append(v.bad, v.badRooms...)
	m, active, err := s.admin.ActiveMigration(ctx)
	if key, damaged := errors.AsType[*record.KeyError](err); damaged {
		v.active = path.Base(key.Key)
	}
	if err := pass(err); err != nil {
		return v, err
	}
	if active {
		s.waitFor(m, v.instances)
		v.migration = &m
	}
	defer func() { s.known.keep(v, time.Now()) }()
	slices.SortStableFunc(v.bad, func(a, b record.KeyError) int { return cmp.Compare(a.Key, b.Key) })
	v.bad = slices.CompactFunc(v.bad, func(a, b record.KeyError) bool { return a.Key == b.Key })
	return v, nil
}

// known is what a console last read of its cluster. It shows that while etcd does not answer.
type known struct {
	mu struct {
		sync.Mutex
		view   view
		at     time.Time  // when it was read; zero before the first read
		away   time.Time  // since when etcd has not answered; zero while it does
		found  []instance // that answered at the addresses of Config.Rooms, before the first read
		silent []string   // the other addresses
	}
}

func (k *known) keep(v view, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.view, k.mu.at, k.mu.away, k.mu.found, k.mu.silent = v, now, time.Time{}, nil, nil
}

// etcd notes whether etcd answered.
func (k *known) etcd(answered bool, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if answered {
		k.mu.away = time.Time{}
	} else if k.mu.away.IsZero() {
		k.mu.away = now
	}
}

// get returns what was read last, when that was, and since when etcd has not answered.
func (k *known) get() (v view, at, away time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v = k.mu.view
	if k.mu.at.IsZero() {
		v.instances = k.mu.found
	}
	return v, k.mu.at, k.mu.away
}

// viewOrKnown returns the view. While etcd does not answer, that is what was read last, and
// outage says so. The error is that of view if nothing is known.
func (s *Server) viewOrKnown(ctx context.Context) (v view, outage []*marchv1.Problem, err error) {
	_, at, away := s.known.get()
	if known := !at.IsZero() || len(s.cfg.Rooms) > 0; away.IsZero() || !known {
		if v, err = s.view(ctx); allocator.KindOf(err) != allocator.Unavailable || ctx.Err() != nil || !known {
			return v, nil, err
		}
		s.known.etcd(false, time.Now())
	}
	v, at, away = s.known.get()
	if away.IsZero() { // it came back meanwhile
		away = time.Now()
	}
	shown := "This console has not read the cluster yet: it shows the instances of --rooms."
	if !at.IsZero() {
		shown = "Everything but the instances' own values is as of " + at.UTC().Format("2006-01-02 15:04:05 UTC") + "."
	}
	contact := s.ledger.Contact()
	outage = append(outage, problem.Away("console", "this console", shown+" An instance that cannot reach etcd, too, "+
		"goes on until its reserve ends.", contact.Members, contact.Cause, away, s.ledger.Etcdctl()))
	s.known.mu.Lock()
	defer s.known.mu.Unlock()
	for _, address := range s.known.mu.silent {
		outage = append(outage, problem.New(problem.NoRoom, address, time.Time{}))
	}
	return v, outage, nil
}

// findings returns the findings of a view.
func (s *Server) findings(v view, halt *marchv1.Halt, now sample) findings {
	f := findings{
		halt: halt, unusable: v.unusable, etcd: s.fullness.get(), etcdctl: s.ledger.Etcdctl(), workers: s.workers.get(),
		rooms: v.record.Layout.Rooms(), instances: v.instances,
		sample: now, forgetAfter: s.cfg.ForgetAfter, unreadable: v.bad,
		damage: s.damage(v.active), own: s.ownProblems(),
	}
	if v.migration != nil {
		f.migration = migrationToProto(*v.migration, v.instances)
	}
	return f
}

// withTags returns keys that cannot be read together with those of tags and marks, as the index
// of tags last found them. It waits a moment for an index.
func (s *Server) withTags(ctx context.Context, bad []record.KeyError) []record.KeyError {
	x, _, _ := s.tags.get(ctx, searchAge, sampleWithin)
	if x == nil {
		return bad
	}
	return slices.Concat(bad, x.bad)
}

// damage returns a function that says what an unreadable key stops. migration is the
// one under way, or empty.
func (s *Server) damage(migration string) func(key string) record.Damage {
	return func(key string) record.Damage { return s.ledger.Damage(key, migration) }
}

// problemsEvery is how often a console looks for problems, so that it knows since when
// each exists.
const problemsEvery = 10 * time.Second

// watchProblems notes since when problems exist, until ctx ends. Where no caller has just had the instances asked, it
// asks them itself: the log and the alerts are true, also while no page is open.
func (s *Server) watchProblems(ctx context.Context) {
	ticker := time.NewTicker(problemsEvery)
	defer ticker.Stop()
	var changes problem.Changes
	for {
		v, outage, err := s.viewOrKnown(ctx)
		if outage != nil {
			_, err = s.view(ctx) // which notes that etcd answers again
		}
		if err == nil || outage != nil {
			if last := s.samples.before(); time.Since(last.at) > sampleAge {
				asked, _, err := s.look(ctx, last)
				s.samples.store(asked, err)
			}
			now := s.samples.before()
			f := s.findings(v, s.halt(now), now)
			f.outage = outage
			if outage == nil {
				s.metrics.up(f)
			}
			changes.Write(s.log, lasting(s.met.Note(f.problems(), time.Now())), time.Now())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// lasting returns a list without instances that have not answered for a moment only: whether they run is soon known.
func lasting(list []*marchv1.Problem) []*marchv1.Problem {
	return slices.DeleteFunc(slices.Clone(list), func(p *marchv1.Problem) bool {
		return p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_NO_ANSWER && p.GetSince() != nil &&
			time.Since(p.GetSince().AsTime()) < 3*problemsEvery
	})
}

// problemLines is the list of problems as /readyz shows it.
func (s *Server) problemLines(ctx context.Context) []string {
	answer, err := s.GetOverview(ctx, &marchv1.GetOverviewRequest{})
	if allocator.KindOf(err) == allocator.Unavailable {
		return nil // the check of etcd says why
	}
	if err != nil {
		return []string{err.Error()}
	}
	return problem.AsLines(answer.GetProblems())
}

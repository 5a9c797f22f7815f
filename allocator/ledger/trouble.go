package ledger

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// An answered read shows nothing about writes: an etcd that is full answers reads,
// and a journal may be full while etcd works. So the results of an instance's own
// leases and heartbeats show whether it can lease.

// Trouble is the reason for which an instance cannot lease.
type Trouble struct {
	Err   error     // the reason, and what to do; nil if the instance can lease
	Since time.Time // since when, by this process's clock; zero if Err has it, or it is not known
}

// failures are those of one kind of write: since when all have failed, and why the
// last did.
type failures struct {
	since, last time.Time
	err         error
}

func (f *failures) note(now time.Time, err error) {
	switch {
	case err == nil:
		*f = failures{}
	case f.err == nil:
		*f = failures{since: now, last: now, err: err}
	default:
		f.last, f.err = now, err
	}
}

// failuresLast is how long a failed lease counts if no other has been tried since.
// A chain in need tries again much sooner. After that time a lease may well succeed
// again.
const failuresLast = 10 * time.Second

// troubles has the failures of an instance's own leases, heartbeats and probes.
type troubles struct {
	failed struct {
		sync.Mutex
		leases failures // if not because of their tag alone
		beats  failures
		probes failures // before heartbeats, because of a key that they read
	}
}

// Trouble returns why this instance cannot lease any tag: for example leasing is
// halted, the journal cannot be written, or etcd takes no writes.
func (m *memory) Trouble() Trouble {
	journal, halted, err := m.journalReady(), false, error(nil)
	m.ledger.with(func() { halted, err = m.ledger.mu.state.halted != nil, m.ledger.refusal() })
	m.failed.Lock()
	defer m.failed.Unlock()
	leases, beats, probes := &m.failed.leases, &m.failed.beats, &m.failed.probes
	if leases.err != nil && allocator.Elapsed(leases.last, time.Now()) > failuresLast {
		*leases = failures{}
	}
	if errors.Is(err, errEntering) {
		err = nil
	}
	switch {
	case err != nil && (halted || leases.err == nil && beats.err == nil && probes.err == nil):
		return Trouble{Err: err}
	case journal != nil:
		return Trouble{journal, leases.since}
	case leases.err != nil:
		since := leases.since
		if beats.err != nil && allocator.KindOf(beats.err) == allocator.KindOf(leases.err) &&
			beats.since.Before(since) {
			since = beats.since // leases come rarely, so heartbeats met it first
		}
		return Trouble{leases.err, since}
	case probes.err != nil:
		return Trouble{probes.err, probes.since}
	case beats.err != nil:
		return Trouble{beats.err, beats.since}
	default:
		return Trouble{Err: err}
	}
}

// noted notes that no lease of any tag can be made because of err, and returns err.
func (t *troubles) noted(err error) error {
	if err != nil && !errors.Is(err, errEntering) {
		t.failed.Lock()
		defer t.failed.Unlock()
		t.failed.leases.note(time.Now(), err)
	}
	return err
}

// noteProbe notes the outcome of a probe. In an idle instance nothing else shows that a
// lease would fail because a key cannot be read. Errors that Leasable returns need no
// note.
func (t *troubles) noteProbe(err error) {
	_, unusable := errors.AsType[*UnusableError](err)
	if _, damaged := errors.AsType[*record.KeyError](err); !damaged || unusable {
		err = nil
	}
	t.failed.Lock()
	defer t.failed.Unlock()
	t.failed.probes.note(time.Now(), err)
}

// noteBeat notes the outcome of a heartbeat.
func (t *troubles) noteBeat(err error) {
	t.failed.Lock()
	defer t.failed.Unlock()
	t.failed.beats.note(time.Now(), err)
	if err == nil && allocator.KindOf(t.failed.leases.err) == allocator.Unavailable {
		t.failed.leases = failures{} // etcd takes writes again, and the next lease may be far away
	}
}

// leased notes that a lease was made.
func (t *troubles) leased() {
	t.failed.Lock()
	defer t.failed.Unlock()
	t.failed.leases, t.failed.probes = failures{}, failures{}
}

// rightsEvery is how often an instance asks etcd for its user's rights while it lacks none.
const rightsEvery = 10 * time.Minute

// WrongRights returns which rights of a role the user of this process lacks in etcd, and which it
// has that let it write other rooms' keys.
func (l *client) WrongRights(ctx context.Context, role record.Role) (missing, more []store.Right, err error) {
	has, err := store.RightsOf(ctx, l.store)
	if err != nil {
		return nil, nil, err
	}
	layout, _ := l.Layout()
	needed := role.Rights
	if !layout.Upgraded() {
		needed = slices.Concat(role.Rights, role.Old)
	}
	return has.Missing(needed), role.TooMuch(has, layout.Upgraded()), nil
}

// MayRegister checks that the user of this process may read the cluster, and write the registration and the heartbeats
// of an instance. Its errors are Denied, and those of a question to etcd.
func (l *client) MayRegister(ctx context.Context, room allocator.Room, name allocator.Instance) error {
	has, err := store.RightsOf(ctx, l.store)
	if err != nil {
		return err
	}
	missing := has.Missing([]store.Right{
		{Interval: store.Prefix(string(l.keys))},
		{Interval: store.Interval{Key: l.keys.Registration(room, name)}, Write: true},
		{Interval: store.Interval{Key: l.keys.Alive(room, name)}, Write: true},
	})
	if len(missing) > 0 {
		return allocator.Errorf(allocator.Denied, "user %s may not %v in etcd; `march etcd roles %s` prints what it needs",
			has.User, missing[0], room)
	}
	return nil
}

// askRights notes which rights in etcd the instance lacks.
func (i *Instance) askRights(ctx context.Context) {
	if at := i.rights.Load(); at != nil && len(at.missing)+len(at.more) == 0 &&
		allocator.Elapsed(at.asked, time.Now()) < rightsEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, i.ledger.tryFor())
	defer cancel()
	missing, more, err := i.ledger.WrongRights(ctx, i.ledger.keys.RoomRole(i.room, false))
	if err != nil {
		return // next time
	}
	i.rights.Store(&rights{missing, more, time.Now()})
	if len(missing) > 0 {
		i.ledger.log.Error("this process lacks rights in etcd", "missing", missing)
	}
	if len(more) > 0 {
		i.ledger.log.Error("this process may write other rooms' keys in etcd", "rights", more)
	}
}

// rights are the rights in etcd that an instance was found to lack, and those to write other rooms'
// keys.
type rights struct {
	missing, more []store.Right
	asked         time.Time
}

// WrongRights returns the rights in etcd that the instance lacks, and those that let it write other
// rooms' keys, as it last found; it asks about every minute while there are some.
func (i *Instance) WrongRights() (missing, more []store.Right) {
	if r := i.rights.Load(); r != nil {
		return r.missing, r.more
	}
	return nil, nil
}

// Damage returns the parts of a key that cannot be read, for package problem, which has what that stops.
// migration is the ID of the migration that is under way, empty for none.
func (l *knowledge) Damage(key, migration string) record.KeyParts {
	var version int64
	l.with(func() { version = l.mu.version })
	return l.keys.Damage(key, version, migration)
}

package access

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
)

// Session is what a login to the page has proven.
type Session struct {
	// ID names the login, and has when it began.
	ID ulid.ULID `json:"i,omitzero"`
	// Hash is the SHA-256 of the token of the login, if that is in the file of tokens: the
	// session ends when the token is taken out of the file.
	Hash []byte `json:"h,omitempty"`
	// Names are otherwise the subject's names, until Expires.
	Names   []string  `json:"n,omitempty"`
	Expires time.Time `json:"e"`
	// Access is the access token of a login at the issuer, with which the issuer is asked whether the login still
	// holds; empty for another login. Groups says that the issuer then gives the groups, too.
	Access string `json:"a,omitempty"`
	Groups bool   `json:"g,omitempty"`
}

const (
	// MaxSession is how long a session may last at most.
	MaxSession = 7 * 24 * time.Hour
	// MaxEnded bounds the logouts of one subject that are remembered one by one. If there are more, all its sessions
	// have ended that began no later than the latest of them.
	MaxEnded = 20
)

// ended are the sessions that were logged out before they expire. No session that is open is remembered: its cookie has
// all. So subjects cannot push each other out. The zero value has none.
type ended struct {
	mu struct {
		sync.RWMutex
		ids map[ulid.ULID]struct{} // all of those below: a token that got another name stays logged out
		of  map[string]*endedOf    // by the subject's name
	}
}

type endedOf struct {
	ids    []ulid.ULID // at most MaxEnded
	before ulid.ULID   // the sessions up to this one have ended
}

// has reports whether a session was logged out.
func (e *ended) has(subject string, id ulid.ULID) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if _, out := e.mu.ids[id]; out {
		return true
	}
	of := e.mu.of[subject]
	return of != nil && !of.before.IsZero() && id.Time() <= of.before.Time()
}

// add ends a session.
func (e *ended) add(subject string, id ulid.ULID) {
	if e.has(subject, id) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.of == nil {
		e.mu.ids, e.mu.of = make(map[ulid.ULID]struct{}), make(map[string]*endedOf)
	}
	of := e.mu.of[subject]
	if of == nil {
		of = &endedOf{}
		e.mu.of[subject] = of
	}
	e.mu.ids[id] = struct{}{}
	if of.ids = append(of.ids, id); len(of.ids) > MaxEnded {
		of.before = of.latest()
		e.drop(of)
	}
}

// latest returns the session that began last.
func (of *endedOf) latest() ulid.ULID {
	return slices.MaxFunc(append(of.ids, of.before), ulid.ULID.Compare)
}

// drop drops what is remembered one by one. The lock is held.
func (e *ended) drop(of *endedOf) {
	for _, id := range of.ids {
		delete(e.mu.ids, id)
	}
	of.ids = nil
}

// forget drops the sessions that have expired by now.
func (e *ended) forget(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for subject, of := range e.mu.of {
		if of.latest().Timestamp().Add(MaxSession).Before(now) {
			e.drop(of)
			delete(e.mu.of, subject)
		}
	}
}

// SubjectOf returns the name of the subject whose session it is; empty if the session has ended.
func (g *Gate) SubjectOf(s *Session) string {
	found, err := g.bySession(context.Background(), g.current.Load(), s)
	switch {
	case allocator.KindOf(err) == allocator.Unavailable:
		return s.Names[0] // it may go on when the issuer answers: a logout ends it before
	case err != nil:
		return ""
	}
	return found.Name()
}

// EndSessions ends sessions in this process: those of each subject.
func (g *Gate) EndSessions(now time.Time, of map[string][]ulid.ULID) {
	for subject, ids := range of {
		for _, id := range ids {
			g.ended.add(subject, id)
		}
	}
	g.ended.forget(now)
}

// bySession returns the subject of a session. Its errors are Unauthenticated and Unavailable.
func (g *Gate) bySession(ctx context.Context, s *state, session *Session) (*Subject, error) {
	names, err := g.namesOf(ctx, session)
	if err != nil {
		return nil, err
	}
	id := Identity{Names: names, Expires: session.Expires}
	if len(session.Hash) == sha256.Size {
		id = s.tokens[[sha256.Size]byte(session.Hash)]
		if id.Expires.IsZero() || session.Expires.Before(id.Expires) {
			id.Expires = session.Expires
		}
	}
	if len(id.Names) == 0 {
		return nil, allocator.Errorf(allocator.Unauthenticated,
			"the session has ended, because its token is no longer in force")
	}
	found, now := g.subject(s, id), time.Now()
	if found.expired(now) || g.ended.has(found.Name(), session.ID) {
		return nil, allocator.Errorf(allocator.Unauthenticated, "the session has ended; log in again")
	}
	found.again = now.Add(reloadEvery) // a logout ends calls that last, too
	return found, nil
}

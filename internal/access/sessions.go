package access

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/throttle"
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

const (
	// checkEvery is how often an issuer is asked whether a login still holds, while its session is used.
	checkEvery = 30 * time.Second
	// checkWait bounds one such request.
	checkWait = 2 * time.Second
	// maxChecked bounds the logins of which it is remembered what the issuer said. Another one takes the place of any
	// of these, which then is asked about again when it is used.
	maxChecked = 10_000
)

// checks are what the issuer said last of logins. The zero value has none.
type checks struct {
	mu struct {
		sync.Mutex
		of map[ulid.ULID]*check
	}
	line throttle.Log
}

// check is what the issuer said of a login.
type check struct {
	mu struct {
		sync.Mutex           // held while the issuer is asked: other requests of the session wait for the answer
		asked      time.Time // when it was asked last
		names      []string  // that it gave last; nil for none
		ended      error     // why the login holds no longer
	}
}

// get returns what is known of a login.
func (c *checks) get(id ulid.ULID) *check {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.mu.of[id]; known != nil {
		return known
	}
	if c.mu.of == nil {
		c.mu.of = make(map[ulid.ULID]*check)
	}
	for other := range c.mu.of {
		if len(c.mu.of) < maxChecked {
			break
		}
		delete(c.mu.of, other)
	}
	c.mu.of[id] = &check{}
	return c.mu.of[id]
}

// errLoginUnsure is the answer to browsers, as errIssuerAway is to other callers.
var errLoginUnsure = allocator.Errorf(allocator.Unavailable,
	"the login cannot be checked now, as its issuer does not answer; retry later")

// namesOf returns the names of a session: those that the issuer of its login gives now. Its errors are Unauthenticated
// and Unavailable. While the issuer does not answer, what it said last holds; a login of which this process remembers
// nothing that it said may have ended, and is not taken as good.
func (g *Gate) namesOf(ctx context.Context, s *Session) ([]string, error) {
	if s.Access == "" {
		return s.Names, nil
	}
	c, now := g.checks.get(s.ID), time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	pause := checkEvery
	if c.mu.names == nil {
		pause = askIssuer
	}
	if c.mu.ended == nil && now.Sub(c.mu.asked) >= pause {
		// The answer is for other requests, too, so the end of this one does not end it.
		names, _, err := g.askLogin(context.WithoutCancel(ctx), s.Names, s.Groups, s.Access)
		c.mu.asked = now
		switch {
		case err == nil:
			c.mu.names = names
		case allocator.KindOf(err) == allocator.Unauthenticated:
			c.mu.ended = err
		default:
			g.checks.line.Log(now, g.log.Warn, "the issuer does not say whether logins still hold: those go on of "+
				"which it said so before", "error", err)
		}
	}
	switch {
	case c.mu.ended != nil:
		return nil, c.mu.ended
	case c.mu.names == nil:
		return nil, errLoginUnsure
	}
	return c.mu.names, nil
}

// NewLogin returns the session of a login at the issuer, which gave an access token with it. The session is asked
// about with that token, if the issuer answers to it. It expires with what the login proved, which holds for longer
// only while the issuer is asked.
func (g *Gate) NewLogin(ctx context.Context, id Identity, token string) *Session {
	names, groups, err := g.askLogin(ctx, id.Names, false, token)
	if err != nil {
		g.log.Info("the issuer says nothing of a login to the page: the session ends with its id_token", "error", err)
		return &Session{Names: id.Names, Expires: id.Expires}
	}
	return &Session{Names: names, Expires: id.Expires, Access: token, Groups: groups}
}

// askLogin asks the issuer about a login's access token. It returns the names of the login, with the groups that
// the issuer gives now, and whether it gives groups. Names of before that it does not speak of stay: its groups, unless
// it gave them before (gave). Its errors are Unauthenticated (the login holds no longer) and Unavailable.
func (g *Gate) askLogin(ctx context.Context, before []string, gave bool, token string) (names []string, groups bool,
	err error) {
	if !g.HasIssuer() {
		return nil, false, allocator.Errorf(allocator.Unauthenticated, "this console has no issuer of logins")
	}
	i, err := g.login()
	if err != nil {
		return nil, false, err
	}
	p, err := i.provider()
	if err != nil {
		return nil, false, err
	}
	claims, err := i.userInfo(ctx, p.UserInfoEndpoint(), token)
	if err != nil {
		return nil, false, err
	}
	if !i.Names.Match(before[0]) {
		return nil, false, allocator.Errorf(allocator.Unauthenticated, "the issuer may no longer give the login's name")
	}
	if user := texts(claims[i.User]); len(user) > 0 && policy.JWT+user[0] != before[0] {
		return nil, false, allocator.Errorf(allocator.Unauthenticated, "the login is now another subject's")
	}
	for claim, want := range i.Required {
		if is := claims[claim]; is != nil && !slices.Contains(texts(is), want) {
			return nil, false, allocator.Errorf(allocator.Unauthenticated, "the login's claim %s is no longer %q",
				claim, want)
		}
	}
	_, groups = claims[i.Groups]
	if !groups && !gave {
		return slices.DeleteFunc(slices.Clone(before), func(name string) bool { return !i.Names.Match(name) }), false,
			nil
	}
	return i.withGroups(before[0], claims), groups, nil
}

// userInfo returns the claims that the issuer's endpoint UserInfo gives for an access token. Its errors are
// Unauthenticated (the issuer refuses the token) and Unavailable.
func (i *issuer) userInfo(ctx context.Context, at, token string) (claims map[string]json.RawMessage, err error) {
	if at == "" || token == "" {
		return nil, i.away(fmt.Errorf("it has no userinfo_endpoint, or gave no access token"))
	}
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, http.NoBody)
	if err != nil {
		return nil, i.away(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Accept", "application/json")
	status, content, err := i.answer(r)
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		return nil, allocator.Errorf(allocator.Unauthenticated, "the login at the issuer has ended; log in again")
	}
	if err == nil {
		err = json.Unmarshal(content, &claims)
	}
	if err != nil {
		return nil, i.away(fmt.Errorf("UserInfo: %w", err))
	}
	return claims, nil
}

package access

import (
	"context"
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

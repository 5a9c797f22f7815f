package access_test

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

// login returns a session of alice, an admin by her group, who has an access token.
func (w *world) login(t *testing.T) *access.Session {
	t.Helper()
	id := access.Identity{Names: []string{"jwt:alice", "group:admins"}, Expires: time.Now().Add(5 * time.Minute)}
	s := w.gate.NewLogin(bg, id, "secret")
	s.ID, s.Expires = ulid.Make(), time.Now().Add(12*time.Hour)
	return s
}

// admin reports whether a session is of alice, and whether she may do what admins may.
func (w *world) admin(s *access.Session) (alice, admin bool) {
	found, err := w.gate.Authenticate(bg, access.Credentials{Session: s})
	if err != nil {
		return false, false
	}
	return found.Name() == "jwt:alice", found.Allows(marchv1.ConsoleService_DeleteTag_FullMethodName, "order")
}

// A user who is disabled at the issuer, or whose groups change there, loses the session or the role within a minute,
// also at a console that never saw the login.
func TestLoginFollowsTheIssuer(t *testing.T) {
	asking(t, func(t *testing.T, w *world, m *moody) {
		status, groups, asked := http.StatusOK, []string{"admins"}, 0
		w.issuer.info = func(token string) (int, map[string]any) {
			asked++
			if token != "secret" {
				return http.StatusUnauthorized, nil
			}
			return status, map[string]any{"sub": "alice", "groups": groups}
		}
		s, other := w.login(t), w.login(t)
		if !slices.Equal(s.Names, []string{"jwt:alice", "group:admins"}) || s.Access != "secret" || !s.Groups {
			t.Fatalf("%+v", s)
		}
		before := asked
		for range 100 {
			if alice, admin := w.admin(s); !alice || !admin {
				t.Fatal(alice, admin)
			}
		}
		if asked != before+1 {
			t.Errorf("asked %d times", asked-before)
		}
		groups = nil
		time.Sleep(time.Minute)
		if alice, admin := w.admin(s); !alice || admin {
			t.Errorf("out of the group: %v, %v", alice, admin)
		}
		groups = []string{"admins"}
		time.Sleep(time.Minute)
		if alice, admin := w.admin(s); !alice || !admin {
			t.Errorf("in the group again: %v, %v", alice, admin)
		}
		for name, mood := range map[string]func(*http.Request) (*http.Response, error){"away": away, "hangs": hangs} {
			m.mood = mood
			time.Sleep(time.Minute)
			began := time.Now()
			if alice, admin := w.admin(s); !alice || !admin || time.Since(began) > 3*time.Second {
				t.Errorf("the issuer %s: %v, %v after %v", name, alice, admin, time.Since(began))
			}
			began = time.Now()
			if w.admin(s); time.Since(began) != 0 {
				t.Errorf("the issuer %s: the next request waited %v", name, time.Since(began))
			}
		}
		m.mood = nil
		status = http.StatusUnauthorized
		time.Sleep(time.Minute)
		if alice, _ := w.admin(s); alice {
			t.Error("a disabled user has a session")
		}
		if alice, _ := w.admin(other); alice { // which this console has not asked for so far
			t.Error("another session of a disabled user")
		}
		status = http.StatusOK
		time.Sleep(time.Minute)
		if alice, _ := w.admin(s); alice {
			t.Error("a session that has ended came back")
		}
	})
}

// Beyond 10,000 logins some are forgotten: those are asked about again, and while the issuer is away they are not taken
// as good. So a login that has ended does not go on, and one that lost a group does not get it back.
func TestForgottenLogins(t *testing.T) {
	asking(t, func(t *testing.T, w *world, m *moody) {
		status, groups := http.StatusOK, []string{"admins"}
		w.issuer.info = func(string) (int, map[string]any) {
			return status, map[string]any{"sub": "alice", "groups": groups}
		}
		ended, lesser := w.login(t), w.login(t)
		for _, s := range []*access.Session{ended, lesser} {
			if alice, admin := w.admin(s); !alice || !admin {
				t.Fatal(alice, admin)
			}
		}
		time.Sleep(time.Minute)
		groups = nil
		if _, admin := w.admin(lesser); admin {
			t.Fatal("still an admin")
		}
		status = http.StatusUnauthorized
		if alice, _ := w.admin(ended); alice {
			t.Fatal("the login has not ended")
		}
		status, groups = http.StatusOK, []string{"admins"}
		for range 10_001 {
			s := *ended
			s.ID = ulid.Make()
			if alice, admin := w.admin(&s); !alice || !admin {
				t.Fatal(alice, admin)
			}
		}
		m.mood = away
		if alice, _ := w.admin(ended); alice {
			t.Error("a login that has ended goes on")
		}
		if _, admin := w.admin(lesser); admin {
			t.Error("a login has a group again that it had lost")
		}
		other := *ended
		other.ID = ulid.Make()
		if got := w.gate.SubjectOf(&other); got != "jwt:alice" { // so that a logout ends it
			t.Errorf("a login that cannot be checked is of %q", got)
		}
	})
}

// A login whose token is another subject's by now has ended.
func TestLoginOfAnotherSubject(t *testing.T) {
	asking(t, func(t *testing.T, w *world, _ *moody) {
		sub := "alice"
		w.issuer.info = func(string) (int, map[string]any) { return http.StatusOK, map[string]any{"sub": sub} }
		s := w.login(t)
		if s.Groups || len(s.Names) != 2 { // the issuer gives groups in the id_token only: they stay
			t.Errorf("%+v", s)
		}
		if alice, admin := w.admin(s); !alice || !admin {
			t.Error(alice, admin)
		}
		sub = "mallory"
		time.Sleep(time.Minute)
		if alice, _ := w.admin(s); alice {
			t.Error("the session goes on")
		}
	})
}

// A login of which the issuer says nothing ends with its id_token.
func TestLoginWithoutUserInfo(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		gate := must(access.New(access.Config{Policy: w.path("policy.yaml"), Issuer: w.issuer.URL, Audience: "march",
			Transport: &moody{issuer: w.issuer}}))(t)
		ends := time.Now().Add(5 * time.Minute)
		s := gate.NewLogin(bg, access.Identity{Names: []string{"jwt:alice"}, Expires: ends}, "secret")
		if s.Access != "" || !s.Expires.Equal(ends) {
			t.Errorf("%+v", s)
		}
	})
}

// A console that has no issuer any longer takes no logins of one.
func TestLoginOfNoIssuer(t *testing.T) {
	w := newWorld(t)
	gate, err := access.New(access.Config{Policy: w.path("policy.yaml"), Tokens: w.path("tokens")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = gate.Authenticate(bg, access.Credentials{Session: &access.Session{ID: ulid.Make(),
		Names: []string{"jwt:alice"}, Access: "x", Expires: time.Now().Add(time.Hour)}})
	if allocator.KindOf(err) != allocator.Unauthenticated {
		t.Error(err)
	}
}

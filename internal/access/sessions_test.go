package access_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/internal/access"
)

// Of 10,000 sessions, one subject logs out most. The others stay as they are: logged out, or not.
func TestManySessions(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		session := func(subject string) *access.Session {
			ends := time.Now().Add(access.MaxSession)
			return &access.Session{ID: ulid.Make(), Names: []string{subject}, Expires: ends}
		}
		logout := func(s *access.Session) {
			w.gate.EndSessions(time.Now(), map[string][]ulid.ULID{s.Names[0]: {s.ID}})
		}
		var open, ended []*access.Session
		for i := range 500 {
			subject := fmt.Sprintf("jwt:user-%d", i)
			open, ended = append(open, session(subject)), append(ended, session(subject))
			logout(ended[i])
		}
		for range 9000 {
			s := session("jwt:mallory")
			logout(s)
			ended = append(ended, s)
			time.Sleep(time.Millisecond)
		}
		open = append(open, session("jwt:mallory")) // a new login counts
		for _, s := range open {
			if got := w.gate.SubjectOf(s); got != s.Names[0] {
				t.Fatalf("an open session of %s: %q", s.Names[0], got)
			}
		}
		for i, s := range ended {
			if got := w.gate.SubjectOf(s); got != "" {
				t.Fatalf("session %d of %s goes on after its logout", i, got)
			}
		}
		if sessions, subjects := w.gate.Ended(); sessions > 501*access.MaxEnded || subjects != 501 {
			t.Errorf("%d sessions of %d subjects are remembered", sessions, subjects)
		}
		time.Sleep(access.MaxSession + time.Second)
		w.gate.EndSessions(time.Now(), nil)
		if sessions, subjects := w.gate.Ended(); sessions != 0 || subjects != 0 {
			t.Errorf("%d sessions of %d subjects are remembered after all expired", sessions, subjects)
		}
	})
}

// A session of a token that does not end has an end of its own.
func TestSessionOfATokenEnds(t *testing.T) {
	w := newWorld(t)
	synctest.Test(t, func(t *testing.T) {
		s := must(w.gate.SessionOf(t.Context(), w.tokens["viewer"], ""))(t)
		s.Expires = time.Now().Add(time.Minute)
		before, _ := w.gate.Authenticate(t.Context(), access.Credentials{Session: s})
		time.Sleep(time.Minute + time.Second)
		after, err := w.gate.Authenticate(t.Context(), access.Credentials{Session: s})
		if before == nil || before.Name() != "token:viewer" || after != nil || err == nil {
			t.Errorf("%v before, %v, %v after", before, after, err)
		}
	})
}

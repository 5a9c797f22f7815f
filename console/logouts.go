package console

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/oklog/ulid/v2"

	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/internal/access"
)

const (
	// logoutsEvery is how often logouts are written and read: each ends everywhere after twice as long at most.
	logoutsEvery = 15 * time.Second
	// logoutsAgain is how far back entries are read again: the clock of the console that wrote one may be behind, and
	// etcd may have taken it late.
	logoutsAgain  = 5 * time.Minute
	logoutsWithin = 2 * time.Second // to write one at the logout itself
)

// logouts ends at this console the sessions that were logged out at any console, through the audit.
type logouts struct {
	admin *admin.Admin
	gate  *access.Gate
	log   hclog.Logger
	mu    struct {
		sync.Mutex
		pending map[string][]ulid.ULID // not yet in the audit, by subject
		written map[string]time.Time   // when a subject's last entry was written, if not long ago
	}
}

// add writes a logout. At most one entry of a subject is written in logoutsEvery, so that a subject cannot fill the
// audit; further logouts wait together.
func (l *logouts) add(ctx context.Context, subject string, session ulid.ULID) {
	l.mu.Lock()
	if l.mu.pending == nil {
		l.mu.pending, l.mu.written = make(map[string][]ulid.ULID), make(map[string]time.Time)
	}
	l.wait(subject, session)
	soon := time.Since(l.mu.written[subject]) < logoutsEvery
	l.mu.Unlock()
	if soon {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutsWithin)
	defer cancel()
	l.write(ctx, subject)
}

// write writes the logouts of a subject that wait.
func (l *logouts) write(ctx context.Context, subject string) {
	l.mu.Lock()
	ids := l.mu.pending[subject]
	delete(l.mu.pending, subject)
	if len(ids) > 0 {
		l.mu.written[subject] = time.Now()
	}
	l.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	if err := l.admin.LoggedOut(ctx, subject, ids); err != nil {
		l.log.Warn("logout not written: other consoles do not know of it yet", "subject", subject, "error", err)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wait(subject, ids...)
	}
}

// wait has logouts wait. More than MaxEnded end all sessions of the subject up to the latest, so one more is enough.
// The lock is held.
func (l *logouts) wait(subject string, ids ...ulid.ULID) {
	all := slices.Concat(l.mu.pending[subject], ids)
	slices.SortFunc(all, ulid.ULID.Compare)
	l.mu.pending[subject] = all[max(len(all)-access.MaxEnded-1, 0):]
}

func (l *logouts) run(ctx context.Context) {
	if l.gate == nil {
		return
	}
	since := time.Now().Add(-access.MaxSession)
	every(ctx, func(ctx context.Context) time.Duration {
		now := time.Now()
		if of, err := l.admin.Logouts(ctx, since); err == nil {
			l.gate.EndSessions(now, of)
			since = now.Add(-logoutsAgain)
		} else if ctx.Err() == nil {
			l.log.Warn("logouts at other consoles not read", "error", err)
		}
		for _, subject := range l.waiting(now) {
			l.write(ctx, subject)
		}
		return logoutsEvery
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutsWithin)
	defer cancel()
	for _, subject := range l.waiting(time.Now()) {
		l.write(ctx, subject)
	}
}

// waiting returns the subjects of the logouts that wait, and forgets when the others last wrote an entry.
func (l *logouts) waiting(now time.Time) (subjects []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for subject := range l.mu.pending {
		subjects = append(subjects, subject)
	}
	for subject, at := range l.mu.written {
		if now.Sub(at) >= logoutsEvery {
			delete(l.mu.written, subject)
		}
	}
	return subjects
}

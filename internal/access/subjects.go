package access

import (
	"sync"
	"time"
)

// subjects are the subjects that were found, by what proved them. The zero value has none.
type subjects[K comparable] struct {
	mu struct {
		sync.RWMutex
		found map[K]*Subject
	}
}

// maxRemembered bounds the subjects of one kind of proof.
const maxRemembered = 10_000

// get returns the subject of a proof, or nil if it was not found yet.
func (l *subjects[K]) get(proof K) *Subject {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.mu.found[proof]
}

// put remembers the subject of a proof. If there are too many, it forgets the expired ones, or
// else any.
func (l *subjects[K]) put(proof K, s *Subject, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.found == nil {
		l.mu.found = make(map[K]*Subject)
	}
	if len(l.mu.found) >= maxRemembered {
		l.forget(now)
	}
	l.mu.found[proof] = s
}

// forget makes room for one subject. The lock is held.
func (l *subjects[K]) forget(now time.Time) {
	for proof, s := range l.mu.found {
		if s.expired(now) {
			delete(l.mu.found, proof)
		}
	}
	for proof := range l.mu.found {
		if len(l.mu.found) < maxRemembered {
			return
		}
		delete(l.mu.found, proof)
	}
}

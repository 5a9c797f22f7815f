package ledger

import "time"

// confirmations is when each layout version was last known to be the current
// one: the time at which a request was sent whose answer, a linearizable read or
// a committed lease, shows that it was.
type confirmations map[int64]time.Time

// maxConfirmations bounds how many versions are remembered, the newest.
const maxConfirmations = 64

func (c confirmations) add(version int64, sent time.Time) {
	if sent.After(c[version]) {
		c[version] = sent
	}
	for len(c) > maxConfirmations {
		oldest := version
		for v := range c {
			oldest = min(oldest, v)
		}
		delete(c, oldest)
	}
}

// confirm notes that version was the current layout at some time after sent.
func (l *Ledger) confirm(version int64, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if mutant("confirmed-when-answered") {
		sent = time.Now()
	}
	l.mu.confirmed.add(version, sent)
}

// Confirmed returns a time, by this process's clock, after which version still
// was the current layout, as late as is known; zero when nothing is known. A
// layout that was replaced is confirmed no more, so whoever issues its IDs only
// for a while after this time stops for certain that long after the change.
// newest is the version of the newest layout known.
func (l *Ledger) Confirmed(version int64) (at time.Time, newest int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.confirmed[version], l.mu.state.layout.Layout.Version
}

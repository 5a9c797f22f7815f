package worker

import "time"

// length returns how long a window lasts for a process of some age. It is twice the age, so
// that half of it is over when the process is half as old again, and at most twice the reserve.
// A process that crashes soon has a short window, and its number is free seconds later. The
// window has at least three ticks. A pinned window is at most PinnedWindow, and a caller's at
// most what the request allows.
func (c Config) length(age time.Duration, r Request) time.Duration {
	d := min(2*age, 2*c.Reserve)
	if r.Pin.set {
		d = min(d, c.PinnedWindow)
	}
	if r.Longest > 0 {
		d = min(d, r.Longest)
	}
	return max(d, Shortest, 3*r.Tick)
}

// age returns the age of the process that uses a worker. A caller's process counts as no older
// than this one.
func (w *Workers) age(r Request, held time.Duration) time.Duration {
	age := w.cfg.Elapsed()
	if r.Caller && r.Age < age-held {
		return r.Age + held
	}
	return age
}

// begin returns the start of a new owner's window, in Unix ms: the tick of the clock, and not
// before least, which is the end of the previous window.
func begin(now, least int64, tick time.Duration) int64 {
	ms := tick.Milliseconds()
	return max(now-now%ms, least)
}

// end returns the end of a window of a length, in Unix ms. It is the end of a tick, at least
// three ticks after the start, and at most longest after the clock if that is longer.
func end(now, from int64, length, longest, tick time.Duration) int64 {
	ms := tick.Milliseconds()
	until := up(now+length.Milliseconds(), ms)
	if until > now+longest.Milliseconds() {
		until -= ms
	}
	return max(until, up(from, ms)+3*ms)
}

// up rounds a time up to a multiple of ms.
func up(at, ms int64) int64 { return (at + ms - 1) / ms * ms }

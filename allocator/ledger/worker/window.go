package worker

import "time"

// length returns how long a window of a process of some age is: twice the age, so that
// half of it is over when the process is half as old again, and at most twice the
// reserve. A process that crashes at once takes a short one, and its number is free
// seconds later. It is three ticks at least. A pinned window is short at most, and a
// caller's as long as the request allows.
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

// age returns the age of the process that uses a worker, held for so long by now: of a
// caller's process at most that of this one.
func (w *Workers) age(r Request, held time.Duration) time.Duration {
	age := w.cfg.Elapsed()
	if r.Caller && r.Age < age-held {
		return r.Age + held
	}
	return age
}

// begin returns where a window of a new owner begins, in Unix ms: at the tick that the
// clock is in, and not before least, which is the end of the window before.
func begin(now, least int64, tick time.Duration) int64 {
	ms := tick.Milliseconds()
	return max(now-now%ms, least)
}

// end returns where a window of a length ends, in Unix ms: at the end of a tick, three
// ticks after its begin at least, and at most longest after the clock where that is
// longer.
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

package console

import (
	"context"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/record"
)

// Each console counts by itself how long instances have been silent, on its
// monotonic clock and in memory. So a wrong clock does not make a console forget an
// instance, or let a migration go on too early. A console that was just started
// waits longer than one that has counted for long.

const (
	// silenceEvery is how often a console looks for heartbeats.
	silenceEvery = 10 * time.Second
	// silenceGap is the longest gap between two looks after which a console goes on
	// counting: while etcd does not answer, the console cannot see heartbeats.
	silenceGap = 3 * silenceEvery
	// silentBeats is how many intervals of heartbeats pass before an instance is
	// silent.
	silentBeats = 3
)

// instance is a registered instance as this console sees it.
type instance struct {
	record.Instance
	// Alive: its heartbeat changed recently, or this console has not yet looked for
	// long enough to know that it did not.
	Alive bool
	// Unknown: it is alive only by the second of these, and its last heartbeat is no recent one. Nothing shows it as up
	// before it sends a heartbeat or answers.
	Unknown bool
	// SilentSince is when this console last saw a new heartbeat; zero while the
	// instance is alive. It has a monotonic reading.
	SilentSince time.Time
	// Died is since when it is silent or unknown, as far as anyone knows; zero for any other. It is only to be shown:
	// it outlasts outages, and before this console first looked it is the heartbeat's own time, by the instance's
	// clock.
	Died time.Time
	// ReportedAt is when this console saw the instance report the layout that it serves; zero
	// if the console was not looking then.
	ReportedAt time.Time
	// WaitedSince is since when a migration waits for the silent instance; zero if
	// none does.
	WaitedSince time.Time
}

// heartbeats is what a console remembers of heartbeats, and of the migration under way. The view's lock is held.
type heartbeats struct {
	seen   map[record.InstanceID]sighting
	looked time.Time // the last time
	// limit is how long a heartbeat may stay the same. It falls only after until,
	// because instances learn later than this console that there are fewer of
	// them.
	limit time.Duration
	until time.Time

	migration string    // the one under way,
	reached   int       // the number of its moves made,
	since     time.Time // and since when this console has known that
}

// sighting is a heartbeat, and when this console first saw it; and the same of the version
// that the instance reports. reported is zero if the console has seen no other version.
type sighting struct {
	beat     string
	since    time.Time // from when on its silence counts
	last     time.Time // of the last heartbeat, to be shown
	silent   bool      // until the next heartbeat
	old      bool      // until the next heartbeat: when this console began to count, this one was not recent
	version  int64
	reported time.Time
}

// silentAfter returns how long a heartbeat must stay the same for its instance to
// be silent.
func silentAfter(instances int) time.Duration {
	return silentBeats * ledger.HeartbeatInterval(instances)
}

// note takes the records of a read that was sent at sent and answered by now, and
// returns the instances as this console sees them.
func (h *heartbeats) note(records []record.Instance, sent, now time.Time) []instance {
	anew := now.Sub(h.looked) > silenceGap
	if anew {
		h.limit = 0
	}
	h.looked = now
	if limit := silentAfter(len(records)); limit >= h.limit || now.After(h.until) {
		h.limit, h.until = limit, now.Add(2*limit+time.Minute)
	}
	seen := make(map[record.InstanceID]sighting, len(records))
	list := make([]instance, len(records))
	for k, r := range records {
		is, ok := h.seen[r.ID()]
		switch {
		case !ok:
			// A clock that is ahead makes a heartbeat of long ago no recent one.
			is = sighting{beat: r.Beat, since: now, last: now, old: now.Sub(r.LastSeen).Abs() >= h.limit}
			if !r.LastSeen.IsZero() && r.LastSeen.Before(now) {
				is.last = r.LastSeen
			}
		case is.beat != r.Beat:
			is.beat, is.since, is.last, is.silent, is.old = r.Beat, now, now, false, false
		case anew: // nobody looked meanwhile: its silence counts anew, but one that was dead is no longer up
			is.since, is.old = now, is.old || now.Sub(is.last) >= h.limit
		}
		if version := r.Reported(); is.version != version {
			is.version, is.reported = version, time.Time{}
			if ok { // at the first look the report may be old
				is.reported = now
			}
		}
		// The read may have seen the heartbeat as it was at sent. A slow answer is no silence.
		is.silent = is.silent || sent.Sub(is.since) >= h.limit
		seen[r.ID()] = is
		list[k] = instance{Instance: r, Alive: !is.silent, Unknown: !is.silent && is.old, ReportedAt: is.reported}
		if is.silent {
			list[k].SilentSince = is.since
		}
		if is.silent || is.old {
			list[k].Died = is.last
		}
	}
	h.seen = seen
	return list
}

// waitFor sets since when a migration waits for each instance of a list that is silent: since it has been, and this
// console has known that the migration made its last move. The migration was read before now.
func (h *heartbeats) waitFor(m record.Migration, list []instance, now time.Time) {
	if m.State.Ended() {
		return
	}
	if h.migration != m.ID || h.reached != m.Reached {
		h.migration, h.reached, h.since = m.ID, m.Reached, now
	}
	for k := range list {
		if i := &list[k]; !i.Alive {
			i.WaitedSince = i.SilentSince
			if h.since.After(i.WaitedSince) {
				i.WaitedSince = h.since
			}
		}
	}
}

// sight notes instances that were read with a migration under way by a read that was sent at sent.
func (s *view) sight(records []record.Instance, m record.Migration, sent time.Time) []instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	list := s.heartbeats.note(records, sent, now)
	s.heartbeats.waitFor(m, list, now)
	return list
}

// watchSilence looks for heartbeats, and forgets the instances that have been silent for long. It returns the pause
// before the next time.
func (s *upkeep) watchSilence(ctx context.Context) (pause time.Duration) {
	if err := s.forgetSilent(ctx); err != nil && ctx.Err() == nil {
		s.forgetLog.Log(time.Now(), s.log.Debug, "could not look for silent instances", "error", err)
	}
	return silenceEvery
}

// forgetSilent forgets the instances that this console has counted as silent for
// longer than ForgetAfter, without a break.
func (s *upkeep) forgetSilent(ctx context.Context) error {
	list, err := s.instances(ctx)
	if err != nil {
		return err
	}
	for _, i := range list {
		if i.Alive || i.Unreadable != nil || time.Since(i.SilentSince) <= s.cfg.ForgetAfter {
			continue
		}
		if err := s.admin.ForgetSilent(ctx, i.Instance,
			"console "+s.name+": silent for "+s.cfg.ForgetAfter.String()); err != nil {
			// If nothing can be written, heartbeats cannot be written either: the count begins anew.
			s.publish(func(*snapshot) { s.heartbeats.seen = nil })
			return err
		}
	}
	return nil
}

// inRoom returns the instances of a room, or all if room is empty.
func inRoom(list []instance, room allocator.Room) []instance {
	if room == "" {
		return list
	}
	var of []instance
	for _, i := range list {
		if i.Room == room {
			of = append(of, i)
		}
	}
	return of
}

// asked returns the places of the instances that a sample asks: those that are alive, the silent
// ones that answered before, and askAtOnce of the other silent ones, in turn.
func (s *view) asked(instances []instance, before sample) (places []int) {
	var others []int
	for i, instance := range instances {
		switch {
		case instance.Alive || before.instances[instance.ID()].status != nil:
			places = append(places, i)
		case instance.Unreadable == nil && instance.Room != "":
			others = append(others, i)
		}
	}
	if len(others) <= askAtOnce {
		return append(places, others...)
	}
	from := int(s.turn.Add(askAtOnce) % int64(len(others)))
	for k := range askAtOnce {
		places = append(places, others[(from+k)%len(others)])
	}
	return places
}

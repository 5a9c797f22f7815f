package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/cmd/chaos/internal/cluster"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
	"github.com/march-id/march/cmd/internal/proxy"
	"github.com/march-id/march/internal/crash"
)

const (
	stopSignal = syscall.SIGSTOP
	contSignal = syscall.SIGCONT
)

// allFaults returns every kind.
func allFaults() []fault {
	return slices.Concat(serverFaults(), journalFaults(), diskFaults(), memberFaults(), clockFaults(), restoreFaults())
}

// serverFaults hurt rooms, consoles, and their links.
func serverFaults() []fault {
	instance := func(d *driver, r *rand.Rand) (*cluster.Server, error) { return d.instance(r) }
	console := func(d *driver, r *rand.Rand) (*cluster.Server, error) { return pick(r, d.Consoles), nil }
	etcdLinks := func(s *cluster.Server) []*proxy.Link { return s.Etcd }
	callers := func(s *cluster.Server) []*proxy.Link { return []*proxy.Link{s.Callers} }
	peers := func(s *cluster.Server) []*proxy.Link { return []*proxy.Link{s.Peers} }
	return []fault{
		{"kill room", "an instance is killed, and started again at once or soon", kill(instance)},
		{"kill whole room", "all instances of a room are killed at once", killRoom},
		{"pause room", "an instance is stopped for 1 to 4 s", pauseServer(instance)},
		{"kill console", "a console is killed", kill(console)},
		{"pause console", "a console is stopped for 1 to 4 s", pauseServer(console)},
		{"cut off room", "a room has no etcd for as long as its reserve lasts", cutOff},
		{lostAnswers, "a room's leases are done, and their answers lost", loseAnswers},
		{"hold room to etcd", "what an instance sends to etcd is held back, or what it is to hear",
			link(instance, etcdLinks, oneWay)},
		{"slow room to etcd", "an instance's way to etcd takes longer", link(instance, etcdLinks, slow)},
		{"cut room to etcd", "an instance's connections to etcd are cut, again and again",
			link(instance, etcdLinks, cutting)},
		{"hold console to etcd", "a console has no etcd", link(console, etcdLinks, bothWays)},
		{"cut console to etcd", "a console's connections to etcd are cut, again and again",
			link(console, etcdLinks, cutting)},
		{"hold callers", "callers hear nothing of an instance, or it nothing of them", link(instance, callers, oneWay)},
		{"cut callers", "connections of callers are cut, again and again", link(instance, callers, cutting)},
		{"hold passed calls", "instances hear nothing of one to which they pass calls on, or it nothing of them",
			link(instance, peers, oneWay)},
		{"cut passed calls", "connections of other instances to an instance are cut, again and again",
			link(instance, peers, cutting)},
		{"replace rooms", "all consoles and instances stop in good order and start again, one after the other",
			replaceRooms},
		{"crash room", "an instance dies at a named point of its own code", crashAt(crash.Room, instance)},
		{"crash console", "a console dies at a named point of its own code", crashAt(crash.Console, console)},
		{"narrow callers", "the way from callers to an instance is slow and narrow", link(instance, callers, narrow)},
	}
}

// lostAnswers is the fault that a short run must have: without a transaction that failed and
// was applied it shows nothing.
const lostAnswers = "lose answers of etcd"

type choose func(d *driver, r *rand.Rand) (*cluster.Server, error)

func kill(choose choose) func(context.Context, *driver, *rand.Rand) (*injury, error) {
	return func(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
		s, err := choose(d, r)
		if err != nil {
			return nil, err
		}
		lasts := between(r, 0, time.Second)
		if err := s.Down(); err != nil {
			return nil, err
		}
		return &injury{target: s.ID, lasts: lasts, end: func(context.Context) error {
			s.Keep(true)
			return nil
		}}, nil
	}
}

func killRoom(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
	of := d.instancesOf(pick(r, d.Rooms))
	for _, s := range of {
		if d.isPaused(s) {
			return nil, fmt.Errorf("%w: %s is stopped", errSkip, s.ID)
		}
	}
	for _, s := range of {
		d.touch(s.Room)
		if err := s.Down(); err != nil {
			return nil, err
		}
	}
	return &injury{target: names(of), lasts: between(r, 0, time.Second), end: func(context.Context) error {
		for _, s := range of {
			s.Keep(true)
		}
		return nil
	}}, nil
}

// replaceRooms replaces all consoles and instances, as an upgrade to another build does, or the way back.
func replaceRooms(ctx context.Context, d *driver, _ *rand.Rand) (*injury, error) {
	if err := d.holdPauses(ctx); err != nil {
		return nil, err
	}
	defer d.hold.Unlock()
	program := d.March
	if d.upgrades%2 == 1 && d.Previous != "" {
		program = d.Previous
	}
	all := slices.Concat(d.Consoles, d.Instances)
	for _, s := range all {
		if s.Room != "" {
			d.touch(s.Room)
		}
		s.Program(program)
		if err := s.Replace(); err != nil {
			d.note(runlog.Event{What: runlog.Process, Target: s.Name, Violation: err.Error()})
		}
		starting, cancel := context.WithTimeoutCause(ctx, startWithin, fmt.Errorf("not within %v", startWithin))
		err := cluster.Poll(starting, s.Name+" to be ready", func() bool {
			return s.Room == spare || d.ready(starting, s)
		})
		cancel()
		if err != nil {
			return nil, err
		}
	}
	d.upgrades++
	d.moved("upgrade")
	return &injury{target: names(all), end: func(context.Context) error { return nil }}, nil
}

// holdPauses keeps the lane of pauses from stopping processes, until hold is given back, and ends the present pause.
func (d *driver) holdPauses(ctx context.Context) error {
	if !d.hold.TryLock() {
		return errHeld
	}
	err := cluster.Poll(ctx, "stopped processes to go on", func() bool {
		select {
		case d.goesOn <- struct{}{}:
		default:
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.mu.paused) == 0
	})
	if err != nil {
		d.hold.Unlock()
	}
	return err
}

func (d *driver) instancesOf(room cluster.Room) (of []*cluster.Server) {
	for _, s := range d.Instances {
		if s.Room == room.Name {
			of = append(of, s)
		}
	}
	return of
}

func pauseServer(choose choose) func(context.Context, *driver, *rand.Rand) (*injury, error) {
	return func(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
		s, err := choose(d, r)
		if err != nil {
			return nil, err
		}
		if d.isPaused(s) {
			return nil, fmt.Errorf("%w: %s is stopped", errSkip, s.ID)
		}
		return &injury{target: s.ID, lasts: between(r, time.Second, 4*time.Second), end: func(context.Context) error {
			return s.Signal(contSignal)
		}}, s.Signal(stopSignal)
	}
}

// ailment draws a fault of a link, whether its connections are cut, and how often.
type ailment func(r *rand.Rand) (f proxy.Fault, cutEvery time.Duration, detail string)

func oneWay(r *rand.Rand) (proxy.Fault, time.Duration, string) {
	if r.IntN(2) == 0 {
		return proxy.Fault{HoldUp: true}, 0, "requests"
	}
	return proxy.Fault{HoldDown: true}, 0, "answers"
}

func bothWays(*rand.Rand) (proxy.Fault, time.Duration, string) {
	return proxy.Fault{HoldUp: true, HoldDown: true}, 0, "both ways"
}

func slow(r *rand.Rand) (proxy.Fault, time.Duration, string) {
	delay := between(r, 20*time.Millisecond, 600*time.Millisecond)
	return proxy.Fault{Delay: delay}, 0, delay.Round(time.Millisecond).String()
}

func narrow(r *rand.Rand) (proxy.Fault, time.Duration, string) {
	return proxy.Fault{Delay: between(r, 5*time.Millisecond, 100*time.Millisecond),
		Rate: 20_000 + r.IntN(100_000)}, 0, ""
}

func cutting(r *rand.Rand) (proxy.Fault, time.Duration, string) {
	every := between(r, 20*time.Millisecond, 500*time.Millisecond)
	return proxy.Fault{}, every, "every " + every.Round(time.Millisecond).String()
}

// link hurts some links of a server.
func link(choose choose, of func(*cluster.Server) []*proxy.Link,
	ail ailment) func(context.Context, *driver, *rand.Rand) (*injury, error) {
	return func(_ context.Context, d *driver, r *rand.Rand) (*injury, error) {
		s, err := choose(d, r)
		if err != nil {
			return nil, err
		}
		f, every, detail := ail(r)
		cutAtEnd := r.IntN(2) == 0
		return d.hurtLinks(of(s), f, every, cutAtEnd, &injury{target: s.ID, detail: detail,
			lasts: between(r, 500*time.Millisecond, 4*time.Second)}), nil
	}
}

// hurtLinks hurts the links with f until the injury ends. Bytes that were held are then lost if
// cutAtEnd is set, and arrive late otherwise.
func (d *driver) hurtLinks(links []*proxy.Link, f proxy.Fault, every time.Duration, cutAtEnd bool, i *injury) *injury {
	for _, l := range links {
		l.Set(f)
	}
	cuts, stop := context.WithCancel(d.background)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for every > 0 {
			for _, l := range links {
				l.Cut()
			}
			if !store.Sleep(cuts, every) {
				return
			}
		}
	}()
	i.end = func(context.Context) error {
		stop()
		<-done
		for _, l := range links {
			if cutAtEnd {
				l.Cut()
			}
			l.Set(proxy.Fault{})
		}
		return nil
	}
	return i
}

// settleFor is how long a room is left alone before its reserve is full again: steps grow with
// the measured rate, from min_step on, and the callers of a hurt room ask for more than that
// rate.
const settleFor = 20 * time.Second

// cutOff holds a room's links to etcd for less time than its instances' reserves last: no
// caller may notice. So no process is stopped for long meanwhile: calls to a stopped process
// fail for another reason than etcd.
func cutOff(ctx context.Context, d *driver, r *rand.Rand) (*injury, error) {
	if !d.hold.TryLock() {
		return nil, errHeld
	}
	i, err := d.cutOff(ctx, r)
	if err != nil {
		d.hold.Unlock()
		return nil, err
	}
	end := i.end
	i.end = func(ctx context.Context) error {
		defer d.hold.Unlock()
		return end(ctx)
	}
	return i, nil
}

func (d *driver) cutOff(ctx context.Context, r *rand.Rand) (*injury, error) {
	rooms := slices.Clone(d.Rooms)
	r.Shuffle(len(rooms), func(i, j int) { rooms[i], rooms[j] = rooms[j], rooms[i] })
	rooms = slices.DeleteFunc(rooms, func(room cluster.Room) bool {
		return room.Name == spare || slices.ContainsFunc(d.instancesOf(room), func(s *cluster.Server) bool {
			return d.isPaused(s) || s.Up() < settleFor || !d.settled(room.Name)
		})
	})
	if len(rooms) == 0 {
		return nil, fmt.Errorf("%w: no room was left alone for %v", errSkip, settleFor)
	}
	of := d.instancesOf(rooms[0])
	least := 6 * time.Second
	var links []*proxy.Link
	for _, s := range of {
		reserve, err := reserveOf(ctx, d, s)
		if err != nil {
			return nil, fmt.Errorf("%w: reserve of %s: %w", errSkip, s.ID, err)
		}
		least = min(least, reserve/2)
		links = append(links, s.Etcd...)
	}
	if least < 300*time.Millisecond {
		return nil, fmt.Errorf("%w: the reserve of %s lasts only %v", errSkip, names(of), least)
	}
	unhurt := make(map[string]bool)
	for _, s := range of {
		for _, tag := range d.Tags {
			// A strict tag may stop: its layout is not confirmed.
			if tag != strictTag {
				unhurt[runlog.Who(s.Room, allocator.Instance(s.ID), tag)] = true
			}
		}
	}
	i := &injury{target: names(of), lasts: least, unhurt: func(who string) bool { return unhurt[who] }}
	return d.hurtLinks(links, proxy.Fault{HoldUp: true, HoldDown: true}, 0, r.IntN(2) == 0, i), nil
}

// reserveOf asks an instance how long its IDs last, for the tag of which it has the least.
func reserveOf(ctx context.Context, d *driver, s *cluster.Server) (time.Duration, error) {
	conn, err := api.Dial(s.Admin, d.Credentials().Options()...)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	least := time.Hour
	for _, tag := range d.Tags {
		if tag == strictTag {
			continue
		}
		answer, err := marchv1.NewRoomServiceClient(conn).GetChain(ctx, &marchv1.GetChainRequest{Tag: string(tag)})
		if err != nil {
			return 0, err
		}
		chain := answer.GetChain()
		d.log.Debug("reserve", "instance", s.ID, "tag", tag, "held", chain.GetHeld(), "step", chain.GetStep(), "peak",
			chain.GetPeak(), "reserve", chain.GetReserve().AsDuration(), "layout", chain.GetVersion(),
			"issued", chain.GetIssued())
		least = min(least, chain.GetReserve().AsDuration())
	}
	return least, nil
}

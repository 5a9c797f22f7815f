package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// attack is what a bad caller does.
type attack struct {
	name, what string
	run        func(ctx context.Context, counts *counts, address string) error
	least      pressure // what it does where it gets the processor time that it needs
	times      float64  // how much longer a good caller may wait beside it, at the 99th percentile
}

// pressure is what an attacker did beside a measurement.
type pressure struct {
	sent, answered float64 // a second
	total          int64   // sent since it began
	waiting        int64   // of that, what is not answered
}

// reaches reports whether p is at least as much as other.
func (p pressure) reaches(other pressure) bool {
	return p.sent >= other.sent && p.answered >= other.answered && p.total >= other.total &&
		(p.waiting >= other.waiting || other.waiting == 0) // a stream that is refused may be answered twice
}

func (p pressure) String() string {
	return fmt.Sprintf("%.3g requests/s, %.3g answers/s; %d requests in all, %d without an answer", p.sent,
		p.answered, p.total, p.waiting)
}

// attackKinds are the measured attacks. Each must do at least a fraction of what it does on an
// idle machine of two processors. For eager streams of many callers that is what they ask and what waits: the
// room decides how much of it it answers.
var attackKinds = []attack{
	{"resets", "rapid reset on 4 connections", resets, pressure{sent: 10_000}, 10},
	{"silent", "60,000 silent streams on one connection", silent, pressure{total: 60_000}, 5},
	{"eager", "500 eager streams of one caller, opened again where refused", eager, pressure{sent: 10_000}, 5},
	{"reopened", "500 eager streams of one caller, opened again without a pause", reopener, pressure{sent: 1_000}, 5},
	{"callers", "500 eager streams of 50 callers", eagerCallers, pressure{total: 500_000, waiting: 100_000}, 5},
	{"deaf", "500 eager streams of one caller that reads no answer", deaf, pressure{total: 10_000}, 5},
	{"unknown", "2,000 callers of unknown tags", unknownTags, pressure{total: 2_000}, 5},
}

// halfTheProcessors is the environment setting with which a Go program uses half of the
// processors. The room has one half, the attacker the other, as if each had a machine of its
// own. If both use all processors, the kernel takes the room's threads off them for 4 to 12 ms
// at a time, and the row measures the kernel.
func halfTheProcessors() string { return fmt.Sprint("GOMAXPROCS=", max(1, runtime.NumCPU()/2)) }

// attacks are a part for each attack.
func attacks() (parts []measurement) {
	for _, a := range attackKinds {
		parts = append(parts, measurement{"attack " + a.name, func(p *part) { p.attack(a) }})
	}
	return parts
}

// attack measures a good caller beside an attack, against the same caller alone, and the
// memory that the room takes. The good caller opens new connections beside the attack, and a call of it that is
// refused ends the run.
func (p *part) attack(a attack) {
	const tags = 10
	during := time.Duration(p.seconds) * time.Second
	room := p.startRoom(tags, halfTheProcessors())
	room.ask("load")
	times := &row{what: "p99 in the server beside " + a.what + " to alone", goal: a.times, atMost: true, unit: "s"}
	memory := &row{what: "memory of the room beside " + a.what, goal: 256, atMost: true, unit: "MiB"}
	most := int64(0)
	var weakest pressure
	weak := 0
	for len(times.measured) < p.rounds && weak < p.rounds {
		alone := p.times(during, p.caller(room, tags))[0]
		beside, did, resident := p.besideAttack(room, a.name, tags, during)
		if !did.reaches(a.least) {
			weakest, weak = did, weak+1
			continue
		}
		times.yards = append(times.yards, alone.P99.Seconds())
		times.measured = append(times.measured, beside.P99.Seconds())
		most = max(most, resident)
	}
	if memory.measured = []float64{float64(most) / (1 << 20)}; len(times.measured) < p.rounds {
		times.void = fmt.Sprintf("in %d of %d rounds the attacker did too little: %v; it should do: %v", weak,
			weak+len(times.measured), weakest, a.least)
		times.measured, memory.measured, memory.void = nil, nil, "as above"
	}
	p.add(times, memory)
	p.check(room.close())
}

// besideAttack measures a good caller while another process attacks.
func (p *part) besideAttack(room *process, kind string, busy int, during time.Duration) (r reply, did pressure,
	resident int64) {
	attacker := p.start([]string{halfTheProcessors()}, "child-attack", kind, room.Address)
	time.Sleep(2 * time.Second) // the attack is under way
	watching, watched := make(chan struct{}), make(chan int64, 1)
	go func() {
		var most int64
		for {
			if now, err := memory(room.cmd.Process.Pid, "VmRSS:"); err == nil {
				most = max(most, now)
			}
			select {
			case <-watching:
				watched <- most
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	stop := sync.OnceFunc(func() { close(watching) })
	p.Cleanup(stop)
	before, began := attacker.ask("counts"), time.Now()
	r = p.times(during, p.caller(room, busy))[0]
	stop()
	after := attacker.ask("counts")
	took := time.Since(began).Seconds()
	did.sent, did.answered = float64(after.Sent-before.Sent)/took, float64(after.Answered-before.Answered)/took
	did.total, did.waiting = after.Sent, after.Sent-after.Answered
	p.check(attacker.close())
	return r, did, <-watched
}

// childAttack attacks the room at an address. It answers the command counts.
func childAttack(args []string) (address string, answer func(string) reply, end func() error, err error) {
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19); err != nil {
		return "", nil, nil, err
	}
	i := slices.IndexFunc(attackKinds, func(a attack) bool { return a.name == args[0] })
	if i < 0 {
		return "", nil, nil, fmt.Errorf("unknown attack %q", args[0])
	}
	counts, failed := &counts{}, make(chan error, 1)
	go func() { failed <- attackKinds[i].run(context.Background(), counts, args[1]) }() // ends with the process
	return "", func(string) reply {
		select {
		case err := <-failed:
			return reply{Error: fmt.Sprintf("the attack ended: %v", err)}
		default:
			return reply{Sent: counts.sent.Load(), Answered: counts.answered.Load()}
		}
	}, func() error { return nil }, nil
}

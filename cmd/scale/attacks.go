package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/march-id/march/cmd/internal/load"
)

// attack is what a bad caller does.
type attack struct {
	name, what string
	run        func(ctx context.Context, counts *counts, address string) error
	least      pressure // what it does where it gets the processor time that it needs
}

// pressure is what an attacker did beside a measurement.
type pressure struct {
	sent, answered float64 // a second
	total          int64   // sent since it began
	waiting        int64   // of that, what is not answered
}

// reaches reports whether p is at least as much as other.
func (p pressure) reaches(other pressure) bool {
	return p.sent >= other.sent && p.answered >= other.answered && p.total >= other.total && p.waiting >= other.waiting
}

func (p pressure) String() string {
	return fmt.Sprintf("%.3g requests/s, %.3g answers/s; %d requests in all, %d without an answer", p.sent,
		p.answered, p.total, p.waiting)
}

// attackKinds are the measured attacks. Each must do at least a fraction of what it does on an
// idle machine of two processors. For eager streams of many callers that is what they ask and what waits: the
// room decides how much of it it answers.
var attackKinds = []attack{
	{"resets", "rapid reset on 4 connections", resets, pressure{sent: 10_000}},
	{"silent", "60,000 silent streams on one connection", silent, pressure{total: 60_000}},
	{"eager", "500 eager streams of one caller, opened again where refused", eager, pressure{sent: 10_000}},
	{"callers", "500 eager streams of 50 callers", eagerCallers, pressure{total: 1_000_000, waiting: 100_000}},
	{"deaf", "500 eager streams of one caller that reads no answer", deaf, pressure{total: 10_000}},
	{"unknown", "2,000 callers of unknown tags", unknownTags, pressure{total: 2_000}},
}

// halfTheProcessors is the environment setting with which a Go program uses half of the
// processors. The room has one half, the attacker the other, as if each had a machine of its
// own. If both use all processors, the kernel takes the room's threads off them for 4 to 12 ms
// at a time, and the row measures the kernel.
func halfTheProcessors() string { return fmt.Sprint("GOMAXPROCS=", max(1, runtime.NumCPU()/2)) }

// attacks measures a good caller beside each attack, against the same caller alone, and the
// memory that the room takes.
func attacks(ctx context.Context, s sizes, add func(row)) error {
	const (
		tags      = 10
		most      = 256 << 20
		goalTimes = 5
	)
	during := time.Duration(s.seconds) * time.Second
	for _, a := range attackKinds {
		p, err := startRoom(ctx, tags, halfTheProcessors())
		if err != nil {
			return err
		}
		if _, err := p.ask("load"); err != nil {
			return err
		}
		var ratios, p99s []float64
		var memory int64
		var weakest pressure
		var weak int
		for len(ratios) < s.rounds && weak < s.rounds {
			alone, err := timesOf(ctx, p, tags, during)
			if err != nil {
				return err
			}
			beside, did, resident, err := besideAttack(ctx, p, a.name, tags, during)
			if err != nil {
				return err
			}
			if !did.reaches(a.least) {
				weakest, weak = did, weak+1
				continue
			}
			ratios = append(ratios, float64(beside.P99)/float64(alone.P99))
			p99s = append(p99s, float64(beside.P99)/float64(time.Millisecond))
			memory = max(memory, resident)
		}
		times := row{what: "p99 in the server beside " + a.what + " to alone", goal: goalTimes, unit: "times"}
		bytes := row{what: "memory of the room beside " + a.what, goal: most >> 20, unit: "MiB"}
		if len(ratios) < s.rounds {
			times.void = fmt.Sprintf("in %d of %d rounds the attacker did too little: %v; it should do: %v", weak,
				weak+len(ratios), weakest, a.least)
			bytes.void = "as above"
		} else {
			times.measured, times.note = load.Median(ratios), fmt.Sprintf("%.3g ms", load.Median(p99s))
			bytes.measured = float64(memory) / (1 << 20)
		}
		add(times)
		add(bytes)
		if err := p.close(); err != nil {
			return err
		}
	}
	return nil
}

// besideAttack measures a good caller while another process attacks.
func besideAttack(ctx context.Context, p *process, kind string, busy int,
	during time.Duration) (r reply, did pressure, resident int64, err error) {
	attacker, err := startChild(ctx, []string{halfTheProcessors()}, "child-attack", kind, p.Address)
	if err != nil {
		return r, did, 0, err
	}
	defer func() { err = errors.Join(err, attacker.close()) }()
	time.Sleep(2 * time.Second) // the attack is under way
	watching, watched := make(chan struct{}), make(chan int64, 1)
	go func() {
		var most int64
		for {
			if now, err := p.resident(); err == nil {
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
	before, err := attacker.ask("counts")
	if err != nil {
		return r, did, 0, err
	}
	began := time.Now()
	r, err = timesOf(ctx, p, busy, during)
	close(watching)
	resident = <-watched
	if err != nil {
		return r, did, 0, err
	}
	after, err := attacker.ask("counts")
	took := time.Since(began).Seconds()
	did.sent, did.answered = float64(after.Sent-before.Sent)/took, float64(after.Answered-before.Answered)/took
	did.total, did.waiting = after.Sent, after.Sent-after.Answered
	return r, did, resident, err
}

// childAttack attacks the room at an address until its standard input ends. It answers the
// command counts.
func childAttack(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want KIND ADDRESS, got %q", args)
	}
	if err := lowest(); err != nil {
		return err
	}
	i := slices.IndexFunc(attackKinds, func(a attack) bool { return a.name == args[0] })
	if i < 0 {
		return fmt.Errorf("unknown attack %q", args[0])
	}
	counts := &counts{}
	failed := make(chan error, 1)
	go func() { failed <- attackKinds[i].run(context.Background(), counts, args[1]) }() // ends with the process
	say := json.NewEncoder(os.Stdout)
	if err := say.Encode(reply{}); err != nil {
		return err
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		r := reply{Sent: counts.sent.Load(), Answered: counts.answered.Load()}
		select {
		case err := <-failed:
			r = reply{Error: fmt.Sprintf("the attack ended: %v", err)}
		default:
		}
		if err := say.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

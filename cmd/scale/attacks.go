package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/march-id/march/cmd/internal/load"
)

// attack is what a bad caller does.
type attack struct {
	name, what string
	run        func(ctx context.Context, address string) error
}

// attackKinds are those that are measured; runAttack has them.
var attackKinds = []attack{
	{"resets", "rapid reset on 4 connections", resets},
	{"silent", "60,000 silent streams on one connection", silent},
	{"eager", "500 eager streams on 10 connections", eager},
	{"unknown", "2,000 callers of unknown tags", unknownTags},
}

// halfTheProcessors is the setting of the environment with which a Go program uses half
// of the processors. The room has one half, the attacker the other, as if each had a
// machine of its own. If both use all processors, the kernel takes the room's threads
// off them for 4 to 12 ms at a time, and the row measures the kernel.
func halfTheProcessors() string { return fmt.Sprint("GOMAXPROCS=", max(1, runtime.NumCPU()/2)) }

// attacks measures a good caller beside each attack, against the same caller
// alone, and how much memory the room takes.
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
		for range s.rounds {
			alone, err := timesOf(ctx, p, tags, during)
			if err != nil {
				return err
			}
			beside, resident, err := besideAttack(ctx, p, a.name, tags, during)
			if err != nil {
				return err
			}
			ratios = append(ratios, float64(beside.P99)/float64(alone.P99))
			p99s = append(p99s, float64(beside.P99)/float64(time.Millisecond))
			memory = max(memory, resident)
		}
		add(row{
			what: "p99 in the server beside " + a.what + " to alone", measured: load.Median(ratios), goal: goalTimes, unit: "times",
			note: fmt.Sprintf("%.3g ms", load.Median(p99s)),
		})
		add(row{what: "memory of the room beside " + a.what, measured: float64(memory) / (1 << 20), goal: most >> 20, unit: "MiB"})
		if err := p.close(); err != nil {
			return err
		}
	}
	return nil
}

// besideAttack measures a good caller while another process attacks.
func besideAttack(ctx context.Context, p *process, kind string, busy int, during time.Duration) (r reply, resident int64, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, 0, err
	}
	attacking, stop := context.WithCancel(ctx)
	defer stop()
	attacker := exec.CommandContext(attacking, self, "child-attack", kind, p.Address)
	attacker.Stderr = os.Stderr
	attacker.Env = append(os.Environ(), halfTheProcessors())
	if err := attacker.Start(); err != nil {
		return r, 0, err
	}
	defer func() {
		stop()
		_ = attacker.Wait() // it was killed
	}()
	time.Sleep(2 * time.Second) // it is under way
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
	r, err = timesOf(ctx, p, busy, during)
	close(watching)
	return r, <-watched, err
}

// childAttack attacks the room at an address until it is killed.
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
	return attackKinds[i].run(context.Background(), args[1])
}

package sim_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/machine"
	"github.com/march-id/march/allocator/ledger/record"
)

// reserved is the name of the range that layouts reserve for clients of CosId.
const reserved = allocator.Room("cosid")

// tenure is a number as a client has it.
type tenure struct {
	client machine.Client
	given  time.Time
	heard  time.Time // when the client sent the last request that was answered
	over   bool      // the client gave the number back, or heard that it lost it
}

// machineClient keeps one client of CosId alive: it takes a number, guards it, gives it back, or
// ends without a word. Then another one begins.
func (w *world) machineClient(name string, lane int) {
	d, has := w.dice(name), false
	var c machine.Client
	var number int64
	for n := 1; w.sleep(w.end, d.between(100*time.Millisecond, 4*time.Second), lane); {
		if c.Instance == "" || d.chance(10) {
			c = machine.Client{Namespace: pick(d, []string{"orders", "users"}), Instance: fmt.Sprint(name, "#", n),
				Stable: d.chance(4)}
			has = false
			n++
		}
		p := w.victim(d, w.timers)
		if p == nil || !p.runs() || p.link.paused() {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		sent, guard := time.Now(), pick(d, []time.Duration{0, time.Second, 5 * time.Second, machine.Forever})
		var err error
		switch {
		case !has:
			if number, _, err = p.timed.machines.Distribute(ctx, c, w.bits(), guard); err == nil {
				w.noteMachine(number, c, sent, guard)
			}
			has = err == nil
		case d.chance(8):
			w.endMachine(number, c)
			err, has = p.timed.machines.Revert(ctx, c), false
		default:
			err = p.timed.machines.Guard(ctx, c)
			switch {
			case err == nil:
				w.guardMachine(number, c, sent)
			case errors.Is(err, error(machine.ErrLost)), errors.Is(err, error(machine.ErrNotFound)):
				w.endMachine(number, c)
				has = false
			}
		}
		cancel()
		w.count("machine IDs: "+kind(err), 1)
		if err != nil && !w.expected(err) {
			w.Errorf("%s by %s: %v", c.Instance, p.id, err)
		}
	}
}

// bits is the width of machine IDs: that of the workers of the tags, or one of few numbers.
func (w *world) bits() int {
	return pick(w.dice("machine IDs"), []int{w.times[0].settings.WorkerBits, 3, 5})
}

// noteMachine notes that a number was given to a client. Another client had been silent for long
// enough, or had given it back; and no room's worker has the number.
func (w *world) noteMachine(number int64, c machine.Client, sent time.Time, guard time.Duration) {
	now, id := time.Now(), record.WorkerID{Bits: w.bits(), Number: number}
	w.log("%-12s has the machine ID %d", c.Instance, number)
	w.mu.Lock()
	ever, was := w.mu.ever, w.mu.machines[number]
	w.mu.machines[number] = tenure{client: c, given: now, heard: sent}
	began, processes := w.mu.began, w.mu.processes
	w.mu.Unlock()
	if !inSlice(ever, reserved, 0, number, w.bits()) {
		w.Errorf("%s got the machine ID %d, which no reserved range ever had", c.Instance, number)
	}
	silent := now.Sub(latest(was.heard, began))
	switch other := was.client.Instance != "" && was.client != c && !was.over; {
	case !other:
	case w.forgot(was.given):
		w.count("machine IDs that a restore forgot, and that were given again", 1)
	case was.client.Stable:
		w.Errorf("%s got the machine ID %d of %s, which is stable", c.Instance, number, was.client.Instance)
	case guard == machine.Forever || silent < guard+2*record.MaxAhead:
		w.Errorf("%s got the machine ID %d of %s, which had been silent for %v; it wants a guard of %v", c.Instance,
			number, was.client.Instance, silent, guard)
	default:
		w.count("machine IDs of silent clients, given to others", 1)
	}
	for _, p := range processes {
		until, done, has := p.link.lastWindow(id)
		if has && until > w.rightTime().UnixMilli() && !w.forgot(done) {
			w.Errorf("%s got the machine ID %d, and %s has the worker of this number for %v", c.Instance, number, p.id,
				time.UnixMilli(until).Sub(w.rightTime()))
		}
	}
}

func (w *world) guardMachine(number int64, c machine.Client, sent time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was := w.mu.machines[number]; was.client == c {
		was.heard = sent
		w.mu.machines[number] = was
	}
}

func (w *world) endMachine(number int64, c machine.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was := w.mu.machines[number]; was.client == c {
		was.over = true
		w.mu.machines[number] = was
	}
}

// forgot reports whether etcd once forgot what was written at a time.
func (w *world) forgot(at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.mu.past.wentBackTo {
		if s.from.Before(at) && s.until.After(at) {
			return true
		}
	}
	return false
}

// lastWindow returns the end of the last window of a worker that counts, and when it was answered.
func (l *link) lastWindow(worker record.WorkerID) (until int64, done time.Time, has bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.mu.windows {
		if w.lost == "" && w.worker == worker {
			until, done, has = w.record.Until, w.done, true
		}
	}
	return until, done, has
}

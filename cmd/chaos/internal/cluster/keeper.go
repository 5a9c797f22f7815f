package cluster

import (
	"sync"
	"time"

	"github.com/march-id/march/cmd/chaos/internal/proc"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// keeper keeps a process running as long as that is wanted.
type keeper struct {
	*proc.Process
	command func() proc.Command
	events  *runlog.Events

	work sync.WaitGroup
	done chan struct{}
	once sync.Once
	wake chan struct{}

	mu struct {
		sync.Mutex
		wanted, expected bool // expected: the run itself ends it
		started          time.Time
	}
}

// restartPause is how long a process stays away after its end.
const restartPause = 100 * time.Millisecond

func newKeeper(p *proc.Process, events *runlog.Events, command func() proc.Command) *keeper {
	return &keeper{Process: p, command: command, events: events, done: make(chan struct{}),
		wake: make(chan struct{}, 1)}
}

// begin starts the process, and keeps it.
func (k *keeper) begin() {
	k.Keep(true)
	k.work.Go(k.keep)
}

func (k *keeper) keep() {
	for {
		if k.wanted() && !k.Running() {
			k.mu.Lock()
			k.mu.started = time.Now()
			k.mu.expected = false
			k.mu.Unlock()
			if err := k.Start(k.command()); err != nil {
				k.events.Add(runlog.Event{What: runlog.Process, Target: k.Name, Detail: err.Error()})
			}
		}
		var ended <-chan struct{}
		if k.Running() {
			ended = k.Ended()
		}
		select {
		case <-k.done:
			return
		case <-k.wake:
			continue
		case <-ended:
			k.mu.Lock()
			expected := k.mu.expected
			k.mu.Unlock()
			if !expected {
				k.events.Add(runlog.Event{What: runlog.Process, Target: k.Name, Detail: "ended by itself: " + k.How()})
			}
		case <-time.After(time.Second):
		}
		select {
		case <-k.done:
			return
		case <-time.After(restartPause):
		}
	}
}

// Up returns how long the process has run.
func (k *keeper) Up() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return time.Since(k.mu.started)
}

func (k *keeper) wanted() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.mu.wanted
}

// Keep says whether to start the process again when it has ended.
func (k *keeper) Keep(wanted bool) {
	k.mu.Lock()
	k.mu.wanted = wanted
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Expect says that the process will end, by a fault.
func (k *keeper) Expect() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.expected = true
}

// Down kills the process and keeps it away until Keep(true).
func (k *keeper) Down() error {
	k.Keep(false)
	k.Expect()
	return k.Process.Kill()
}

// Replace ends the process cleanly and starts it again. Its error says that the process had to be killed.
func (k *keeper) Replace() error {
	k.Keep(false)
	k.Expect()
	defer k.Keep(true)
	return k.Process.Stop(stopWithin)
}

// Stop ends the process cleanly, for good.
func (k *keeper) Stop() error {
	k.Keep(false)
	k.Expect()
	k.end()
	return k.Process.Stop(stopWithin)
}

func (k *keeper) end() {
	k.once.Do(func() { close(k.done) })
	k.work.Wait()
}

// kill ends the process at once, for good.
func (k *keeper) kill() error {
	k.Keep(false)
	k.Expect()
	k.end()
	return k.Process.Kill()
}

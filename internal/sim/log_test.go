package sim_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
)

// log adds a line to the transcript, if there is one.
func (w *world) log(format string, args ...any) {
	if w.verbose == nil {
		return
	}
	line := fmt.Sprintf("%12.9f %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now != w.mu.instant {
		w.print()
		w.mu.instant = now
	}
	w.mu.lines = append(w.mu.lines, line)
}

// print prints the lines of the last instant, in an order that does not depend on the order of
// goroutines. The caller holds the lock.
func (w *world) print() {
	slices.Sort(w.mu.lines)
	for _, line := range w.mu.lines {
		w.verbose(line)
	}
	w.mu.lines = nil
}

// logger returns the logger of a process.
func (w *world) logger(name string) hclog.Logger {
	if w.verbose == nil || !*logs {
		return nil
	}
	return hclog.New(&hclog.LoggerOptions{Name: name, Level: hclog.Debug,
		Output: lineWriter(w.verbose), DisableTime: true})
}

type lineWriter func(string)

func (f lineWriter) Write(p []byte) (int, error) {
	f("             " + string(p[:len(p)-1]))
	return len(p), nil
}

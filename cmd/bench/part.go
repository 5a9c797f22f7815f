package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/march-id/march/cmd/internal/load"
)

// part is the measurement of some rows. To what it starts it is what a test is, so that it starts what tests
// start: its first failure ends it, and all that was started for it ends with it.
type part struct {
	testing.TB // nil: what is called of it is below
	*bench
	name string
	ctx  context.Context

	mu struct {
		sync.Mutex
		cleanups []func()
		err      error
	}
}

// part runs a measurement.
func (b *bench) part(ctx context.Context, m measurement) error {
	ctx, cancel := context.WithCancel(ctx)
	p := &part{bench: b, name: m.name, ctx: ctx}
	ended := make(chan struct{})
	go func() { // a goroutine of its own, as a failure ends it
		defer close(ended)
		defer cancel()
		defer p.cleanUp()
		defer func() {
			switch r := recover().(type) {
			case nil:
			case stopped:
				p.failed(r.err)
			default:
				panic(r)
			}
		}()
		m.measure(p)
	}()
	<-ended
	return p.mu.err
}

func (p *part) cleanUp() {
	p.mu.Lock()
	n := len(p.mu.cleanups)
	if n == 0 {
		p.mu.Unlock()
		return
	}
	last := p.mu.cleanups[n-1]
	p.mu.cleanups = p.mu.cleanups[:n-1]
	p.mu.Unlock()
	defer p.cleanUp() // also if the last one fails
	last()
}

func (p *part) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.cleanups = append(p.mu.cleanups, f)
}

func (p *part) Context() context.Context { return p.ctx }
func (p *part) Helper()                  {}
func (p *part) Name() string             { return p.name }

func (p *part) Logf(format string, args ...any) { say("  "+format, args...) }

func (p *part) Error(args ...any) { p.failed(errors.New(fmt.Sprint(args...))) }

func (p *part) Errorf(format string, args ...any) { p.failed(fmt.Errorf(format, args...)) }

func (p *part) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.err = errors.Join(p.mu.err, err)
}

func (p *part) Fatal(args ...any) {
	p.Error(args...)
	runtime.Goexit()
}

func (p *part) Fatalf(format string, args ...any) {
	p.Errorf(format, args...)
	runtime.Goexit()
}

// Skip leaves the part out: a program is missing.
func (p *part) Skip(args ...any) {
	say("  left out: %s", fmt.Sprint(args...))
	runtime.Goexit()
}

func (p *part) TempDir() string {
	dir, err := os.MkdirTemp("", "march-bench-")
	p.check(err)
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// check ends the part by an error.
func (p *part) check(err error) {
	if err != nil {
		p.failed(err)
		runtime.Goexit()
	}
}

// stopped ends a part from where none is at hand.
type stopped struct{ err error }

// must returns a result without its error, which ends the part. It is for the part's own goroutine.
func must[T any](v T, err error) T {
	if err != nil {
		panic(stopped{err})
	}
	return v
}

// measure measures rows for some rounds. In each the yardstick and the figure of a row take turns, so that both
// see the same machine.
func (p *part) measure(rounds int, rows ...*row) {
	for range rounds {
		for _, r := range rows {
			if r.yard != nil {
				r.yards = append(r.yards, r.yard())
			}
			r.measured = append(r.measured, r.march())
		}
	}
	p.add(rows...)
}

// add adds rows that were measured.
func (p *part) add(rows ...*row) {
	for _, r := range rows {
		if p.strict {
			say("%s", r.cells())
		}
		p.rows = append(p.rows, r)
	}
}

// figure adds a row of one figure.
func (p *part) figure(r row, measured float64) {
	r.measured = []float64{measured}
	p.add(&r)
}

// load makes load for two units. A failed call is an error.
func (p *part) load(cfg load.Config) load.Result {
	if cfg.Workers == 0 {
		cfg.Workers = workers
	}
	if cfg.Duration == 0 {
		cfg.Duration = 2 * p.unit
	}
	r, err := load.Run(p.ctx, cfg)
	if err == nil && r.Errors > 0 {
		err = fmt.Errorf("%d calls failed, the first with: %w", r.Errors, r.FirstError)
	}
	p.check(err)
	return r
}

func (p *part) calls(of func(int) load.Caller) func() float64 {
	return func() float64 { return p.load(load.Config{New: of}).CallsPerSecond() }
}

type streams = func(context.Context, int) (load.Stream, error)

func (p *part) streams(of streams) func() float64 {
	return func() float64 { return p.load(load.Config{NewStream: of}).CallsPerSecond() }
}

package access

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/smallfile"
)

// reloadEvery is how often the files are read again. Reading them is cheap, and finds a
// change on every file system, also where Kubernetes swaps a folder.
const reloadEvery = 2 * time.Second

// file is a file that is read again and again.
type file struct {
	flag, path string
	content    []byte // the last good one
	tried      []byte // the last one that was tried
	mu         struct {
		sync.Mutex
		err   error // why the file's last content is not in force; nil if it is
		since time.Time
	}
}

func (g *Gate) watch(flag, path string) {
	if path != "" {
		g.files = append(g.files, &file{flag: flag, path: path})
	}
}

// read reads the file, and reports whether it has changed. Its error is Invalid.
func (f *file) read() (changed bool, err error) {
	content, err := smallfile.Read(f.flag, f.path, maxFile)
	if err != nil {
		return false, err
	}
	if f.flag == "identities" {
		if content, err = gather(f.path, content); err != nil {
			return false, err
		}
	}
	changed = f.tried == nil || !bytes.Equal(content, f.tried)
	f.tried = content
	if f.content == nil {
		f.content = content
	}
	return changed, nil
}

// Run reads the files again until ctx ends, ends calls that last whose callers lost the right
// to them, and hands refused attempts to audit.
func (g *Gate) Run(ctx context.Context, audit func(context.Context, Refusal) error) {
	if g == nil {
		return
	}
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { // apart, because an issuer may keep it waiting
		every(ctx, func(time.Time) { g.endLost(ctx) })
	})
	work.Go(func() { // apart, because etcd may keep it waiting
		every(ctx, func(now time.Time) { g.drain(ctx, now, audit) })
	})
	every(ctx, g.Reload)
}

// every calls do every reloadEvery until ctx ends.
func every(ctx context.Context, do func(time.Time)) {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			do(now)
		}
	}
}

// Reload reads the files again. If one is broken, the gate goes on as it is.
func (g *Gate) Reload(now time.Time) {
	replaced := false
	for _, f := range g.files {
		changed, err := f.read()
		if err != nil {
			g.broken(f, err, now)
			continue
		}
		if !changed {
			if bytes.Equal(f.tried, f.content) { // it could not be read for a while
				f.mend()
			}
			continue
		}
		before := f.content
		f.content = f.tried
		s, err := g.load()
		if err != nil {
			f.content = before
			g.broken(f, err, now)
			continue
		}
		g.current.Store(s)
		replaced = true
		f.mend()
		g.log.Info("file of rights read again", "flag", f.flag, "file", f.path)
	}
	if replaced {
		g.metrics.loaded(now)
	}
	g.metrics.bad.Set(float64(min(len(g.brokenFiles()), 1)))
}

// mend notes that the file's last content is in force.
func (f *file) mend() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.err = nil
}

// broken notes that a file's last content is not in force.
func (g *Gate) broken(f *file, err error, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.err == nil {
		f.mu.since = now
	}
	if f.mu.err == nil || f.mu.err.Error() != err.Error() {
		g.log.Error("file of rights is broken: the last good one stays in force", "flag", f.flag,
			"file", f.path, "error", err)
	}
	f.mu.err = err
}

// Problems returns the files that are broken, and what the files in force leave open.
func (g *Gate) Problems() []*marchv1.Problem {
	if g == nil {
		return nil
	}
	list := g.brokenFiles()
	if g.current.Load().unbound {
		list = append(list, problem.New(problem.Unbound, g.cfg.Identities, time.Time{}, "path", g.cfg.Identities))
	}
	return list
}

func (g *Gate) brokenFiles() (list []*marchv1.Problem) {
	for _, f := range g.files {
		f.mu.Lock()
		err, since := f.mu.err, f.mu.since
		f.mu.Unlock()
		if err == nil {
			continue
		}
		command := ""
		if f.flag == "policy" {
			command = "march policy validate " + f.path
		}
		list = append(list, problem.New(problem.Rights, f.path, since, "path", f.path, "flag", f.flag,
			"why", fmt.Sprintf("%.300s", err), "command", command))
	}
	return list
}

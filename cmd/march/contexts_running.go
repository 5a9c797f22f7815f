package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/march-id/march/allocator"
)

// runningContext is the context of a march dev that runs. It is a socket beside the file of contexts, and the
// process answers there with the context's settings. The kernel closes the socket with the process.
// So the context ends with its cluster, also where the process was killed: a socket at which no process
// answers is no context.
type runningContext struct {
	Name     string            `json:"-"`
	Since    time.Time         `json:"since"`
	Settings map[string]string `json:"settings"`
}

const (
	// contextSocket is the name of the socket, by the first port of the cluster, and devContext that of
	// the context. No context of the file can have such a name.
	contextSocket, devContext = "dev-%d.sock", "dev:%d"
	// askWithin bounds how long commands wait for the settings of a process that does not answer.
	askWithin = time.Second
)

// announceContext offers the context of a cluster until stop is called. base is the cluster's first port, which
// the calling process must listen at: no other process offers a context of that name then. Its errors are
// Invalid.
func announceContext(base int, settings map[string]string) (name string, stop func(), err error) {
	path, err := contextsPath()
	if err != nil {
		return "", nil, err
	}
	answer, err := json.Marshal(runningContext{Since: time.Now(), Settings: settings})
	if err != nil {
		return "", nil, err
	}
	at := filepath.Join(filepath.Dir(path), fmt.Sprintf(contextSocket, base))
	if err := os.MkdirAll(filepath.Dir(at), contextsDirMode); err != nil {
		return "", nil, allocator.Errorf(allocator.Invalid, "context: %w", err)
	}
	_ = os.Remove(at) // of a process that was killed
	l, err := net.Listen("unix", at)
	if err != nil {
		return "", nil, allocator.Errorf(allocator.Invalid, "context: %w", err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		defer func() { _ = l.Close() }()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(askWithin))
			_, _ = conn.Write(answer)
			_ = conn.Close()
		}
	})
	return fmt.Sprintf(devContext, base), func() { _ = l.Close(); serving.Wait() }, nil
}

// runningContexts returns the contexts of the processes that offer one in a directory, the oldest first.
func runningContexts(dir string) (all []runningContext) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		var base int
		if n, err := fmt.Sscanf(entry.Name(), contextSocket, &base); n == 1 && err == nil {
			if r, err := askContext(filepath.Join(dir, entry.Name())); err == nil {
				r.Name = fmt.Sprintf(devContext, base)
				all = append(all, r)
			}
		}
	}
	slices.SortFunc(all, func(a, b runningContext) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func askContext(path string) (r runningContext, err error) {
	conn, err := net.DialTimeout("unix", path, askWithin)
	if err != nil {
		return r, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(askWithin))
	err = json.NewDecoder(io.LimitReader(conn, maxContexts)).Decode(&r)
	return r, err
}

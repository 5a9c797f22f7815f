package contexts

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

// Running is the context of a march dev that runs. It is a socket beside the file of contexts, and the
// process answers there with the context's settings. The kernel closes the socket with the process.
// So the context ends with its cluster, also where the process was killed: a socket at which nobody
// answers is no context.
type Running struct {
	Name     string    `json:"-"`
	Since    time.Time `json:"since"`
	Settings Settings  `json:"settings"`
}

const (
	// runningFile is the name of the socket, by the first port of the cluster, and runningName that of
	// the context. No context of the file can have such a name.
	runningFile, runningName = "dev-%d.sock", "dev:%d"
	// askWithin bounds how long commands wait for the settings of a process that does not answer.
	askWithin = time.Second
)

// Announce offers the context of a cluster until stop is called. base is the cluster's first port, which
// the calling process must listen at: no other process offers a context of that name then. Its errors are
// Invalid.
func Announce(base int, settings Settings) (name string, stop func(), err error) {
	path, err := Path()
	if err != nil {
		return "", nil, err
	}
	answer, err := json.Marshal(Running{Since: time.Now(), Settings: settings})
	if err != nil {
		return "", nil, err
	}
	at := filepath.Join(filepath.Dir(path), fmt.Sprintf(runningFile, base))
	if err := os.MkdirAll(filepath.Dir(at), forOwnerDir); err != nil {
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
	return fmt.Sprintf(runningName, base), func() { _ = l.Close(); serving.Wait() }, nil
}

// running returns the contexts of the processes that offer one in a directory, the oldest first.
func running(dir string) (all []Running) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		var base int
		if n, err := fmt.Sscanf(entry.Name(), runningFile, &base); n == 1 && err == nil {
			if r, err := askRunning(filepath.Join(dir, entry.Name())); err == nil {
				r.Name = fmt.Sprintf(runningName, base)
				all = append(all, r)
			}
		}
	}
	slices.SortFunc(all, func(a, b Running) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	return all
}

func askRunning(path string) (r Running, err error) {
	conn, err := net.DialTimeout("unix", path, askWithin)
	if err != nil {
		return r, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(askWithin))
	err = json.NewDecoder(io.LimitReader(conn, maxFile)).Decode(&r)
	return r, err
}

package main

import (
	"net"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
)

// TestSystemd is a unit's socket of Type=notify: a console tells it that it is up, though it waits for etcd, then, as
// the watchdog asks, that it lives, and that it ends.
func TestSystemd(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := begin(t, t.TempDir(), []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=200000"},
		"console", "--etcd", "127.0.0.1:1", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
	var told []string
	next := func(want string) {
		t.Helper()
		if err := l.SetReadDeadline(patience(t)); err != nil {
			t.Fatal(err)
		}
		for text := make([]byte, 100); !slices.Contains(told, want); {
			n, _, err := l.ReadFromUnix(text)
			if err != nil {
				t.Fatalf("%v after %q; want %q", err, told, want)
			}
			told = append(told, string(text[:n]))
		}
	}
	next("READY=1")
	if told[0] != "READY=1" {
		t.Errorf("first of all: %q", told)
	}
	next("WATCHDOG=1")
	if slices.Contains(told, "STOPPING=1") {
		t.Errorf("it ends before it is told to: %q", told)
	}
	var ending sync.WaitGroup
	ending.Go(func() { // meanwhile the socket is read, as a full one holds the server up
		if code, err := p.stop(patience(t), syscall.SIGTERM); code != 0 || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
	})
	next("STOPPING=1")
	ending.Wait()
}

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/march-id/march/cmd/march/internal/devsetup"
)

// TestStopDev stops march dev at several moments of its start, with each signal that asks for
// that: it ends soon, without an error, and leaves nothing behind.
func TestStopDev(t *testing.T) {
	t.Parallel()
	for i, moment := range []string{"march-dev-*", "march-dev-*/lock", "march-dev-*/etcd",
		"march-dev-*/etcd/member/snap/db", "march-dev-*/etcd/member/wal/0*"} {
		for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(fmt.Sprintf("%d %v", i, signal), func(t *testing.T) {
				t.Parallel()
				tmp := t.TempDir()
				base, err := freeBase()
				if err != nil {
					t.Fatal(err)
				}
				p := begin(t, "", []string{"TMPDIR=" + tmp}, "dev", "--base-port", fmt.Sprint(base))
				if err := poll(patience(t), func() bool {
					found, _ := filepath.Glob(filepath.Join(tmp, moment))
					return len(found) > 0
				}); err != nil {
					t.Fatalf("%s: %v", moment, err)
				}
				code, err := p.stop(patience(t), signal)
				if _, stderr := p.output(); code != exitOK || err != nil || stderr != "" {
					t.Errorf("at %s: exit code %d, %v, stderr %q", moment, code, err, stderr)
				}
				if left, _ := os.ReadDir(tmp); len(left) > 0 {
					t.Errorf("at %s: left %v", moment, left)
				}
			})
		}
	}
}

// TestDevPortsInUse: march dev names the port that is in use, its purpose, and the flag.
func TestDevPortsInUse(t *testing.T) {
	t.Parallel()
	base, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	for offset, what := range map[int]string{
		devsetup.ConsoleHTTP: "console HTTP", devsetup.ConsoleGRPC: "console gRPC", devsetup.RoomGRPC: "room 0 gRPC",
		devsetup.RoomGRPC + 1: "room 1 gRPC",
		devsetup.RoomHTTP:     "room 0 HTTP", devsetup.RoomHTTP + 1: "room 1 HTTP", devsetup.EtcdClient: "etcd client",
		devsetup.EtcdPeer: "etcd peer",
	} {
		address := fmt.Sprintf("127.0.0.1:%d", base+offset)
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "data")
		_, stderr, code := march(t, "dev", "--base-port", fmt.Sprint(base), "--data-dir", dir)
		want := fmt.Sprintf("march dev: %s: %s is in use by another program; choose another with --base-port\n",
			what, address)
		if code != exitFailed || stderr != want {
			t.Errorf("exit code %d, got  %s want %s", code, stderr, want)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A port for a room that does not exist may be in use.
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+devsetup.RoomGRPC+2))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	dir := t.TempDir()
	d := startDev(t, base, "--data-dir", dir)
	if code, err := d.stop(patience(t), syscall.SIGINT); code != exitOK || err != nil {
		t.Error(code, err)
	}
	// A port for a room in the data directory may not.
	other, err := freeBase()
	if err != nil {
		t.Fatal(err)
	}
	three := t.TempDir()
	d = startDev(t, other, "--data-dir", three, "--rooms", "a,b,c")
	if code, err := d.stop(patience(t), syscall.SIGINT); code != exitOK || err != nil {
		t.Error(code, err)
	}
	_, stderr, code := march(t, "dev", "--base-port", fmt.Sprint(base), "--data-dir", three)
	if code != exitFailed || !strings.Contains(stderr, fmt.Sprintf("a port of room c (127.0.0.1:%d or 127.0.0.1:%d) "+
		"is in use; choose others with --base-port", base+12, base+22)) {
		t.Error(code, stderr)
	}
}

// TestDevKeepsForeignData: march dev never deletes an etcd directory that it did not make.
func TestDevKeepsForeignData(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "etcd", "mine")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		data := devsetup.Data{Dir: dir}
		if err := data.Open(); err != nil {
			t.Fatal(err)
		}
		data.Close()
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
	}
}

package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/march-id/march/allocator"
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
				p := begin(t, "", append(settingsIn(t), "TMPDIR="+tmp), "dev", "--base-port", fmt.Sprint(base))
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

// TestDevBesideAnother runs march dev twice without flags. The second takes other ports, and says so. Each
// prints commands that reach it; commands without flags reach the one that runs for longest, also after
// the other was killed.
func TestDevBesideAnother(t *testing.T) {
	t.Parallel()
	env := settingsIn(t)
	start := func() (p *process, base int, shown string) {
		t.Helper()
		p = begin(t, "", append(env, "TMPDIR="+t.TempDir()), "dev")
		if err := p.await(patience(t), "tag show order.*\n"); err != nil {
			t.Fatal(err)
		}
		shown, _ = p.output()
		m := regexp.MustCompile(`console +gRPC 127\.0\.0\.1:(\d+)`).FindStringSubmatch(shown)
		if m == nil {
			t.Fatal(shown)
		}
		base, _ = strconv.Atoi(m[1])
		base -= portConsoleGRPC
		if (base-devBasePort)%devPortsApart != 0 {
			t.Errorf("the base port is %d", base)
		}
		says := fmt.Sprintf("Ports from 7000 on are in use by another program, so these begin at %d.", base)
		if strings.Contains(shown, says) != (base != devBasePort) {
			t.Errorf("base port %d:\n%s", base, shown)
		}
		return p, base, shown
	}
	// try runs the commands that a cluster printed, and one that makes the tag own in it.
	try := func(shown, own, flag string) {
		t.Helper()
		_, commands, _ := strings.Cut(shown, "Try, in another terminal:\n\n")
		tried := 0
		for line := range strings.Lines(strings.TrimSpace(commands) + "\nmarch id next " + own + flag) {
			words := strings.Fields(line)
			if tried++; words[0] != "march" {
				t.Fatalf("%q in\n%s", line, shown)
			}
			if stdout, stderr, code := marchWith(t, env, words[1:]...); code != exitOK {
				t.Errorf("%s: exit code %d\n%s%s", line, code, stdout, stderr)
			}
		}
		if tried != 4 {
			t.Errorf("%d commands in\n%s", tried, shown)
		}
	}
	// reaches checks that commands with some flags reach the cluster that has a tag.
	reaches := func(own string, flags ...string) {
		t.Helper()
		if _, stderr, code := marchWith(t, env, append([]string{"tag", "show", own}, flags...)...); code != exitOK {
			t.Errorf("march tag show %s %v: exit code %d, %s", own, flags, code, stderr)
		}
	}

	first, firstBase, shown := start()
	if strings.Contains(shown, "--context") {
		t.Errorf("the first:\n%s", shown)
	}
	try(shown, "own-1", "")
	second, secondBase, shown := start()
	flag := fmt.Sprintf("--context=dev:%d", secondBase)
	note := fmt.Sprintf("Context dev:%d is in use: commands without --context dev:%d do not call this cluster.\n",
		firstBase, secondBase)
	if secondBase == firstBase || !strings.Contains(shown, note) {
		t.Errorf("the second:\n%s", shown)
	}
	try(shown, "own-2", " "+flag)
	reaches("own-1")
	reaches("own-2", flag)
	// This --room is a choice of workers, and no setting.
	if _, stderr, code := marchWith(t, env, "worker", "list", "--room", "a"); code != exitOK {
		t.Errorf("march worker list: exit code %d, %s", code, stderr)
	}
	if stdout, stderr, code := marchWith(t, env, "verify"); code != exitOK {
		t.Errorf("march verify: exit code %d\n%s%s", code, stdout, stderr)
	}
	if _, stderr, code := marchWith(t, env, "context", "use", fmt.Sprintf("dev:%d", secondBase)); code != exitFailed ||
		!strings.Contains(stderr, "ends with its march dev") {
		t.Errorf("context use: exit code %d, %s", code, stderr)
	}
	// A context that was chosen wins, and one that nobody chose gives no part of its settings.
	for _, args := range [][]string{
		{"context", "add", "prod", "--console", "127.0.0.1:1", "--use"}, {"config", "print", "tag", "list"},
		{"context", "use", "-"}, {"config", "print", "recover", "--etcd", "127.0.0.1:2"},
	} {
		stdout, stderr, code := marchWith(t, env, args...)
		if code != exitOK || args[0] == "config" && strings.Contains(stdout, "context dev:") {
			t.Errorf("march %v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}

	if _, err := first.stop(patience(t), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	reaches("own-2")
	if code, err := second.stop(patience(t), syscall.SIGINT); code != exitOK || err != nil {
		t.Errorf("the second: exit code %d, %v", code, err)
	}
	stdout, stderr, code := marchWith(t, env, "context", "list")
	if code != exitOK || strings.Contains(stdout, "dev:") {
		t.Errorf("context list: exit code %d\n%s%s", code, stdout, stderr)
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
		portConsoleHTTP: "console HTTP", portConsoleGRPC: "console gRPC", portRoomGRPC: "room 0 gRPC",
		portRoomGRPC + 1: "room 1 gRPC",
		portRoomHTTP:     "room 0 HTTP", portRoomHTTP + 1: "room 1 HTTP", portEtcdClient: "etcd client",
		portEtcdPeer: "etcd peer",
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
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+portRoomGRPC+2))
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
	if code != exitFailed || !strings.Contains(stderr, fmt.Sprintf("room c gRPC: 127.0.0.1:%d "+
		"is in use; choose others with --base-port", base+12)) {
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
		data := devData{Dir: dir}
		if err := data.Open(); err != nil {
			t.Fatal(err)
		}
		data.Close()
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
	}
}

// Before, the ports of a room followed its place in the layout: after two rooms had changed
// places, a restart changed their ports.
func TestRoomsKeepTheirPorts(t *testing.T) {
	rooms := func(names ...allocator.Room) allocator.Layout {
		l := allocator.Layout{Boundary: 100, Ranges: make(map[allocator.Room]allocator.Range)}
		for i, name := range names {
			l.Ranges[name] = allocator.Range{Lower: int64(10 * i), Upper: int64(10*i + 10)}
		}
		return l
	}
	for _, test := range []struct {
		what    string
		layouts []allocator.Layout
		want    map[allocator.Room]int
	}{
		{"the first", []allocator.Layout{rooms("eu", "us", "ap")}, map[allocator.Room]int{"eu": 0, "us": 1, "ap": 2}},
		{"a rotation", []allocator.Layout{rooms("a", "b", "c"), rooms("c", "a", "b")},
			map[allocator.Room]int{"a": 0, "b": 1, "c": 2}},
		{"a new one in between", []allocator.Layout{rooms("b", "d"), rooms("a", "b", "c", "d")},
			map[allocator.Room]int{"b": 0, "d": 1, "a": 2, "c": 3}},
		{"one that went", []allocator.Layout{rooms("a", "b"), rooms("b"), rooms("b", "c")},
			map[allocator.Room]int{"c": 0, "b": 1}},
	} {
		if got := slotsOf(test.layouts); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

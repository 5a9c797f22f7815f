package main

import (
	"strings"
	"syscall"
	"testing"
)

// With its own flag a room requires a journal.
func TestRequireJournalFlag(t *testing.T) {
	t.Parallel()
	if _, stderr, code := march(t, "room", "a", "--require-journal", "--journal", "off"); code != exitUsage || !strings.Contains(stderr, "--journal DIR") {
		t.Errorf("off: exit code %d, %s", code, stderr)
	}
}

// TestRollbackWithRequiredJournals is the cell of the matrix in which etcd has no trace of the
// restore: its data directory is copied back, and no process and no journal is left. If
// journals are required, nothing is leased until an operator has recovered, and has confirmed
// each instance.
func TestRollbackWithRequiredJournals(t *testing.T) {
	t.Parallel()
	m := newMatrix(t, true)
	console := m.address(2)
	start := func() *process {
		return begin(t, m.dir, nil, "console", "--etcd", m.etcd.Endpoint, "--grpc", console, "--http", "").ready(t)
	}
	first := start()
	if stdout, stderr, code := march(t, "cluster", "update", "--journal", "required", "--console", console); code != exitOK || stdout != "journal  required\n" {
		t.Errorf("update: exit code %d\n%s%s", code, stdout, stderr)
	}
	if _, stderr, code := march(t, "cluster", "update", "--journal", "perhaps", "--console", console); code != exitUsage || !strings.Contains(stderr, "optional, required") {
		t.Errorf("update: exit code %d, %s", code, stderr)
	}
	m.next(t, 300)
	backup := m.etcd.CopyData(t)
	m.next(t, 10_000)
	m.kill()
	if code, err := first.stop(patience(t), syscall.SIGTERM); err != nil || code != exitOK {
		t.Errorf("the console: exit code %d, %v", code, err)
	}
	m.etcd.PutBack(t, backup, false)
	m.start(t)
	start() // later, because a console that lived on, or starts fast, sees revisions fall
	for i, name := range []string{"a a-0", "b b-0"} {
		_, stderr, code := march(t, "id", "next", "order", "--room", m.address(i))
		if code != exitFailed || !strings.Contains(stderr, "started without its journal") || !strings.Contains(stderr, "`march instance confirm "+name+"`") {
			t.Errorf("room %d: exit code %d, %s", i, code, stderr)
		}
	}
	says := func(text string, args ...string) {
		t.Helper()
		if stdout, stderr, code := march(t, args...); code != exitOK || !strings.Contains(stdout, text) {
			t.Errorf("march %v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	says("cluster  ", "cluster", "show", "--console", console)
	says("journal  required", "status", "--console", console)
	says("unconfirmed", "instance", "list", "--console", console)
	says("instance b/b-0 started without its journal, which is required, and leases nothing", "verify", "--etcd", m.etcd.Endpoint)
	says(`"unconfirmed":["a/a-0","b/b-0"]`, "verify", "--etcd", m.etcd.Endpoint, "-o", "json")
	m.recover(t, "restarted without journal", false)
	if m.tryNext(t, 10) {
		t.Error("instances lease after a recover alone")
	}
	says("instance a/a-0 confirmed", "instance", "confirm", "a", "a-0", "--console", console)
	if m.tryNext(t, 10) {
		t.Error("b/b-0 leases, too")
	}
	says("instance b/b-0 confirmed", "instance", "confirm", "b", "b-0", "--console", console)
	if err := poll(patience(t), func() bool { return m.leases(t) }); err != nil {
		t.Fatalf("rooms do not lease after the recover: %v", err)
	}
	says("nothing wrong", "verify", "--etcd", m.etcd.Endpoint)
}

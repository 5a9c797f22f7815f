package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster"
)

// A command writes its entries to --audit-log; `march audit verify` finds one that was removed from etcd, which etcd
// alone does not show, and says so.
func TestAuditLog(t *testing.T) {
	c := testcluster.New(t)
	server, etcd := c.Etcd, c.Open(t)
	layout, err := allocator.EqualLayout(10, []allocator.Room{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	c.Init(layout, "test")
	log := filepath.Join(t.TempDir(), "audit.jsonl")
	if _, stderr, code := march(t, "halt", "--etcd", server.Endpoint, "--audit-log", log, "--yes"); code != exitOK {
		t.Fatalf("halt: exit code %d, %s", code, stderr)
	}
	text, err := os.ReadFile(log)
	if err != nil || strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), `"action":"halt"`) {
		t.Fatalf("%v: %s", err, text)
	}
	if info, err := os.Stat(log); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	verified := func(code int, want string, args ...string) {
		t.Helper()
		stdout, stderr, got := march(t, append([]string{"audit", "verify", "--etcd", server.Endpoint}, args...)...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%q: exit code %d, want %d and %q:\n%s%s", args, got, code, want, stdout, stderr)
		}
	}
	verified(exitOK, "no log from outside etcd was given (--log)")
	verified(exitOK, "2 changes, 0 refusals, of 2 writers\n1 head in the logs; entries that are in none: 1, and of "+
		"1 writer all: a rewrite of these would not be seen", "--log", log)
	// A line that a full disk cut spoils neither the others nor the next one, which another process writes.
	if err := os.WriteFile(log, append(text, text[:99]...), 0o600); err != nil {
		t.Fatal(err)
	}
	write, err := openAuditLog(log, "default", nil, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	write("/march/default/audit/x", &record.AuditEntry{Hash: "x", Writer: "w", Sequence: 1}, false)
	verified(exitOK, "audit.jsonl:2: the line was cut", "--log", log)
	verified(exitOK, "2 heads in the logs", "--log", log)
	var logged bytes.Buffer // as kubectl logs has it, which gives both outputs of a container
	hclog.New(&hclog.LoggerOptions{Output: &logged, JSONFormat: true}).Info("ready", "key", "x")
	both := log + ".both"
	if err := os.WriteFile(both, append(logged.Bytes(), text...), 0o600); err != nil {
		t.Fatal(err)
	}
	verified(exitOK, "1 head in the logs", "--log", both)
	_, rest, _ := strings.Cut(string(text), `"key":"`)
	key, _, _ := strings.Cut(rest, `"`)
	if _, err := etcd.Txn(t.Context(), store.Txn{Then: []store.Op{{Delete: "/march/default/" + key}}}); err != nil {
		t.Fatal(err)
	}
	verified(exitOK, "1 change, 0 refusals, of 1 writer")
	verified(exitFailed, key+" is missing: the log outside etcd has it", "--log", log)
	verified(exitFailed, `"problems":["`+key+` is missing`, "--log", log, "-o", "json")
	if err := os.WriteFile(log, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	verified(exitUsage, "audit.jsonl:1: no line of --audit-log", "--log", log)
	verified(exitUsage, "log: open ", "--log", log+".none")
}

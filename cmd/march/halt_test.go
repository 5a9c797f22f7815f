package main

import (
	"strings"
	"testing"

	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
)

// march halt halts leasing; it asks first. Its old name goes on working.
func TestHaltCommand(t *testing.T) {
	t.Parallel()
	m := newMatrix(t, true)
	m.next(t, 10)
	_, stderr, code := march(t, "halt", "--etcd", m.etcd.Endpoint)
	if code != exitUsage || !strings.Contains(stderr, "--yes") || m.halted(t) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	for range 2 { // a second time changes nothing
		stdout, stderr, code := march(t, "fence", "--etcd", m.etcd.Endpoint, "--yes", "--why", "tonight's restore")
		if code != exitOK || !strings.Contains(stdout, "tonight's restore") || !strings.Contains(stdout, "march recover") || !m.halted(t) {
			t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
		}
	}
	m.next(t, 10) // of what is held
	_, stderr, code = march(t, "id", "next", "order", "--count", "50000", "--room", m.address(0))
	if code != exitFailed || !strings.Contains(stderr, "tonight's restore") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	stdout, stderr, code := march(t, "verify", "--etcd", m.etcd.Endpoint)
	if code != exitFailed || !strings.Contains(stdout, "leasing is halted in all rooms by ") || !strings.HasSuffix(stderr, ": leasing is halted\n") {
		t.Errorf("verify: exit code %d\n%s%s", code, stdout, stderr)
	}
	l, err := ledger.New(m.store, ledger.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	small := record.DefaultTag()
	small.Limit = 5_000
	if _, err := admin.New(l, admin.DefaultConfig()).CreateTag(t.Context(), "small", small, "test"); err != nil {
		t.Fatal(err)
	}
	for _, margin := range []string{"0", "100"} {
		stdout, stderr, code = march(t, "recover", "--etcd", m.etcd.Endpoint, "--margin", margin)
		if code != exitOK || strings.Contains(stdout, "the margin takes 1 tag to the end, the first ones [small]") != (margin == "100") {
			t.Errorf("recover --margin %s: exit code %d\n%s%s", margin, code, stdout, stderr)
		}
	}
	m.recover(t, "alive", false)
	if err := poll(patience(t), func() bool { return m.leases(t) }); err != nil {
		t.Errorf("rooms do not lease after the recover: %v", err)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/internal/testcluster"
)

// march verify lists the first problems in etcd, and counts the rest.
func TestVerifyCommand(t *testing.T) {
	c := testcluster.New(t)
	server, etcd := c.Etcd, c.Open(t)
	layout, err := allocator.EqualLayout(10, []allocator.Room{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	c.Init(layout, "test")
	put := func(keys ...string) {
		txn := store.Txn{}
		for i := 0; i < len(keys); i += 2 {
			txn.Then = append(txn.Then, store.Op{Put: &store.Put{Key: "/march/default/" + keys[i],
				Value: []byte(keys[i+1])}})
		}
		if _, err := etcd.Txn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	put("marks/a/order", `{"format":2,"next":"5"}`)
	stdout, stderr, code := march(t, "verify", "--etcd", server.Endpoint)
	if want := "1 layout, 2 rooms, 0 tags, 1 mark, 0 eras, 0 instances: nothing wrong\n"; code != exitOK ||
		stdout != want || stderr != "" {
		t.Errorf("exit code %d, stdout %q, stderr %q; want 0, %q", code, stdout, stderr, want)
	}

	put("marks/b/order", `{"format":2,"next":"-5"}`, "marks/b/odd", "\x1b[31m"+strings.Repeat("x", 10_000))
	stdout, stderr, code = march(t, "verify", "--etcd", server.Endpoint)
	if code != exitFailed || stderr != "march verify: 1 layout, 2 rooms, 0 tags, 3 marks, 0 eras, "+
		"0 instances: 2 problems\n" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if ok, _ := regexp.MatchString(
		`^key /march/default/marks/b/odd: [[:print:]]{1,600}\nkey /march/default/marks/b/order: a mark's numbers do not fit: [[:print:]]+\n$`, stdout); !ok {
		t.Errorf("stdout %q", stdout)
	}
	stdout, stderr, code = march(t, "verify", "--etcd", server.Endpoint, "-o", "json")
	var report struct {
		Marks    int64    `json:"marks,string"`
		Problems []string `json:"problems"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitFailed || report.Marks != 3 ||
		len(report.Problems) != 2 {
		t.Errorf("%v, exit code %d, stdout %q, stderr %q", err, code, stdout, stderr)
	}

	server.NoSpace(t, true)
	stdout, stderr, code = march(t, "verify", "--etcd", server.Endpoint)
	if code != exitFailed || !strings.HasPrefix(stdout, "etcd is full, and takes no writes: no IDs are leased; ") ||
		!strings.HasSuffix(stderr, ": 3 problems\n") {
		t.Errorf("full: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	server.NoSpace(t, false)

	const stops = "; it stops all leasing, in every room, and every change by a console; next: "
	put("beat", "garbage")
	stdout, stderr, code = march(t, "verify", "--etcd", server.Endpoint)
	if code != exitFailed || !strings.Contains(stdout, "key /march/default/beat: ") ||
		!strings.Contains(stdout, stops) || !strings.HasSuffix(stderr, ": 3 problems\n") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if _, err := etcd.Txn(t.Context(), store.Txn{Then: []store.Op{{Delete: "/march/default/beat"}}}); err != nil {
		t.Fatal(err)
	}

	for i := range 22 { // 2200 more
		var keys []string
		for j := range 100 {
			keys = append(keys, fmt.Sprintf("marks/a/t-%02d-%02d", i, j), "{}")
		}
		put(keys...)
	}
	stdout, stderr, code = march(t, "verify", "--etcd", server.Endpoint)
	if lines := strings.Count(stdout, "\n"); code != exitFailed || lines != verify.MaxProblems+1 ||
		!strings.HasSuffix(stdout, "\nand 1,202 more\n") || !strings.HasSuffix(stderr, ": 2,202 problems\n") {
		t.Errorf("exit code %d, %d lines, stderr %q", code, lines, stderr)
	}
}

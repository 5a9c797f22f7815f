package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
	"github.com/march-id/march/allocator/timeid"
)

// Four instances end without a sign, and their heartbeats stay. An instance that starts later issues time-ordered IDs,
// and opens a period, at the first call. Before, both failed for 10 s, for a day.
func TestDeadNamesFailNoTag(t *testing.T) {
	t.Parallel()
	c := newProcessCluster(t)
	c.init()
	daily, event := record.DefaultTag(), record.DefaultTag()
	daily.Period = period.Period{Unit: period.Day, Digits: 9, Zone: "UTC"}
	timed := record.NewTimeTag(timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond})
	event.Time = &timed
	for name, settings := range map[string]record.TagSettings{"daily": daily, "event": event} {
		if _, err := c.admin.CreateTag(t.Context(), allocator.Tag(name), settings, "test"); err != nil {
			t.Fatal(err)
		}
	}
	c.start("a-1")
	c.start("b-1")
	for _, name := range c.instances(nil) {
		c.signal(name, syscall.SIGKILL)
		key := "alive/" + roomOf(name) + "/" + name
		var beat record.Heartbeat
		if err := record.Decode(store.KV{Key: key, Value: []byte(c.value(key))}, &beat); err != nil {
			t.Fatal(err)
		}
		beat.Time = beat.Time.Add(-time.Hour)
		c.put(key, string(record.Encode(&beat)))
	}
	c.start("a-9")
	for _, tag := range []string{"event", "daily"} {
		if err := c.take("a-9", tag, 1); err != nil {
			t.Errorf("the first call to tag %s: %v", tag, err)
		}
	}
}

// A process that hangs keeps its journal. The one that is to follow it, as a pod is that was started anew, names it and
// how to end it; once that is done it starts.
func TestPredecessorThatHangs(t *testing.T) {
	t.Parallel()
	c := newProcessCluster(t)
	c.init()
	pid := c.servers["a-0"].cmd.Process.Pid
	c.signal("a-0", syscall.SIGSTOP)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := marchWith(t, nil, "room", "a", "--name", "a-0", "--journal", c.dir+"/journal",
		"--etcd", c.etcd.Endpoint, "--grpc", "127.0.0.1:0", "--http", "")
	if code == exitOK || !strings.Contains(stderr, fmt.Sprintf("another process has it (PID %d on host %s, since ", pid,
		host)) || !strings.Contains(stderr, fmt.Sprintf("`kill -9 %d`", pid)) {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	c.signal("a-0", syscall.SIGKILL)
	c.start("a-0")
	if err := c.take("a-0", "order", 10); err != nil {
		t.Error(err)
	}
}

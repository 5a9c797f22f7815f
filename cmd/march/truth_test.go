package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// TestRateOfLeases: the rate of a room that a client leases from is that at which the client issues IDs, at every
// moment: not all of a lease in one second, and nothing in the others.
func TestRateOfLeases(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		n := newNight(t, fault{}, nil)
		const rate, lasts = 4000, 34 // as a client of the default reserve leases
		for second := range 240 {
			if second%lasts == 0 {
				if _, err := n.processes["a/a1"].room.Lease(context.Background(), &marchv1.LeaseRequest{Tag: "order",
					Count: rate * lasts}); err != nil {
					t.Fatal(err)
				}
			}
			n.pass(time.Second)
			if second < 90 || second%7 > 0 {
				continue
			}
			o, err := n.processes[nightConsole].console.GetOverview(context.Background(), &marchv1.GetOverviewRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := o.GetRooms()[0].GetRate(); got < 0.9*rate || got > 1.1*rate {
				t.Errorf("after %d s room a has %.0f IDs/s, want %d", second, got, rate)
			}
		}
		status, _ := n.march("status")
		instances, _ := n.march("instance", "list", "-o", "json")
		_, page := testcluster.Get(n.processes[nightConsole].console.HTTP, "/")
		for surface, found := range map[string][]string{
			"status":    regexp.MustCompile(`(?m)^a +\[0, 50\) +(\d+) `).FindStringSubmatch(status),
			"instances": regexp.MustCompile(`"rate": *([0-9.]+)`).FindStringSubmatch(instances),
			"page":      regexp.MustCompile(`<b>([0-9,]+)</b> <span class="dim">IDs/s`).FindStringSubmatch(page),
		} {
			got := 0.0
			if len(found) > 0 {
				got, _ = strconv.ParseFloat(strings.ReplaceAll(found[1], ",", ""), 64)
			}
			if got < 0.9*rate || got > 1.1*rate {
				t.Errorf("%s has %v, want %d IDs/s: %s", surface, found, rate, fmt.Sprint(status, instances))
			}
		}
	})
}

// TestNoChangeOfAClusterThatIsGone: a console whose etcd lost the cluster, or has another one, changes nothing there.
// Each command says why, as the list of problems does.
func TestNoChangeOfAClusterThatIsGone(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		n := newNight(t, fault{}, nil)
		keys := n.Mem.Keys("")
		identity := slices.IndexFunc(keys, func(key string) bool { return strings.HasSuffix(key, "/identity") })
		value, _ := n.Mem.Value(keys[identity])
		other := regexp.MustCompile(`"uuid":"[^"]*"`).ReplaceAll(value, []byte(`"uuid":"0a0a0a0a-0a0a-4a0a-8a0a-0a0a0a0a0a0a"`))
		n.Mem.Corrupt(store.OpPut(keys[identity], other))
		n.changesNothing("/march/default/ belongs to cluster CLUSTER by now, and was cluster CLUSTER: a wrong endpoint, or another " +
			"etcd's data")
		for _, key := range keys {
			n.Mem.Corrupt(store.Op{Delete: key})
		}
		n.changesNothing("the cluster under /march/default/ is gone: restore etcd from a backup, then run `march recover`")
	})
}

func (n *night) changesNothing(why string) {
	n.Helper()
	for _, args := range [][]string{{"tag", "create", "new"}, {"tag", "delete", "order", "--yes"},
		{"cluster", "update", "--journal", "required"}} {
		out, code := n.march(args...)
		if code == exitOK || !strings.Contains(n.fixed(out), why) {
			n.Errorf("%v: exit code %d, %s", args, code, out)
		}
	}
	if tags := n.Mem.Keys("/march/default/tags/new"); len(tags) > 0 {
		n.Errorf("etcd has %v", tags)
	}
}

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

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/period"
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
				for left := int64(rate * lasts); left > 0; { // a lease may have fewer IDs than asked for
					r, err := n.processes["a/a1"].room.Lease(context.Background(), &marchv1.LeaseRequest{Tag: "order",
						Count: left})
					if err != nil {
						t.Fatal(err)
					}
					left -= r.GetSegment().GetCount()
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
		n.changesNothing("/march/default/ belongs to cluster CLUSTER by now, and was cluster CLUSTER: a wrong " +
			"endpoint, or another etcd's data")
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

// TestDecodeSaysWhatIsKnown: a lease shows no more than that a room had an ID. Decode says leased, not issued; that the
// ID may be one that an operator had the room skip; that it was skipped for certain; or that no room leased it yet. Of
// a tag with periods it says the period.
func TestDecodeSaysWhatIsKnown(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		n := newNight(t, fault{}, nil)
		n.Tag(func(s *record.TagSettings) {
			s.Period = period.Period{Unit: period.Month, Digits: 9, Zone: "UTC"}
		}, "ann", "bill")
		n.tags = append(n.tags, "bill")
		n.pass(5 * time.Second)
		if out, code := n.march("tag", "skip", "order", "--to", "1000000", "--rooms", "a"); code != exitOK {
			t.Fatal(out)
		}
		n.pass(5 * time.Second)
		id, err := n.processes["a/a1"].room.Next(context.Background(), &marchv1.NextRequest{Tag: "bill"})
		if err != nil {
			t.Fatal(err)
		}
		bill := strconv.FormatInt(id.GetId(), 10)
		for _, row := range []struct{ tag, id, cli, page string }{
			{"order", "10", "leased by   room a [0, 50)\nor skipped  an operator had it go on at " +
				"1000000: see `march audit list`\n",
				"Leased, or skipped: an operator had room a go on at 1,000,000."},
			{"order", "1000001", "leased by  room a [0, 50)\nlayout", "Leased by"},
			{"order", "700000001", "leased by  no room yet\n", "No room has leased this ID yet: room a will."},
			{"order", "500001", "", "Leased, or skipped"},
			{"bill", bill, "period     2021-01\nleased by  room a [0, 50)\n", "<dt>Period</dt><dd>2021-01</dd>"},
			{"bill", "1", "leased by  no room: it was skipped, and no room will lease it\n",
				"This ID was skipped: room a went past it, and no room will lease it."},
		} {
			out, code := n.march("id", "decode", row.tag, row.id, "--room", n.processes["a/a1"].room.Address)
			if code != exitOK || !strings.Contains(out, row.cli) {
				t.Errorf("%s %s: exit code %d, %s, want %s", row.tag, row.id, code, out, row.cli)
			}
			_, page := testcluster.Get(n.processes[nightConsole].console.HTTP, "/decode?tag="+row.tag+"&id="+row.id)
			if !strings.Contains(page, row.page) || strings.Contains(strings.ToLower(page), "issued by") {
				t.Errorf("%s %s: the page has not %q: %s", row.tag, row.id, row.page, regexp.MustCompile(`Leased, or[^<]*`).FindAllString(page, -1))
			}
		}
		// At their rate, the IDs of the period last for millions of years: until it ends.
		found, _ := n.march("tag", "search", "bill")
		_, list := testcluster.Get(n.processes[nightConsole].console.HTTP, "/tags")
		planned, _ := n.march("migrate", "plan", "--move", "a:25-50=b")
		for surface, text := range map[string]string{"tag search": found, "page": list, "plan": planned} {
			if !strings.Contains(text, "counts anew 2021-02-01") {
				t.Errorf("%s does not say when the tag counts anew: %s", surface, text)
			}
		}
	})
}

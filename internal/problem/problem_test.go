package problem_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/journal"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

// when is the time of tests, and after(n) is n minutes later.
var when = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(minutes int) time.Time { return when.Add(time.Duration(minutes) * time.Minute) }

var one = problem.Instance{Room: "a", Name: "one"}

// Each cause that keeps an instance from leasing is its own kind of problem, with its remedy.
func TestNoLease(t *testing.T) {
	damage := func(key string) record.Damage {
		return record.Damage{Stops: "all of " + key, Remedy: "mend it", Command: "march mend"}
	}
	for _, test := range []struct {
		err  error
		want string
	}{
		{allocator.Errorf(allocator.Unavailable, "etcd at h: %w", store.ErrNoSpace),
			"etcd_full  | etcd is full, and takes no writes: no IDs are leased | etcdctl alarm disarm"},
		{allocator.Errorf(allocator.Refused, "the layout: %w",
			&record.KeyError{Key: "/k", Err: errors.New("one\ntwo")}),
			"unreadable /k | key /k: one; two; it stops all of /k | march mend"},
		{allocator.Errorf(allocator.Refused, "%w", &ledger.UnconfirmedError{Room: "a", Name: "one"}),
			"unconfirmed a/one | instance a/one started without its journal, which is required, " +
				"and leases nothing | march instance confirm a one"},
		{allocator.Errorf(allocator.Unavailable, "%w", &journal.UnwritableError{Path: "/j", Since: after(1),
			Err: errors.New("disk on fire")}),
			"journal a/one | instance a/one leases nothing: its journal /j cannot be written: disk on fire | "},
		{allocator.Errorf(allocator.WentBack, "%w", &record.OtherClusterError{}),
			"foreign_etcd a/one | instance a/one leases nothing: etcd cluster 0 answered, " +
				"but cluster  lives in etcd cluster 0 | march recover"},
		{allocator.Errorf(allocator.WentBack, "it is older"),
			"no_lease a/one | instance a/one leases nothing: it is older | march recover"},
		{allocator.Errorf(allocator.Unauthenticated, "no password"),
			"no_lease a/one | instance a/one leases nothing: no password | march etcd roles a"},
		{errors.New("odd"), "no_lease a/one | instance a/one leases nothing: odd | "},
	} {
		p := one.NoLease(test.err, after(1), damage)
		if got := fmt.Sprintf("%s %s | %s | %s", api.Word(p.GetKind()), p.GetOf(), p.GetWhat(),
			p.GetCommand()); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
		if !p.GetSince().AsTime().Equal(after(1)) || !strings.HasSuffix(p.GetRemedy(), ".") ||
			strings.HasSuffix(p.GetWhat(), ".") {
			t.Errorf("%v", p)
		}
	}
}

// Kinds of problems that a list tells apart.
const (
	x    = marchv1.ProblemKind_PROBLEM_KIND_SILENT
	y    = marchv1.ProblemKind_PROBLEM_KIND_NO_LEASE
	z    = marchv1.ProblemKind_PROBLEM_KIND_JOURNAL
	said = marchv1.ProblemKind_PROBLEM_KIND_BARRED
)

// A problem without a beginning of its own gets the time at which it was first noted, until it
// is gone.
func TestLog(t *testing.T) {
	var l problem.Log
	list := func(kinds ...marchv1.ProblemKind) (all []*marchv1.Problem) {
		for _, kind := range kinds {
			all = append(all, &marchv1.Problem{Kind: kind})
		}
		return all
	}
	since := func(all []*marchv1.Problem) (text string) {
		for _, p := range all {
			text += fmt.Sprint(api.Word(p.GetKind()), int(p.GetSince().AsTime().Sub(when).Minutes()), " ")
		}
		return text
	}
	own := []*marchv1.Problem{{Kind: said, Since: timestamppb.New(after(50))}}
	for minute, test := range []struct {
		got  func(now time.Time) []*marchv1.Problem
		want string
	}{
		{func(now time.Time) []*marchv1.Problem { return l.Note(list(x), now) }, "silent0 "},
		{func(now time.Time) []*marchv1.Problem { return l.Note(list(x, y), now) }, "silent0 no_lease1 "},
		{func(now time.Time) []*marchv1.Problem { return l.Fill(list(y, z), now) }, "no_lease1 journal2 "},
		{func(now time.Time) []*marchv1.Problem { return l.Note(list(y, z), now) }, "no_lease1 journal2 "},
		{func(now time.Time) []*marchv1.Problem { return l.Note(list(x), now) }, "silent4 "},
		{func(now time.Time) []*marchv1.Problem { return l.Note(own, now) }, "barred50 "},
		{func(now time.Time) []*marchv1.Problem {
			return l.Note(list(marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE), now)
		}, "unreadable6 "},
		{func(now time.Time) []*marchv1.Problem {
			told := list(marchv1.ProblemKind_PROBLEM_KIND_UNREADABLE)
			told[0].Since = timestamppb.New(now)
			return l.Note(told, now)
		}, "unreadable6 "},
	} {
		if got := since(test.got(after(minute))); got != test.want {
			t.Errorf("minute %d: got %q, want %q", minute, got, test.want)
		}
	}
	if more := l.Note(list(marchv1.ProblemKind_PROBLEM_KIND_MORE), when); more[0].GetSince() != nil {
		t.Errorf("%v", more)
	}
}

// Of two equal problems in a list the first stays. If it has no time, it gets the other's.
func TestUnique(t *testing.T) {
	list := problem.Unique([]*marchv1.Problem{
		{Kind: x, What: "first"}, {Kind: x, Of: "o"}, {Kind: y},
		{Kind: x, What: "second", Since: timestamppb.New(after(1))},
	})
	if len(list) != 3 || list[0].GetWhat() != "first" || !list[0].GetSince().AsTime().Equal(after(1)) ||
		list[1].GetOf() != "o" || list[2].GetKind() != y {
		t.Errorf("%v", list)
	}
}

// A line has all parts of a problem.
func TestLine(t *testing.T) {
	p := one.Silent(after(0), after(60))
	const want = "instance a/one is silent. Since 2026-01-01T00:00:00Z, until 2026-01-01T01:00:00Z. " +
		"Start it again. If it is gone for good, forget it. Next: `march instance forget a one`"
	if got := problem.Line(p); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got := problem.Line(&marchv1.Problem{What: "x"}); got != "x." {
		t.Errorf("got %q", got)
	}
}

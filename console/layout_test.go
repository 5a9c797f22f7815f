package console_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

func TestInitLayout(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := start(t)
		none := want{codes.FailedPrecondition, "refused", []string{"there is no cluster", "march layout init"}}
		_, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{})
		none.check(t, "get layout before", err)
		_, err = c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: "order"}})
		none.check(t, "create tag before", err)
		_, err = c.ListInstances(bg, &marchv1.ListInstancesRequest{})
		none.check(t, "list instances before", err)

		l := halves()
		l.Version = 17 // ignored
		made, err := c.InitLayout(bg, &marchv1.InitLayoutRequest{Layout: l})
		if err != nil {
			t.Fatal(err)
		}
		l.Version = 1
		if diff := cmp.Diff(l, made.GetLayout().GetLayout(), protocmp.Transform()); diff != "" {
			t.Errorf("layout (-want +got): %s", diff)
		}
		if len(made.GetCluster()) != 36 || made.GetLayout().GetActor() != "unknown from 127.0.0.1" ||
			time.Since(made.GetLayout().GetTime().AsTime()).Abs() > time.Minute {
			t.Errorf("got %v", made)
		}
		_, err = c.InitLayout(bg, &marchv1.InitLayoutRequest{Layout: halves()})
		want{codes.AlreadyExists, "exists", []string{"/march/default/"}}.check(t, "init twice", err)

		got := must(c.GetLayout(bg, &marchv1.GetLayoutRequest{}))(t)
		if diff := cmp.Diff(made.GetLayout(), got.GetLayout(), protocmp.Transform()); diff != "" ||
			got.GetCluster() != made.GetCluster() {
			t.Errorf("get layout (-init +get): %s, cluster %s", diff, got.GetCluster())
		}
	})
}

// TestBadLayouts breaks each constraint, in InitLayout and in ValidateLayout.
func TestBadLayouts(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := start(t)
		many := make(map[string][2]int64)
		for k := range int64(65) {
			many[fmt.Sprintf("room-%d", k)] = [2]int64{k, k + 1}
		}
		type ranges = map[string][2]int64
		for what, test := range map[string]struct {
			layout *marchv1.Layout
			says   []string
		}{
			"none":       {nil, []string{"no layout"}},
			"empty":      {&marchv1.Layout{}, []string{"boundary 0", "0 rooms", "1 to 64"}},
			"no rooms":   {layout(100, nil), []string{"0 rooms"}},
			"boundary 0": {layout(0, ranges{"a": {0, 1}}), []string{"boundary 0", "1 to 9223372036854775807"}},
			"boundary below 0": {layout(math.MinInt64, ranges{"a": {0, 1}}),
				[]string{"boundary -9223372036854775808"}},
			"lower = upper":      {layout(100, ranges{"a": {5, 5}}), []string{"room a", "lower 5", "upper 5"}},
			"lower > upper":      {layout(100, ranges{"a": {6, 5}}), []string{"room a", "lower 6", "upper 5"}},
			"lower below 0":      {layout(100, ranges{"a": {-1, 5}}), []string{"room a", "lower -1"}},
			"above the boundary": {layout(100, ranges{"a": {0, 101}}), []string{"room a", "upper 101", "boundary 100"}},
			"overlap": {layout(100, ranges{"a": {0, 51}, "b": {50, 100}}),
				[]string{"rooms a [0, 51) and b [50, 100) overlap in [50, 51)"}},
			"the same range": {layout(100, ranges{"a": {0, 50}, "b": {0, 50}}), []string{"overlap in [0, 50)"}},
			"a range left out": {&marchv1.Layout{Boundary: 100, Rooms: map[string]*marchv1.Range{"a": nil}},
				[]string{"room a"}},
			"a room's name":  {layout(100, ranges{"A b": {0, 50}}), []string{`"A b"`, "[a-z0-9][a-z0-9-]{0,62}"}},
			"no name":        {layout(100, ranges{"": {0, 50}}), []string{"room: empty"}},
			"a long name":    {layout(100, ranges{strings.Repeat("x", 64): {0, 50}}), []string{"64 bytes"}},
			"too many rooms": {layout(100, many), []string{"65 rooms", "1 to 64"}},
			"all at once": {layout(10, ranges{"a": {0, 11}, "b": {4, 4}, "c": {-1, 3}}),
				[]string{"room a", "room b", "room c", "overlap"}},
		} {
			_, err := c.InitLayout(bg, &marchv1.InitLayoutRequest{Layout: test.layout})
			invalid(test.says...).check(t, "init "+what, err)
			r, err := c.ValidateLayout(bg, &marchv1.ValidateLayoutRequest{Layout: test.layout})
			if err != nil {
				t.Errorf("validate %s: %v", what, err)
				continue
			}
			all := strings.Join(r.GetProblems(), "\n")
			for _, part := range test.says {
				if !strings.Contains(all, part) {
					t.Errorf("validate %s: %q does not say %q", what, all, part)
				}
			}
		}
		if r, err := c.ValidateLayout(bg, &marchv1.ValidateLayoutRequest{Layout: layout(math.MaxInt64,
			ranges{"a": {0, 1}, "b": {math.MaxInt64 - 1, math.MaxInt64}})}); err != nil || len(r.GetProblems()) > 0 {
			t.Errorf("a valid one: %v, %v", r, err)
		}
		_, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{})
		want{codes.FailedPrecondition, "refused", nil}.check(t, "after all that", err)
	})
}

func TestLayoutHistory(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		l := c.Ledger()
		from, err := l.Refresh(bg)
		if err != nil {
			t.Fatal(err)
		}
		const versions = 7
		for version := int64(2); version <= versions; version++ {
			from = must(admin.New(l, admin.DefaultConfig()).ChangeLayout(bg, from,
				allocator.Layout{Boundary: 100 * version,
					Ranges: map[allocator.Room]allocator.Range{"c": {Lower: 0, Upper: version}}}, "somebody"))(t)
		}
		for _, size := range []int32{0, 1, 3, versions - 1, versions, 1000} {
			var got []int64
			for token := ""; ; {
				r := must(c.ListLayouts(bg, &marchv1.ListLayoutsRequest{PageSize: size, PageToken: token}))(t)
				if n := len(r.GetLayouts()); size > 0 && n > int(size) || n == 0 {
					t.Errorf("a page of %d has %d", size, n)
				}
				for _, record := range r.GetLayouts() {
					got = append(got, record.GetLayout().GetVersion())
				}
				if token = r.GetNextPageToken(); token == "" {
					break
				}
			}
			if diff := cmp.Diff([]int64{7, 6, 5, 4, 3, 2, 1}, got); diff != "" {
				t.Errorf("pages of %d (-want +got): %s", size, diff)
			}
		}
		if r, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{Version: 3}); err != nil ||
			r.GetLayout().GetLayout().GetBoundary() != 300 || r.GetLayout().GetActor() != "somebody" {
			t.Errorf("version 3: %v, %v", r, err)
		}
		if r, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{}); err != nil ||
			r.GetLayout().GetLayout().GetVersion() != versions {
			t.Errorf("current: %v, %v", r, err)
		}
		for _, version := range []int64{8, math.MaxInt64} {
			_, err := c.GetLayout(bg, &marchv1.GetLayoutRequest{Version: version})
			notFound("version "+fmt.Sprint(version), "march layout history").check(t, "unknown version", err)
		}
		_, err = c.GetLayout(bg, &marchv1.GetLayoutRequest{Version: -1})
		invalid("version: -1").check(t, "version -1", err)
		for _, token := range []string{"x", "0", "-1", "9223372036854775808", "1 ", "7;"} {
			_, err := c.ListLayouts(bg, &marchv1.ListLayoutsRequest{PageToken: token})
			invalid("page_token", token).check(t, "token "+token, err)
		}
		for _, size := range []int32{-1, 1001, math.MaxInt32} {
			_, err := c.ListLayouts(bg, &marchv1.ListLayoutsRequest{PageSize: size})
			invalid("page_size", fmt.Sprint(size), "1 to 1000").check(t, "page size", err)
		}
	})
}

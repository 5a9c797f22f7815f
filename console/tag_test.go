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
	"google.golang.org/protobuf/types/known/durationpb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

func p(n int64) *int64 { return &n }

func TestTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		before := time.Now().Add(-time.Second)
		made := c.create(&marchv1.Tag{Name: "order"})
		defaults := &marchv1.Tag{
			Name: "order", Start: p(1), Limit: p(math.MaxInt64), MinStep: p(1000), MaxStep: p(100_000_000),
			Reserve: durationpb.New(10 * time.Minute), MaxJump: p(1_000_000_000_000_000), MaxSkew: p(0),
			StrictRetract: new(false),
		}
		if diff := cmp.Diff(defaults, made, protocmp.Transform(),
			protocmp.IgnoreFields(&marchv1.Tag{}, "created", "revision")); diff != "" {
			t.Errorf("defaults (-want +got): %s", diff)
		}
		if created := made.GetCreated().AsTime(); created.Before(before) || created.After(time.Now()) {
			t.Errorf("created %v", created)
		}
		all := &marchv1.Tag{
			Name: "all.set_1-2", Start: p(0), Limit: p(1000), MinStep: p(1), MaxStep: p(1 << 40),
			Reserve: durationpb.New(7 * 24 * time.Hour), MaxJump: p(1), MaxSkew: p(math.MaxInt64),
			StrictRetract: new(true),
		}
		if diff := cmp.Diff(all, c.create(all), protocmp.Transform(),
			protocmp.IgnoreFields(&marchv1.Tag{}, "created", "revision")); diff != "" {
			t.Errorf("all set (-want +got): %s", diff)
		}
		_, err := c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: "order"}})
		want{codes.AlreadyExists, "exists", []string{"order"}}.check(t, "create twice", err)

		r := must(c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", MinStep: p(5),
			Reserve: durationpb.New(time.Second), Start: p(1)}}))(t)
		if r.GetTag().GetRevision() <= made.GetRevision() || made.GetRevision() == 0 {
			t.Errorf("revision %d after %d", r.GetTag().GetRevision(), made.GetRevision())
		}
		defaults.MinStep, defaults.Reserve, defaults.Created = p(5), durationpb.New(time.Second), made.GetCreated()
		defaults.Revision = r.GetTag().GetRevision()
		if diff := cmp.Diff(defaults, r.GetTag(), protocmp.Transform()); diff != "" {
			t.Errorf("updated (-want +got): %s", diff)
		}
		got, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&marchv1.GetTagResponse{Tag: defaults}, got, protocmp.Transform()); diff != "" {
			t.Errorf("get (-want +got): %s", diff)
		}
		must(c.DeleteTag(bg, &marchv1.DeleteTagRequest{Name: "order"}))(t)
		_, err = c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"})
		notFound("order", "march tag create order").check(t, "get after delete", err)
	})
}

// A tag's format is chosen when it is created, and stays.
func TestFormatsOfTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		made := c.create(&marchv1.Tag{Name: "order", Format: new("prefix( ORD- )|radix62(9)")})
		if made.GetFormat() != "prefix(ORD-) | radix62(9)" || made.GetLimit() != 13537086546263552 {
			t.Errorf("got %v", made)
		}
		got, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"})
		if err != nil || got.GetTag().GetFormat() != made.GetFormat() {
			t.Errorf("got %v, %v", got, err)
		}
		secret := c.create(&marchv1.Tag{Name: "secret", Format: new("opaque(k, 10^6) | decimal(6)"),
			KeyCheck: new("0123456789abcdef")})
		if secret.GetKeyCheck() != "0123456789abcdef" || secret.GetLimit() != 1_000_000 {
			t.Errorf("got %v", secret)
		}
		timed := c.create(&marchv1.Tag{Name: "event", Time: &marchv1.TimeTag{Preset: "cosid"},
			Format: new("friendly(cosid, +08:00)")})
		if timed.GetFormat() != "friendly(cosid, +08:00)" {
			t.Errorf("got %v", timed)
		}
		if r, err := c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", Limit: p(1000),
			MaxSkew: p(5), Format: made.Format}}); err != nil || r.GetTag().GetLimit() != 1000 ||
			r.GetTag().GetFormat() != made.GetFormat() {
			t.Errorf("got %v, %v", r, err)
		}
		for _, test := range []struct {
			tag  *marchv1.Tag
			says []string
		}{
			{&marchv1.Tag{Name: "order", Format: new("radix62(11)")},
				[]string{"format: cannot be changed (it is prefix(ORD-) | radix62(9))"}},
			{&marchv1.Tag{Name: "order", KeyCheck: new("0123456789abcdef")},
				[]string{"key_check: cannot be changed (it is none)"}},
			{&marchv1.Tag{Name: "order", Limit: p(13537086546263553)},
				[]string{"limit: 13537086546263553; allowed with the format prefix(ORD-) | radix62(9): " +
					"2 to 13537086546263552"}},
			{&marchv1.Tag{Name: "secret", Limit: p(999_999)}, []string{"limit: cannot be changed (it is 1000000)"}},
			{&marchv1.Tag{Name: "event", Format: new("radix62(11)")}, []string{"format: cannot be changed"}},
		} {
			_, err := c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: test.tag})
			invalid(test.says...).check(t, fmt.Sprintf("update %v", test.tag), err)
		}
		for _, test := range []struct {
			tag  *marchv1.Tag
			says []string
		}{
			{&marchv1.Tag{Format: new("prefix(ORD-) | base62")},
				[]string{"format: at column 16: base62 is no part; allowed: "}},
			{&marchv1.Tag{Format: new("decimal(3)"), Limit: p(1001)},
				[]string{"limit: 1001; allowed with the format decimal(3): 2 to 1000"}},
			{&marchv1.Tag{Format: new("date(yyyy) | decimal(3)")}, []string{"format: ",
				"allowed: with the part period"}},
			{&marchv1.Tag{Format: new("opaque(k, 10^6) | decimal(6)")}, []string{"key_check: none given"}},
			{&marchv1.Tag{Time: &marchv1.TimeTag{Preset: "cosid"}, Format: new("decimal(3)")},
				[]string{"format: decimal(3) writes IDs up to 999"}},
		} {
			test.tag.Name = "new"
			_, err := c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: test.tag})
			invalid(test.says...).check(t, fmt.Sprintf("create %v", test.tag), err)
		}
	})
}

// TestBadTags: every call refuses names and numbers out of bounds.
func TestBadTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order"})
		calls := map[string]func(name string) error{
			"create": func(n string) error {
				_, err := c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: &marchv1.Tag{Name: n}})
				return err
			},
			"get": func(n string) error { _, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: n}); return err },
			"update": func(n string) error {
				_, err := c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: n}})
				return err
			},
			"delete": func(n string) error {
				_, err := c.DeleteTag(bg,
					&marchv1.DeleteTagRequest{Name: n})
				return err
			},
			"skip": func(n string) error {
				_, err := c.SkipTag(bg, &marchv1.SkipTagRequest{Name: n,
					To: 5})
				return err
			},
			"prescale": func(n string) error {
				_, err := c.PrescaleTag(bg, &marchv1.PrescaleTagRequest{Name: n, Step: 5,
					Duration: durationpb.New(time.Minute)})
				return err
			},
		}
		for call, do := range calls {
			for _, name := range []string{"", strings.Repeat("x", 64), "Order", ".order", "or/der", "or\nder",
				"ördér"} {
				invalid("tag", "[a-z0-9][a-z0-9._-]{0,62}").check(t, fmt.Sprintf("%s %q", call, name), do(name))
			}
			if call != "create" {
				notFound("nothing", "march tag create nothing").check(t, call+" unknown", do("nothing"))
			}
		}
		_, err := c.CreateTag(bg, &marchv1.CreateTagRequest{})
		invalid("tag: empty").check(t, "create without a tag", err)
		_, err = c.UpdateTag(bg, &marchv1.UpdateTagRequest{})
		invalid("tag: empty").check(t, "update without a tag", err)

		for _, test := range []struct {
			tag  *marchv1.Tag
			says []string
		}{
			{&marchv1.Tag{Start: p(-1)}, []string{"start: -1", "0 to 9223372036854775806"}},
			{&marchv1.Tag{Start: p(math.MaxInt64)}, []string{"start: 9223372036854775807"}},
			{&marchv1.Tag{Limit: p(0)}, []string{"limit: 0", "above start (1)"}},
			{&marchv1.Tag{Limit: p(1)}, []string{"limit: 1"}},
			{&marchv1.Tag{Limit: p(math.MinInt64)}, []string{"limit: -9223372036854775808"}},
			{&marchv1.Tag{MinStep: p(0)}, []string{"min_step: 0", "1 to 1099511627776"}},
			{&marchv1.Tag{MinStep: p(-5)}, []string{"min_step: -5"}},
			{&marchv1.Tag{MinStep: p(1<<40 + 1)}, []string{"min_step: 1099511627777"}},
			{&marchv1.Tag{MaxStep: p(999)}, []string{"max_step: 999", "min_step (1000)"}},
			{&marchv1.Tag{MaxStep: p(1<<40 + 1)}, []string{"max_step: 1099511627777"}},
			{&marchv1.Tag{MaxJump: p(0)}, []string{"max_jump: 0", "1 to"}},
			{&marchv1.Tag{MaxSkew: p(-1)}, []string{"max_skew: -1", "0 (no bound)"}},
			{&marchv1.Tag{Reserve: durationpb.New(0)}, []string{"reserve: 0s", "1s to 168h"}},
			{&marchv1.Tag{Reserve: durationpb.New(-time.Second)}, []string{"reserve: -1s", "1s to 168h"}},
			{&marchv1.Tag{Reserve: durationpb.New(999 * time.Millisecond)}, []string{"reserve: 999ms", "1s to 168h"}},
			{&marchv1.Tag{Reserve: durationpb.New(7*24*time.Hour + 1)},
				[]string{"reserve: 168h0m0.000000001s", "1s to 168h"}},
			{&marchv1.Tag{Reserve: &durationpb.Duration{Seconds: 315_000_000_000}},
				[]string{"reserve", "315000000000", "1s to 168h"}},
			{&marchv1.Tag{Reserve: &durationpb.Duration{Seconds: -9_223_372_037}},
				[]string{"reserve", "-9223372037", "1s to 168h"}},
			{&marchv1.Tag{Reserve: &durationpb.Duration{Seconds: math.MaxInt64}},
				[]string{"reserve", "9223372036854775807", "1s to 168h"}},
			{&marchv1.Tag{Reserve: &durationpb.Duration{Seconds: 1, Nanos: -1}}, []string{"reserve", "1s to 168h"}},
		} {
			test.tag.Name = "new"
			_, err := c.CreateTag(bg, &marchv1.CreateTagRequest{Tag: test.tag})
			invalid(test.says...).check(t, fmt.Sprintf("create %v", test.tag), err)
			if test.tag.Start != nil {
				continue
			}
			test.tag.Name = "order"
			_, err = c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: test.tag})
			invalid(test.says...).check(t, fmt.Sprintf("update %v", test.tag), err)
		}
		_, err = c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", Start: p(2)}})
		invalid("start", "cannot be changed", "1").check(t, "update start", err)
		_, err = c.GetTag(bg, &marchv1.GetTagRequest{Name: "new"})
		notFound().check(t, "after all that", err)
	})
}

func TestListTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		var names []string
		for k := range 250 {
			names = append(names, fmt.Sprintf("tag-%03d", k))
		}
		names = append(names, "tag.x", "tbg", "u")
		for _, name := range names {
			c.create(&marchv1.Tag{Name: name})
		}
		list := func(size int32, prefix string) (got []string) {
			t.Helper()
			for token := ""; ; {
				r, err := c.ListTags(bg, &marchv1.ListTagsRequest{PageSize: size, PageToken: token, Prefix: prefix})
				if err != nil {
					t.Fatal(err)
				}
				if n := len(r.GetTags()); n > int(size) && size > 0 || n > 100 && size == 0 {
					t.Errorf("a page of %d has %d", size, n)
				}
				for _, tag := range r.GetTags() {
					got = append(got, tag.GetName())
				}
				if token = r.GetNextPageToken(); token == "" {
					return got
				}
			}
		}
		for _, size := range []int32{0, 1, 99, 253, 252, 1000} {
			if diff := cmp.Diff(names, list(size, "")); diff != "" {
				t.Errorf("pages of %d (-want +got): %s", size, diff)
			}
		}
		if diff := cmp.Diff(names[:250], list(10, "tag-")); diff != "" {
			t.Errorf("prefix tag- (-want +got): %s", diff)
		}
		if diff := cmp.Diff(names[120:130], list(3, "tag-12")); diff != "" {
			t.Errorf("prefix tag-12 (-want +got): %s", diff)
		}
		if got := list(0, "nothing"); len(got) > 0 {
			t.Errorf("prefix nothing: %v", got)
		}
		// A page token from elsewhere is a place in the order like any other.
		for token, first := range map[string]string{"a": "tag-000", "tag-100x": "tag-101", "zzz": "",
			"tag-099:5": "tag-100", "tag-099:6": "tag-100", "tag-199:0": "tag-200"} {
			r := must(c.ListTags(bg, &marchv1.ListTagsRequest{PageToken: token, PageSize: 1}))(t)
			got := ""
			if len(r.GetTags()) > 0 {
				got = r.GetTags()[0].GetName()
			}
			if got != first {
				t.Errorf("after %q: got %q, want %q", token, got, first)
			}
		}
		if r, err := c.ListTags(bg, &marchv1.ListTagsRequest{Prefix: "tag-", PageToken: "u"}); err != nil ||
			len(r.GetTags()) > 0 {
			t.Errorf("a token behind the prefix: %v, %v", r, err)
		}
		for _, bad := range []*marchv1.ListTagsRequest{
			{PageSize: -1}, {PageSize: 1001}, {PageToken: "A"}, {PageToken: "tag-1:"}, {PageToken: "tag-1:6"},
			{PageToken: "tag-1:-1"}, {PageToken: ":0"}, {PageToken: strings.Repeat("x", 64)}, {Prefix: "/"},
			{Prefix: "Tag"}, {Prefix: strings.Repeat("x", 64)},
		} {
			_, err := c.ListTags(bg, bad)
			invalid().check(t, bad.String(), err)
		}
	})
}

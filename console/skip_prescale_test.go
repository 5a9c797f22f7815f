package console_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

func TestSkipTag(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order", MaxJump: p(1000), Limit: p(100_000)})
		skip := func(to int64, force bool, rooms ...string) (*marchv1.Tag, error) {
			r, err := c.SkipTag(bg, &marchv1.SkipTagRequest{Name: "order", To: to, Force: force, Rooms: rooms})
			return r.GetTag(), err
		}
		skips := func(want map[string]int64) {
			t.Helper()
			r := must(c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"}))(t)
			if diff := cmp.Diff(want, r.GetTag().GetSkips()); diff != "" {
				t.Errorf("skips (-want +got): %s", diff)
			}
		}
		if tag, err := skip(1001, false, "a"); err != nil || tag.GetSkips()["a"] != 1001 { // start + max_jump
			t.Errorf("got %v, %v", tag, err)
		}
		skips(map[string]int64{"a": 1001})
		for _, to := range []int64{1002, 50_000} {
			_, err := skip(to, false)
			want{codes.FailedPrecondition, "refused", []string{fmt.Sprint("to: ", to), "largest mark, 1",
				"max_jump (1000)",
				"force"}}.check(t, "too far", err)
		}
		skips(map[string]int64{"a": 1001})
		if _, err := skip(50_000, true); err != nil { // all rooms
			t.Error(err)
		}
		skips(map[string]int64{"a": 1001})
		if tag, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"}); err != nil ||
			tag.GetTag().GetSkip() != 50_000 {
			t.Errorf("skip of all rooms: %v, %v; want 50000", tag, err)
		}
		if _, err := skip(7, false); err != nil { // backwards: no effect
			t.Error(err)
		}
		skips(map[string]int64{"a": 1001})
		if tag, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"}); err != nil ||
			tag.GetTag().GetSkip() != 50_000 {
			t.Errorf("skip of all rooms: %v, %v; want 50000", tag, err)
		}

		_, err := skip(500, false, "a", "c")
		notFound("room c", "version 1", "[a b]").check(t, "unknown room", err)
		_, err = skip(500, false, "A")
		invalid("room", `"A"`).check(t, "bad room", err)
		_, err = skip(500, false, make([]string, 65)...)
		invalid("rooms: 65", "64").check(t, "too many rooms", err)
		for _, to := range []int64{0, -1, math.MinInt64} {
			_, err := skip(to, true)
			invalid(fmt.Sprint("to: ", to), "1 to").check(t, "too small", err)
		}
		for _, to := range []int64{100_000, math.MaxInt64} {
			_, err := skip(to, true)
			invalid(fmt.Sprint("to: ", to), "limit, 100000").check(t, "beyond the limit", err)
		}
		skips(map[string]int64{"a": 1001})
		if tag, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"}); err != nil ||
			tag.GetTag().GetSkip() != 50_000 {
			t.Errorf("skip of all rooms: %v, %v; want 50000", tag, err)
		}

		r, err := c.room("b", "one").Next(bg, &marchv1.NextRequest{Tag: "order"})
		if err != nil || r.GetId() != 50_050 {
			t.Errorf("room b: got %v, %v, want 50050", r, err)
		}
	})
}

func TestPrescaleTag(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := startHalves(t)
		c.create(&marchv1.Tag{Name: "order", MinStep: p(10), MaxStep: p(5000)})
		prescale := func(step int64, d *durationpb.Duration) (*marchv1.Tag, error) {
			r, err := c.PrescaleTag(bg, &marchv1.PrescaleTagRequest{Name: "order", Step: step, Duration: d})
			return r.GetTag(), err
		}
		for _, step := range []int64{-1, 5001, math.MaxInt64, math.MinInt64} {
			_, err := prescale(step, durationpb.New(time.Minute))
			invalid("step", fmt.Sprint(step), "5000").check(t, fmt.Sprint("step ", step), err)
		}
		for _, d := range []*durationpb.Duration{
			nil, {}, {Seconds: -1}, {Nanos: 999_999_999}, {Seconds: 7 * 86400, Nanos: 1}, {Seconds: math.MaxInt64},
			{Seconds: 9_223_372_036, Nanos: 999_999_999}, {Nanos: -1},
		} {
			_, err := prescale(5, d)
			invalid("duration", "1s to 168h").check(t, fmt.Sprint("duration ", d), err)
		}
		tag, err := prescale(5000, durationpb.New(time.Hour))
		if err != nil || tag.GetPrescale() != 5000 ||
			time.Until(tag.GetPrescaleUntil().AsTime()).Round(time.Minute) != time.Hour {
			t.Fatalf("got %v, %v", tag, err)
		}
		_, err = c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order", MaxStep: p(4999)}})
		invalid("prescale: 5000", "max_step (4999)").check(t, "a max_step below the prescale", err)

		ids := c.room("a", "one")
		must(ids.Next(bg, &marchv1.NextRequest{Tag: "order"}))(t)
		chain := c.chain("order")
		if chain.GetHeld() < 4999 || chain.GetStep() != 5000 {
			t.Errorf("chain: %v", chain)
		}
		if tag, err = prescale(0, nil); err != nil || tag.GetPrescale() != 0 || tag.GetPrescaleUntil() != nil {
			t.Errorf("ended: %v, %v", tag, err)
		}
		testcluster.Await(t, "the chain knows", func() bool { return c.chain("order").GetStep() == 10 })

		// A prescale that has ended limits no later setting.
		if _, err = prescale(5000, durationpb.New(time.Second)); err != nil {
			t.Fatal(err)
		}
		testcluster.Await(t, "its time is over", func() bool {
			r, err := c.GetTag(bg, &marchv1.GetTagRequest{Name: "order"})
			return err == nil && r.GetTag().GetPrescale() == 0
		})
		if _, err := c.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order",
			MaxStep: p(100)}}); err != nil {
			t.Errorf("a max_step below a prescale that has ended: %v", err)
		}
	})
}

// chain returns the only chain that GetTag shows.
func (c *consoleOf) chain(tag string) *marchv1.Chain {
	c.Helper()
	r := must(c.GetTag(bg, &marchv1.GetTagRequest{Name: tag}))(c)
	if len(r.GetChains()) != 1 {
		return nil
	}
	return r.GetChains()[0]
}

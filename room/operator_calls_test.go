package room_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// The operators' calls also work on a room. A skip is for this room alone.
func TestLevers(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "cold")
		a, b := c.start("a", "a1", nil), c.start("b", "b1", nil)
		a.mustNext("order")
		b.mustNext("order")
		client := marchv1.NewRoomServiceClient(a.Conn)
		if _, err := client.SkipTag(bg, &marchv1.SkipTagRequest{Name: "order", To: 5_000_000}); err != nil {
			t.Fatal(err)
		}
		a.await("the skip", func() bool { return a.mustNext("order") >= 5_000_000 })
		if id := b.mustNext("order"); id >= 5_000_000 {
			t.Errorf("room b skipped too, to %d", id)
		}
		if _, err := client.UpdateTag(bg, &marchv1.UpdateTagRequest{Tag: &marchv1.Tag{Name: "order",
			Reserve: durationpb.New(time.Hour)}}); err != nil {
			t.Error(err)
		}
		// A prescale takes effect before the first caller.
		if _, err := client.PrescaleTag(bg, &marchv1.PrescaleTagRequest{Name: "cold", Step: 50_000,
			Duration: durationpb.New(time.Hour)}); err != nil {
			t.Fatal(err)
		}
		a.await("the prescale", func() bool { ch := a.chain("cold"); return ch.GetHeld() >= 50_000 })
		if _, err := client.PrescaleTag(bg, &marchv1.PrescaleTagRequest{Name: "cold", Step: -1,
			Duration: durationpb.New(time.Hour)}); err == nil {
			t.Error("a prescale of -1 was taken")
		}
	})
}

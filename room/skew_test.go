package room_test

import (
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/testcluster"
)

// An instance that holds IDs far behind those that another room, or another instance of its own room, issues drops
// them within two looks, whether callers ask it or not.
func TestSkewOfWhatIsHeld(t *testing.T) {
	for _, other := range []allocator.Room{"a", "b"} {
		for name, idle := range map[string]time.Duration{"busy": 0, "idle": 5 * time.Minute} {
			t.Run(string(other)+", "+name, func(t *testing.T) {
				testcluster.Bubble(t, func(t *testing.T) {
					const skew = 4000
					c := newCluster(t, testcluster.Halves())
					c.tag(func(s *record.TagSettings) { s.MaxSkew = skew }, "t")
					behind, ahead := c.start("a", "behind", nil), c.start(other, "ahead", nil)
					behind.mustNext("t")
					time.Sleep(idle)
					furthest := int64(0)
					for range 40 {
						for range 3 {
							batch, err := ahead.NextBatch(bg, batchRequest("t", 1000))
							if err != nil {
								t.Fatal(err)
							}
							for _, run := range batch.GetRuns() {
								furthest = max(furthest, run.GetFirst())
							}
						}
						before := furthest
						time.Sleep(11 * time.Second)
						if idle == 0 || before > 100_000 {
							if id := behind.mustNext("t"); id < before-skew {
								t.Fatalf("%d was issued when %d had come 11 s before", id, before)
							}
						}
					}
				})
			})
		}
	}
}

// Where no lease can be made above the furthest mark, as it lies too far away, an instance goes on with what it holds.
func TestSkewOfAJump(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(func(s *record.TagSettings) { s.MaxSkew, s.MaxJump = 4000, 100_000 }, "t")
		a, b := c.start("a", "a1", nil), c.start("b", "b1", nil)
		first := a.mustNext("t")
		if _, err := c.Admin.SkipTag(bg, "t", []allocator.Room{"b"}, 10_000_000, true, "test"); err != nil {
			t.Fatal(err)
		}
		b.await("room b skips", func() bool { return b.mustNext("t") >= 10_000_000 })
		time.Sleep(time.Minute)
		if id := a.mustNext("t"); id != first+1 {
			t.Errorf("%d was issued after %d", id, first)
		}
	})
}

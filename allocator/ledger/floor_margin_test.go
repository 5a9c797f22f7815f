package ledger_test

import (
	"fmt"
	"testing"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
)

// steps sets a tag's max_step.
func steps(n int64) func(*record.TagSettings) {
	return func(s *record.TagSettings) { s.MinStep, s.MaxStep = 1, n }
}

// A tag that stays idle over two recovers gets the margins of both, of the largest
// step that it ever had, under the narrowest range and the largest boundary so far.
func TestFloorHasAllMargins(t *testing.T) {
	c := newCluster(t, "1000 a=0-500 b=500-1000")
	c.Tag("idle", steps(10_000))
	c.Tag("busy", steps(10_000))
	c.Move("100 a=0-10 b=50-100")
	c.Update("idle", steps(10))
	lease := func(p *process, tag allocator.Tag) allocator.Segment {
		t.Helper()
		seg, err := p.TryLease(tag, 5)
		if err != nil {
			t.Fatal(err)
		}
		return seg
	}
	a, b := c.start("a"), c.start("b")
	for _, tag := range []allocator.Tag{"idle", "busy"} {
		lease(a, tag)
		lease(b, tag)
	}
	next := max(c.markOf("a", "idle").Next, c.markOf("b", "idle").Next)
	const span = (10_000/10 + 1) * 1000
	c.Began(3)
	a = c.start("a")
	if seg := lease(a, "busy"); seg.First < next+3*span || seg.First > next+3*span+100 {
		t.Errorf("a busy tag, after the first recover: %v", seg)
	}
	c.Began(5)
	a, b = c.start("a"), c.start("b")
	if seg := lease(a, "idle"); seg.First < next+5*span || seg.First > next+5*span+100 {
		t.Errorf("an idle tag, after both: %v, want %d or a little more", seg, next+5*span)
	}
	if m := c.markOf("a", "idle"); m.Total != 5 || m.Began != next+5*span {
		t.Errorf("its mark: %+v", m)
	}
	if seg := lease(a, "busy"); seg.First < next+5*span || seg.First > next+5*span+100 {
		t.Errorf("a busy tag, after both: %v, want %d or a little more", seg, next+5*span)
	}
	// The other room passes by the same floor, and no further.
	if seg := lease(b, "idle"); seg.First < next+5*span || seg.First > next+5*span+300 {
		t.Errorf("the other room: %v", seg)
	}
	// A layout within the epoch costs nothing.
	was := c.markOf("b", "idle").Next
	c.Move("100 a=50-100 b=0-10")
	if seg := lease(a, "idle"); seg.First > was+100 {
		t.Errorf("after a move: %v, and the largest mark was %d", seg, was)
	}
	c.Check()
}

// markOf returns the mark of a tag in a room.
func (c *cluster) markOf(room allocator.Room, tag allocator.Tag) record.Mark {
	c.Helper()
	m, err := record.DecodeMark(store.KV{Key: "test", Value: c.Value("marks/" + string(room) + "/" + string(tag))})
	if err != nil {
		c.Fatalf("%v", err)
	}
	return m
}

// A tag's name may have been in use in a history that was lost, unless an operator
// says that it was not. A room that joins later counts in the same way.
func TestFloorOfANewTag(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Began(4)
	settings := record.DefaultTag()
	steps(1000)(&settings)
	if _, err := c.Admin.CreateTag(bg, "perhaps", settings, "test"); err != nil {
		t.Fatal(err)
	}
	fresh, err := c.Admin.CreateFreshTag(bg, "fresh", settings, "test")
	if err != nil || fresh.BaseTotal != 4 || fresh.LargestStep != 1000 {
		t.Fatalf("%+v, %v", fresh, err)
	}
	const span = (1000/50 + 1) * 100
	a := c.start("a")
	for tag, want := range map[allocator.Tag]int64{"perhaps": 1 + 4*span, "fresh": 1} {
		seg, err := a.TryLease(tag, 5)
		if err != nil || seg.First < want || seg.First > want+100 {
			t.Errorf("tag %s: %v, %v; want %d or a little more", tag, seg, err, want)
		}
	}
	c.Move("100 a=0-50 c=50-100")
	newcomer := c.start("c")
	if seg, err := newcomer.TryLease("fresh", 5); err != nil || seg.First > 200 {
		t.Errorf("in a new room: %v, %v", seg, err)
	}
	c.Began(5)
	c.Move("100 a=0-50 c=50-100")
	newcomer = c.start("c")
	if seg, err := newcomer.TryLease("fresh", 5); err != nil || seg.First < span || seg.First > span+300 {
		t.Errorf("after one more recover: %v, %v", seg, err)
	}
	c.Check()
}

// A mark that was raised after the floor was read counts with what it lacks of the
// total.
func TestFloorOfAMarkThatWasRaisedMeanwhile(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Update("t", steps(1000))
	c.Began(2)
	a := c.start("a")
	source, _, err := a.Source(bg, "t")
	if err != nil {
		t.Fatal(err)
	}
	c.Corrupt("marks/a/t", []byte(`{"format":2,"next":"5000"}`))
	seg, err := source.Lease(bg, 10)
	span := int64(100_000_000/50+1) * 100 // of the step that the tag had first
	if err != nil || seg.First < 5000+2*span || seg.First > 5000+2*span+100 {
		t.Errorf("%v, %v; want %d or a little more", seg, err, 5000+2*span)
	}
}

// No lease spans more than the floor leaves free for a step: a caller that asks for
// more gets the largest step that the tag ever had.
func TestLeaseOfTheLargestStep(t *testing.T) {
	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Tag("u", steps(100))
	c.Update("u", steps(10))
	if seg, err := c.start("a").TryLease("u", 1000); err != nil || seg.Count != 100 {
		t.Errorf("%v, %v", seg, err)
	}
	c.Check()
}

// Distance within one block, margins and raises do not count for max_jump: a
// boundary above it must not keep a room from leasing after every move.
func TestMaxJumpCountsLeasesOnly(t *testing.T) {
	lease := func(c *cluster, room allocator.Room) {
		t.Helper()
		if _, err := c.start(room).TryLease("t", 10); err != nil {
			t.Errorf("room %s: %v", room, err)
		}
	}
	wide := newCluster(t, "10000000000000000 a=0-5000000000000000 b=5000000000000000-10000000000000000")
	lease(wide, "a")
	lease(wide, "b")
	wide.Move("10000000000000000 a=0-4000000000000000 b=5000000000000000-10000000000000000")
	lease(wide, "a")
	lease(wide, "b")
	wide.Check()

	c := newCluster(t, "100 a=0-50 b=50-100")
	c.Update("t", func(s *record.TagSettings) { s.MaxJump = 1000 })
	lease(c, "a")
	lease(c, "b")
	c.Began(7) // far more than max_jump
	lease(c, "b")
	lease(c, "a")
	c.Check()

	c = newCluster(t, "100 a=0-50 b=50-100")
	c.Update("t", func(s *record.TagSettings) { s.MaxJump = 1000 })
	lease(c, "a")
	lease(c, "b")
	m := c.Mark("a").Raised(1_000_000_000)
	c.Corrupt("marks/a/t", fmt.Appendf(nil, `{"format":2,"next":"%d","stamp":{"epoch":"%s","layout_revision":"%d"},`+
		`"began":"%d","eras":[{"version":"1","epoch":"%s","first":"%d","end":"%d"}]}`,
		m.Next, m.Stamp.Epoch, m.Stamp.Revision, m.Began, m.Stamp.Epoch, m.Eras[0].First, m.Eras[0].End))
	c.Move("100 a=50-100 b=0-50")
	lease(c, "b")
	c.Check()
}

package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/allocator/ledger/worker"
)

// beat makes instances send heartbeats, as running processes do.
func (c *cluster) beat(all ...*process) {
	c.tb.Helper()
	for _, p := range all {
		key := record.Keys("/march/default/").Alive(p.Room(), p.Name())
		value, _ := c.fake.Value(key)
		var v record.Heartbeat
		if err := record.Decode(store.KV{Key: key, Value: value}, &v); err != nil {
			c.tb.Fatal(err)
		}
		v.Counter, v.Time = v.Counter+1, time.UnixMilli(c.now.Load()).UTC()
		c.corrupt(key, record.Encode(&v))
	}
}

// An instance with a clock an hour ahead of running instances takes and renews no window
// without an operator's consent.
func TestAClockThatIsAhead(t *testing.T) {
	c := newCluster(t, halves)
	p, q, r := c.start("a"), c.start("a"), c.start("b")
	w := p.take(ms(10))
	p.ahead.Store(time.Hour.Milliseconds())
	err := p.Renew(bg, w)
	clock, ok := errors.AsType[*worker.ClockError](err)
	if !ok || clock.Certain || clock.Clocks != 3 {
		t.Fatalf("got %v", err)
	}
	ledgertest.WantKind(t, err, allocator.Unavailable, "1h0m0s ahead", "looking again")
	c.pass(10 * time.Second)
	c.beat(q, r)
	err = p.Renew(bg, w)
	ledgertest.WantKind(t, err, allocator.Refused, "1h0m0s ahead of the median of 3 instances, more than 20s", "agree")
	_, err = p.Take(bg, ms(9))
	ledgertest.WantKind(t, err, allocator.Refused, "ahead")
	agreed := c.start("a", func(cfg *worker.Config) { cfg.AgreeClock = true })
	agreed.ahead.Store(time.Hour.Milliseconds())
	w = agreed.take(ms(9))
	agreed.renew(w)
	if got := w.Window().Until - start; got < time.Hour.Milliseconds() {
		t.Errorf("the window ends at %d", got)
	}
	q.take(ms(9)) // the others go on
}

// An instance whose clock is behind takes windows, and knows it as soon as that is certain. Before, nothing said so. A
// heartbeat of an instance that is gone, and whose clock was ahead, makes no clock look behind.
func TestAClockThatIsBehind(t *testing.T) {
	c := newCluster(t, halves)
	q, r := c.start("a"), c.start("b")
	c.pass(2 * time.Hour)
	c.beat(q, r)
	p := c.start("a")
	p.ahead.Store(-time.Hour.Milliseconds())
	w := p.take(ms(10))
	if off := p.ClockOff(); off != 0 {
		t.Errorf("%v off before it is certain", off)
	}
	c.pass(10 * time.Second)
	c.beat(q, r)
	p.renew(w)
	if off := p.ClockOff(); off != -time.Hour {
		t.Errorf("%v off, want an hour behind", off)
	}
	p.ahead.Store(0)
	if err := p.CheckClock(bg, p.Now()); err != nil || p.ClockOff() != 0 {
		t.Errorf("%v off once it is right, %v", p.ClockOff(), err)
	}
	c.pass(-2 * time.Hour) // of all that run
	c.pass(10 * time.Second)
	for range 3 {
		c.beat(p)
		p.renew(w)
		c.pass(10 * time.Second)
	}
	if off := p.ClockOff(); off != 0 {
		t.Errorf("%v off by heartbeats of instances that are gone", off)
	}
}

// A heartbeat of an instance that is gone is no clock. Before, each new instance took no window for 10 s, as long as
// those that ended without a sign were the most.
func TestDeadHeartbeatsAreNoClocks(t *testing.T) {
	c := newCluster(t, halves)
	for range 4 {
		c.start("b")
	}
	c.pass(time.Hour)
	alone := c.start("a")
	alone.take(ms(10))
	if err := alone.CheckClock(bg, alone.Now()); err != nil {
		t.Errorf("a period is not opened: %v", err)
	}
	// Two that run and one whose clock is ahead of theirs: the dead ones speak for neither.
	c.beat(alone, c.start("b"))
	ahead := c.start("a")
	ahead.ahead.Store(time.Hour.Milliseconds())
	_, err := ahead.Take(bg, ms(10))
	ledgertest.WantKind(t, err, allocator.Unavailable, "of 3 heartbeats", "looking again")
}

// A clock that is set is compared at once, although one that ran on was compared a moment before.
func TestASetClockIsComparedAtOnce(t *testing.T) {
	c := newCluster(t, halves)
	p := c.start("a")
	c.start("a")
	c.start("b")
	for _, test := range []struct{ passes, ahead time.Duration }{
		{0, 0}, {time.Second, 0}, {time.Second, 24 * time.Hour}, {time.Second, 0}, {time.Second, 24 * time.Hour},
	} {
		c.pass(test.passes)
		err := p.CheckClock(bg, p.Now().Add(test.ahead))
		if _, refused := errors.AsType[*worker.ClockError](err); refused != (test.ahead > 0) || !refused && err != nil {
			t.Errorf("%v ahead: %v", test.ahead, err)
		}
	}
}

// Heartbeats of instances that are gone have an old time. They refuse no window, but where etcd's own clock cannot be
// read, the first look cannot know yet that those instances are gone.
func TestOldHeartbeats(t *testing.T) {
	c := newCluster(t, halves)
	c.noEtcdTime = true
	c.start("a")
	c.start("a")
	c.start("b")
	c.pass(time.Hour) // after a power cut, for example
	p := c.start("a")
	_, err := p.Take(bg, ms(10))
	ledgertest.WantKind(t, err, allocator.Unavailable, "looking again")
	c.pass(9 * time.Second)
	_, err = p.Take(bg, ms(10))
	ledgertest.WantKind(t, err, allocator.Unavailable, "looking again")
	c.pass(time.Second)
	p.take(ms(10))
}

// A heartbeat may be an interval old, so its age makes no clock look wrong.
func TestAgeOfHeartbeats(t *testing.T) {
	const s = time.Second
	for age, ahead := range map[time.Duration]time.Duration{s: 0, 5 * s: 0, 7 * s: 2 * s} {
		c := newCluster(t, halves)
		c.start("a")
		c.start("b")
		p := c.start("a")
		c.pass(age)
		p.take(ms(10))
		if got := p.ClockAhead(); got != ahead {
			t.Errorf("beside heartbeats that are %v old the clock is %v ahead, want %v", age, got, ahead)
		}
	}
}

// Cases: the other clocks, and by how much a clock may be ahead of them.
func TestMedians(t *testing.T) {
	for name, test := range map[string]struct {
		others  []time.Duration // their clocks are ahead
		ahead   time.Duration
		refused bool
	}{
		"two clocks": {others: []time.Duration{0}, ahead: time.Hour},
		"three":      {others: []time.Duration{0, 0}, ahead: time.Hour, refused: true},
		"20 s":       {others: []time.Duration{0, 0, 0}, ahead: 20 * time.Second},
		"above 20 s": {others: []time.Duration{0, 0, 0},
			ahead: 20*time.Second + time.Millisecond, refused: true},
		"behind":                 {others: []time.Duration{0, 0, 0}, ahead: -time.Hour},
		"most are ahead":         {others: []time.Duration{time.Hour, time.Hour, 0}, ahead: time.Hour},
		"half of four are ahead": {others: []time.Duration{time.Hour, 0, 0}, ahead: time.Hour},
		"one of many is ahead":   {others: []time.Duration{time.Hour, 0, 0, 0}, ahead: time.Hour, refused: true},
	} {
		c := newCluster(t, halves)
		p := c.start("a")
		var others []*process
		for _, ahead := range test.others {
			c.now.Add(ahead.Milliseconds())
			others = append(others, c.start("b"))
			c.now.Add(-ahead.Milliseconds())
		}
		p.ahead.Store(test.ahead.Milliseconds())
		_, _ = p.Take(bg, ms(10))
		c.pass(10 * time.Second)
		for i, ahead := range test.others {
			c.now.Add(ahead.Milliseconds())
			c.beat(others[i])
			c.now.Add(-ahead.Milliseconds())
		}
		_, err := p.Take(bg, ms(9))
		if _, refused := errors.AsType[*worker.ClockError](err); refused != test.refused || !refused && err != nil {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

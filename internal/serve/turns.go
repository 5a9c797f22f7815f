package serve

import (
	"sync"
	"sync/atomic"
	"time"
)

// turns bounds how many streams have requests in gRPC at the same moment.
//
// Each stream has a goroutine, and a stream that is sent requests without end can always
// run. Go's scheduler gives each of them its turn before the goroutines of a unary call,
// which needs several: beside 500 eager streams a call took 2 s. So the requests of
// other streams wait in their connections, where no goroutine is busy with them, and
// processors are left for everything else. Few busy streams do no such harm, and taking
// turns costs a third of their answers: up to manyBusy of them for each turn take none.
//
// A turn ends when the handler took all that its stream was given. The handler may block:
// its tag has to be leased, or its client does not read. So while streams wait, a turn
// ends after two of the timer's ticks in any case.
type turns struct {
	slots   []atomic.Pointer[answers] // the streams that are busy
	most    int                       // of the slots, which are used while streams wait
	ticks   atomic.Int64
	waiting atomic.Int64 // streams in queue
	mu      struct {
		sync.Mutex
		queue []*answers // they wait for a turn, the first one longest
		timer *time.Timer
	}
}

// tick is more than a stream needs for what it is given at a time.
const tick = time.Millisecond

// manyBusy is how many busy streams there are for each turn before they take turns.
const manyBusy = 16

func newTurns(most int64) *turns {
	t := &turns{slots: make([]atomic.Pointer[answers], manyBusy*most), most: int(most)}
	t.mu.timer = time.AfterFunc(tick, t.tick)
	t.mu.timer.Stop()
	return t
}

// take gives a stream a turn if there is one.
func (t *turns) take(a *answers) bool {
	a.since.Store(t.ticks.Load())
	slots := t.slots
	if t.crowded() {
		slots = slots[:t.most]
	}
	for i := range slots {
		if slots[i].CompareAndSwap(nil, a) {
			a.turn.Store(int32(i + 1))
			return true
		}
	}
	return false
}

// crowded reports whether streams wait for a turn.
func (t *turns) crowded() bool { return t.waiting.Load() > 0 }

// takeFirst is take, but streams that wait come first.
func (t *turns) takeFirst(a *answers) bool { return !t.crowded() && t.take(a) }

// wait gives a stream a turn, and reports true; or it has the stream wait until one is
// granted.
func (t *turns) wait(a *answers) bool {
	if t.takeFirst(a) {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.waits {
		return false
	}
	t.waiting.Add(1)
	if len(t.mu.queue) == 0 {
		if t.take(a) { // it was free before waiting said that a stream waits
			t.waiting.Add(-1)
			return true
		}
		t.mu.timer.Reset(tick)
	}
	a.waits = true
	t.mu.queue = append(t.mu.queue, a)
	return false
}

// end ends a stream's turn, if it has one, and reports whether it had. No lock of a
// connection may be held: others get their turns.
func (t *turns) end(a *answers) bool {
	slot := a.turn.Load()
	if slot == 0 || !a.turn.CompareAndSwap(slot, 0) {
		return false
	}
	t.slots[slot-1].Store(nil)
	if t.crowded() {
		t.grant()
	}
	return true
}

// grant gives streams that wait the turns that are free, and reports whether others still
// wait.
func (t *turns) grant() bool {
	for {
		a, more := t.next()
		if a == nil {
			return more
		}
		if !a.granted() {
			if slot := a.turn.Swap(0); slot > 0 { // what ended the stream may have ended its turn
				t.slots[slot-1].Store(nil)
			}
		}
	}
}

// next gives the first stream that waits a turn, and returns it; nil where no stream waits,
// or no turn is free.
func (t *turns) next() (a *answers, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mu.queue) == 0 {
		return nil, false
	}
	a = t.mu.queue[0]
	if !t.take(a) {
		return nil, true
	}
	t.mu.queue = t.mu.queue[1:]
	a.waits = false
	t.waiting.Add(-1)
	return a, true
}

// tick ends turns that last too long while others wait.
func (t *turns) tick() {
	now := t.ticks.Add(1)
	for i := range t.slots {
		if a := t.slots[i].Load(); a != nil && now-a.since.Load() >= 2 && t.end(a) {
			a.wants()
		}
	}
	if t.grant() {
		t.mu.timer.Reset(tick)
	}
}

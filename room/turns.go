package room

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// turns bounds how many streams answer at the same moment.
//
// Each stream has a goroutine, and a stream that is sent requests without end
// can always run. Go's scheduler gives each of them its turn before the
// goroutines of a unary call, which needs several: beside 500 eager streams a
// call took 2 s. So streams without a turn wait here and need no processor, and
// processors are left for all other work.
//
// A stream takes a turn for one answer. It may block during its turn, because its
// tag has to be leased, or its client does not read. So a turn ends after
// longestTurn in any case, and the stream goes on without one.
type turns struct {
	free chan struct{} // holds a token for each turn that is taken
	busy atomic.Int32  // streams that answer, or wait for their turn

	answers atomic.Int64
}

// longestTurn is much longer than an answer takes.
const longestTurn = time.Millisecond

func newTurns(most int) *turns { return &turns{free: make(chan struct{}, most)} }

// pass takes and ends the turns of one stream.
type pass struct {
	turns *turns
	timer *time.Timer // ends the turn; nil before the first turn that the stream waits for
	held  bool        // the stream waited for the present turn
}

// yieldAfter is how many answers streams give before one of them lets other goroutines
// run. A stream that ends its turn wakes the next, and Go's scheduler runs a goroutine
// that was just woken before those that wait: on one processor a call beside such a
// chain of turns waited up to 10 ms, each time that one of its goroutines was to run.
// The stream keeps its turn meanwhile, or the chain would go on without it.
const yieldAfter = 64

// longChain is how many streams that wait for one turn are too many for the others: such a
// chain seldom ends by itself. Below it no stream yields, which would cost a tenth of
// the answers.
const longChain = 32

// take waits for a turn, if too many streams are busy.
func (p *pass) take(ctx context.Context) {
	if int(p.turns.busy.Add(1)) <= cap(p.turns.free) {
		return
	}
	select {
	case p.turns.free <- struct{}{}:
	case <-ctx.Done():
		return
	}
	p.held = true
	if p.timer == nil {
		p.timer = time.AfterFunc(longestTurn, func() { <-p.turns.free })
	} else {
		p.timer.Reset(longestTurn)
	}
}

// end ends the turn.
func (p *pass) end() {
	if int(p.turns.busy.Load()) > longChain*cap(p.turns.free) && p.turns.answers.Add(1)%yieldAfter == 0 {
		runtime.Gosched()
	}
	p.turns.busy.Add(-1)
	if p.held {
		p.held = false
		if p.timer.Stop() {
			<-p.turns.free
		}
	}
}

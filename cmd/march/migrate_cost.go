package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// costEvery is how often a terminal is shown how far the costs of a plan are, and
	// costWait for how long a call waits for them where there is none.
	costEvery = 200 * time.Millisecond
	costWait  = time.Second
)

// planCost has a console count what a plan costs, and shows on a terminal how far it
// is. The answer is nil where the console is of an earlier version, which has the costs
// in its plans.
func planCost(ctx context.Context, c *common, t *target, plan *marchv1.Plan) (*marchv1.CountPlanCostResponse, error) {
	l, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer l.close()
	line := &costLine{c: c, tty: term.IsTerminal(int(os.Stderr.Fd()))}
	defer line.end()
	wait := costWait
	if line.tty {
		wait = costEvery
	}
	request := &marchv1.CountPlanCostRequest{Plan: plan, Wait: durationpb.New(min(wait, t.timeout/2))}
	for {
		var answer *marchv1.CountPlanCostResponse
		earlier := false
		err := l.call(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
			answer, err = marchv1.NewConsoleServiceClient(conn).CountPlanCost(ctx, request)
			if earlier = status.Code(err) == codes.Unimplemented; earlier {
				return nil
			}
			return err
		})
		switch {
		case err != nil || earlier:
			return nil, err
		case answer.GetCost() != nil:
			return answer, nil
		}
		request.Count = answer.GetCount()
		line.update(answer)
	}
}

// costLine shows how far the costs of a plan are, in place on a terminal, and nothing
// elsewhere.
type costLine struct {
	c     *common
	tty   bool
	shown bool
}

func (l *costLine) update(r *marchv1.CountPlanCostResponse) {
	if !l.tty {
		return
	}
	l.shown = true
	text := "counting the costs of the plan"
	if all := r.GetTags(); all > 0 {
		read := min(r.GetRead(), all) // tags are created meanwhile
		text = fmt.Sprintf("%3.0f%%  %s: %s of %s", 100*float64(read)/float64(all), text, grouped(read), counted(all, "tag"))
	}
	_, _ = fmt.Fprint(l.c.stderr, "\r\x1b[K"+text)
}

func (l *costLine) end() {
	if l.shown {
		_, _ = fmt.Fprint(l.c.stderr, "\r\x1b[K")
	}
}

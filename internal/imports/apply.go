package imports

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// State is what became of a counter.
type State string

// States. In a dry run they say what would become of it.
const (
	Created   State = "created"   // there was no such tag
	Raised    State = "raised"    // the tag might have issued IDs below the counter
	Unchanged State = "unchanged" // the tag issues only IDs from the counter on
	Failed    State = "refused"   // the tag cannot go on above the counter
)

// Result is a counter and what became of it.
type Result struct {
	Counter
	State State  `json:"state"`
	Why   string `json:"why,omitempty"` // it was refused
}

// Console calls the console: use is called with a context that has a deadline of its own.
type Console func(ctx context.Context, use func(context.Context, marchv1.ConsoleServiceClient) error) error

// atOnce is how many counters are asked for at a time: a call waits for instances.
const atOnce = 8

// Apply has March go on above counters, or in a dry run says what it would do. done is called
// after each counter, by one goroutine at a time.
//
// The results are in the order of the counters. Its error is of a call that was not answered;
// the results are then of the counters before that: what is done is done, and a second
// run goes on.
func Apply(ctx context.Context, console Console, counters []Counter, dry bool, done func(Result)) ([]Result, error) {
	var rooms []string // that have skips of their own: before `march cluster upgrade`
	err := console(ctx, func(ctx context.Context, s marchv1.ConsoleServiceClient) error {
		answer, err := s.GetLayout(ctx, &marchv1.GetLayoutRequest{})
		if answer.GetLayout().GetFormats() >= 2 {
			return err
		}
		for room := range answer.GetLayout().GetLayout().GetRooms() {
			rooms = append(rooms, room)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	results := make([]*Result, len(counters))
	var one sync.Mutex // around done
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, c := range counters {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			r := Result{Counter: c}
			r.Notes = slices.Clone(c.Notes)
			err := console(ctx, func(ctx context.Context, s marchv1.ConsoleServiceClient) (err error) {
				r.State, err = r.apply(ctx, s, rooms, dry)
				return err
			})
			switch allocator.KindOf(err) {
			case allocator.Invalid, allocator.Refused, allocator.Exhausted:
				r.State, r.Why, err = Failed, err.Error(), nil
			}
			if err != nil {
				return fmt.Errorf("tag %s: %w", c.Tag, err)
			}
			results[i] = &r
			one.Lock()
			defer one.Unlock()
			done(r)
			return nil
		})
	}
	err = group.Wait()
	all := make([]Result, 0, len(results))
	for _, r := range results {
		if r != nil {
			all = append(all, *r)
		}
	}
	return all, err
}

// apply makes or raises the tag of r.
func (r *Result) apply(ctx context.Context, s marchv1.ConsoleServiceClient, rooms []string, dry bool) (State, error) {
	answer, err := s.GetTag(ctx, &marchv1.GetTagRequest{Name: string(r.Tag)})
	if allocator.KindOf(err) == allocator.NotFound {
		settings := r.settings()
		if dry {
			return Created, nil
		}
		_, err = s.CreateTag(ctx, &marchv1.CreateTagRequest{Tag: settings})
		if allocator.KindOf(err) != allocator.Exists { // another caller made it just now
			return Created, err
		}
		answer, err = s.GetTag(ctx, &marchv1.GetTagRequest{Name: string(r.Tag)})
	}
	if err != nil {
		return "", err
	}
	tag := answer.GetTag()
	switch {
	case tag.GetTime() != nil:
		return "", allocator.Errorf(allocator.Refused, "tag %s exists, and has time-ordered IDs", r.Tag)
	case r.From >= tag.GetLimit():
		return "", allocator.Errorf(allocator.Refused, "tag %s has the limit %d; first `march tag update %s --limit N`",
			r.Tag, tag.GetLimit(), r.Tag)
	case above(tag, rooms, r.From):
		return Unchanged, nil
	case dry:
		return Raised, nil
	}
	// A room's mark says nothing of what its instances hold still, so only start and skips
	// do. SkipTag has all instances drop what they hold below.
	skipped, err := s.SkipTag(ctx, &marchv1.SkipTagRequest{Name: string(r.Tag), To: r.From})
	if err != nil {
		return "", err
	}
	if behind := skipped.GetBehind(); len(behind) > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("may still issue IDs below %d, as they did not answer or follow: %s",
			r.From, strings.Join(behind, ", ")))
	}
	return Raised, nil
}

// above reports whether a tag's settings keep all rooms from issuing IDs below from, and those
// that come later if rooms is empty.
func above(tag *marchv1.Tag, rooms []string, from int64) bool {
	return max(tag.GetStart(), tag.GetSkip()) >= from || len(rooms) > 0 &&
		!slices.ContainsFunc(rooms, func(room string) bool { return tag.GetSkips()[room] < from })
}

// settings returns a new tag for r. It leases as many IDs at once as the other system did.
func (r *Result) settings() *marchv1.Tag {
	t := &marchv1.Tag{Name: string(r.Tag), Start: &r.From}
	if r.Step > 0 {
		t.MinStep = &r.Step
		if largest := max(r.Step, record.DefaultTag().MaxStep); r.Step == largest {
			t.MaxStep = &largest
		}
	}
	return t
}

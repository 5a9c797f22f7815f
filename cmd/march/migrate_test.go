package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// readLine returns at ^C, even if no answer comes.
func TestReadLine(t *testing.T) {
	silent, stop := io.Pipe()
	defer stop.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if line, err := readLine(gone, silent); !errors.Is(err, context.Canceled) || line != "" {
		t.Errorf("interrupted: %q, %v", line, err)
	}
	for text, want := range map[string]string{"y\nmore": "y\n", "y": "y", "": ""} {
		if line, err := readLine(t.Context(), strings.NewReader(text)); line != want || err != nil {
			t.Errorf("%q: got %q, %v", text, line, err)
		}
	}
	silent.CloseWithError(errors.New("torn off"))
	if _, err := readLine(t.Context(), silent); err == nil || err.Error() != "io: read/write on closed pipe" {
		t.Errorf("torn off: %v", err)
	}
}

// If an operator interrupts a watch before it shows a migration, nothing is printed.
func TestWatchInterrupted(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts connections, no server does
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	c := &common{stdout: &stdout, stderr: &stderr, output: "text"}
	err = watch(ctx, c, &target{what: "console", address: mute.Addr().String(), timeout: time.Second}, "")
	if !errors.Is(err, context.Canceled) || stdout.Len()+stderr.Len() > 0 {
		t.Errorf("got %v, stdout %q, stderr %q", err, &stdout, &stderr)
	}
}

func TestLeavingRooms(t *testing.T) {
	from := &marchv1.Layout{Rooms: map[string]*marchv1.Range{"c": {Upper: 1}, "a": {Upper: 1}, "b": {Upper: 1}}}
	target := &marchv1.Layout{Rooms: map[string]*marchv1.Range{"b": {Upper: 1}, "d": {Upper: 1}}}
	if got := leavingRooms(from, target); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("got %v", got)
	}
}

func TestWaitUntilIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var said []string
		rooms := []string{"a"}
		use := func(context.Context, string) (*marchv1.RoomUse, error) {
			switch passed := time.Since(began); {
			case passed < 10*time.Second:
				return nil, allocator.Errorf(allocator.Unavailable, "no console")
			case passed < 20*time.Second:
				return &marchv1.RoomUse{Room: "a", Silent: []string{"a/one"}}, nil
			default: // the last call was then
				return &marchv1.RoomUse{Room: "a", Idle: durationpb.New(passed - 20*time.Second), Tags: 1,
					Latest: []*marchv1.TagUse{{Tag: "order"}}}, nil
			}
		}
		wait := func(ctx context.Context) error {
			return waitUntilIdle(ctx, rooms, time.Minute, use, func(line string) { said = append(said, line) })
		}
		if err := wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		if passed := time.Since(began); passed != 80*time.Second {
			t.Errorf("waited for %v", passed)
		}
		for _, want := range []string{"no console", "do not answer: a/one",
			"room a: called 5s ago, 0.0 IDs a second; tags of the last hour: 1, last order"} {
			if !slices.ContainsFunc(said, func(line string) bool { return strings.Contains(line, want) }) {
				t.Errorf("never said %q: %q", want, said)
			}
		}

		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		began = time.Now()
		if err := wait(ctx); allocator.KindOf(err) != allocator.Unavailable ||
			!strings.Contains(err.Error(), "callers were still there: room a: called ") {
			t.Errorf("at the end of its time: %v", err)
		}
		broken := errors.New("broken")
		use = func(context.Context, string) (*marchv1.RoomUse, error) { return nil, broken }
		if err := wait(t.Context()); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
		rooms = nil
		if err := wait(t.Context()); err != nil {
			t.Errorf("without rooms: %v", err)
		}
	})
}

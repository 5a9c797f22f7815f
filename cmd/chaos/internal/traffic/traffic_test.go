package traffic

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	"github.com/march-id/march/cmd/chaos/internal/runlog"
)

// A Kind comes from March, at a room or in its client. A code of gRPC's own has no Kind.
func TestKinds(t *testing.T) {
	over := func(err error) error { return api.FromStatus(api.ToStatus(err)) } // as over the network
	for _, test := range []struct {
		err  error
		want string
	}{
		{over(errors.New("a defect")), "internal"},
		{over(allocator.Errorf(allocator.WentBack, "halted")), "went_back"},
		{over(allocator.Errorf(allocator.Invalid, "count: 0")), "invalid"},
		{over(&allocator.AwayError{Tag: "t", Err: errors.New("no etcd")}), "unavailable"},
		{fmt.Errorf("at a room: %w", over(allocator.Errorf(allocator.NotFound, "tag"))), "not_found"},
		{api.FromStatus(status.Error(codes.Internal, "stream terminated by RST_STREAM")), "grpc Internal"},
		{api.FromStatus(status.Error(codes.Unavailable, "connection refused")), "grpc Unavailable"},
		{api.FromStatus(status.Error(codes.DeadlineExceeded, "late")), "grpc DeadlineExceeded"},
		{allocator.Errorf(allocator.Internal, "a segment without a boundary"), "internal"},
		{&allocator.AwayError{Tag: "t", Err: over(errors.New("a defect"))}, "unavailable"},
		{fmt.Errorf("waiting: %w", context.DeadlineExceeded), "deadline"},
		{errors.New("something"), "other"},
	} {
		if got := kindOf(test.err); got != test.want {
			t.Errorf("%v is %q, want %q", test.err, got, test.want)
		}
	}
}

// An answer must have the requested number of IDs, in any number of runs.
func TestShort(t *testing.T) {
	runs := []allocator.Run{{First: 5, Count: 3}, {First: 100, Count: 4}}
	if err := short("a/client t", 7, runs); err != nil {
		t.Error(err)
	}
	for _, want := range []int64{6, 8} {
		if err := short("a/client t", want, runs); err == nil {
			t.Errorf("7 IDs are as good as %d", want)
		}
	}
}

// Failed calls are counted, and logged by their kind.
func TestFailedIsWrittenDown(t *testing.T) { synctest.Test(t, failedIsWrittenDown) }

func failedIsWrittenDown(t *testing.T) {
	dir := t.TempDir()
	var err error
	l := &load{Config: Config{Dir: dir, Room: "a"}}
	l.counts.mu.of = make(map[string]Count)
	if l.failures, err = runlog.CreateFailures(dir, "load-a"); err != nil {
		t.Fatal(err)
	}
	who := Who("a", "a-0", "t")
	began := time.Now()
	for range 3 {
		l.failed(who, api.FromStatus(api.ToStatus(errors.New("a defect"))))
	}
	if err := l.failures.Flush(); err != nil {
		t.Fatal(err)
	}
	l.failed(who, api.FromStatus(api.ToStatus(errors.New("another"))))
	if err := l.failures.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := runlog.ReadFailed(dir)
	if err != nil || len(got) != 2 || got[0].Kind != "internal" || got[0].Count != 3 || got[0].Who != who ||
		got[0].Error != "a defect" ||
		got[0].From.Before(began) || got[0].To.Before(got[0].From) || got[1].Count != 1 || got[1].Error != "another" {
		t.Errorf("%s: %+v, %v", filepath.Join(dir, runlog.FailedDir), got, err)
	}
	if count := l.counts.mu.of[who]; count.Failed != 4 || count.Error != "another" {
		t.Errorf("counted %+v", count)
	}
}

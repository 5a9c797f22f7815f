package traffic

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
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

// An answer must have the requested number of IDs, in any number of runs, with their texts.
func TestWrongAnswers(t *testing.T) {
	runs := []allocator.Run{{First: 5, Count: 2}, {First: 100, Count: 1}}
	l := New(Config{Texts: map[allocator.Tag]*texts.Text{"text": texts.New("decimal(3)", "", nil)}})
	for _, test := range []struct {
		tag  allocator.Tag
		n    int64
		text string
		ok   bool
	}{
		{"plain", 3, "", true}, {"plain", 2, "", false}, {"plain", 4, "", false}, {"plain", 3, "005", false},
		{"text", 3, "005 006 100", true}, {"text", 3, "005 006", false}, {"text", 3, "005 007 100", false},
		{"text", 3, "005 006 100 101", false},
	} {
		if err := l.check(test.tag, test.n, runs, strings.Fields(test.text)); (err == nil) != test.ok {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// Failed calls are counted, and recorded with their kind.
func TestFailedIsWrittenDown(t *testing.T) {
	dir := t.TempDir()
	l := New(Config{Dir: dir, Room: "a"})
	file, err := l.file("1")
	if err != nil {
		t.Fatal(err)
	}
	asked := runlog.Answer{Sent: time.Unix(1_700_000_000, 0), Room: "a", Instance: "a-0", Tag: "t"}
	for _, text := range []string{"a defect", "another"} {
		if err := l.failed(file, asked, api.FromStatus(api.ToStatus(errors.New(text)))); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	read, err := runlog.Open[runlog.Answer](filepath.Join(dir, runlog.Dir, "caller-a-1.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close() }()
	got, err := read.Next()
	if err != nil || got.Failed != "internal" || got.Error != "a defect" || got.Who() != "a/a-0 t" ||
		got.Received.Before(got.Sent) {
		t.Errorf("%+v, %v", got, err)
	}
	if count := l.Counts()["a/a-0 t"]; count.Failed != 2 || count.Error != "another" {
		t.Errorf("counted %+v", count)
	}
}

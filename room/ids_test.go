package room_test

import (
	"context"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

func TestIssue(t *testing.T) {
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order", "zero")
	c.tag(func(s *record.TagSettings) { s.Start = 0 }, "from-zero")
	a, b := c.start("a", "a1", nil), c.start("b", "b1", nil)

	t.Run("next", func(t *testing.T) {
		for want := int64(1); want < 50; want++ { // the default first ID is 1
			if got := a.mustNext("order"); got != want {
				t.Fatalf("got %d, want %d", got, want)
			}
		}
		for want := int64(100); want < 110; want++ {
			if got := a.mustNext("order"); got != want {
				t.Fatalf("got %d, want %d", got, want)
			}
		}
		if got := b.mustNext("zero"); got != 50 {
			t.Errorf("room b: got %d, want 50", got)
		}
		if got := a.mustNext("from-zero"); got != 0 {
			t.Errorf("start 0: got %d, want 0", got)
		}
	})

	t.Run("batch", func(t *testing.T) {
		r, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: 100})
		if err != nil {
			t.Fatal(err)
		}
		want := []*marchv1.Run{{First: 110, Count: 40}, {First: 200, Count: 50}, {First: 300, Count: 10}}
		if diff := cmp.Diff(want, r.GetRuns(), protocmp.Transform()); diff != "" {
			t.Errorf("runs (-want +got): %s", diff)
		}
		for _, count := range []int64{1, 99_999, 100_000} {
			s := &issued{TB: t, room: "b", tag: "order"}
			r, err := b.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: count})
			if err != nil {
				t.Fatal(err)
			}
			var sum int64
			for _, run := range r.GetRuns() {
				sum += run.GetCount()
			}
			if s.add(r.GetRuns()...); sum != count {
				t.Errorf("a batch of %d has %d IDs", count, sum)
			}
		}
	})

	t.Run("lease", func(t *testing.T) {
		before := a.mustNext("order")
		r, err := a.Lease(bg, &marchv1.LeaseRequest{Tag: "order", Count: 77})
		if err != nil {
			t.Fatal(err)
		}
		p := r.GetSegment()
		seg := allocator.Segment{
			Version: p.GetVersion(), Boundary: p.GetBoundary(), First: p.GetFirst(), Count: p.GetCount(),
			Range: allocator.Range{Lower: p.GetRange().GetLower(), Upper: p.GetRange().GetUpper()},
		}
		if err := seg.Validate(); err != nil {
			t.Fatal(err)
		}
		if seg.Count < 1 || seg.Count > 77 || seg.First <= before || seg.Version != 1 ||
			seg.Boundary != 100 || seg.Range.Upper != 50 {
			t.Errorf("got %v after %d", seg, before)
		}
		if after := a.mustNext("order"); after <= seg.Last() {
			t.Errorf("next is %d after a lease up to %d", after, seg.Last())
		}
		r, err = a.Lease(bg, &marchv1.LeaseRequest{Tag: "order", Count: 1_000_000_000})
		if err != nil || r.GetSegment().GetCount() < 1 {
			t.Errorf("a lease of the most: %v, %v", r, err)
		}
	})

	t.Run("stream", func(t *testing.T) {
		stream, err := a.Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const n = 500
		go func() { // a pipeline: requests do not wait for answers
			for i := range n {
				_ = stream.Send(&marchv1.NextRequest{Tag: []string{"order", "from-zero"}[i%2]})
			}
			_ = stream.CloseSend()
		}()
		orders, zeros := &issued{TB: t, tag: "order"}, &issued{TB: t, tag: "from-zero"}
		for i := range n {
			r, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			[]*issued{orders, zeros}[i%2].addID(r.GetId())
		}
		if _, err := stream.Recv(); err != io.EOF {
			t.Errorf("the end: got %v, want EOF", err)
		}
	})

	t.Run("decode", func(t *testing.T) {
		l := &marchv1.Layout{Version: 1, Boundary: 100, Rooms: map[string]*marchv1.Range{"a": {Upper: 50},
			"b": {Lower: 50, Upper: 100}}}
		ofB := b.mustNext("order") // a was first, so b's begin above a's
		for id, want := range map[int64]*marchv1.DecodeResponse{
			149: {Version: 1, Block: 1, Residue: 49, Room: "a",
				Origin: &marchv1.Origin{Room: "a", Layout: l, Block: 1, Residue: 49}},
			ofB: {
				Version: 1, Block: ofB / 100, Residue: ofB % 100, Room: "b",
				Origin: &marchv1.Origin{Room: "b", Layout: l, Block: ofB / 100, Residue: ofB % 100},
			},
			0:   {Version: 1, Room: "a", Passed: true}, // never leased: the rooms went past it
			150: {Version: 1, Block: 1, Residue: 50, Room: "b", Passed: true},
			math.MaxInt64: {
				Version: 1, Block: math.MaxInt64 / 100, Residue: 7, Room: "a"},
		} {
			got, err := b.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Id: id})
			if err != nil {
				t.Fatal(err)
			}
			if o := got.GetOrigin(); o != nil && (o.GetSince() == nil || o.GetUntil() != nil) {
				t.Errorf("decode %d: its layout was current from %v until %v, want from some time until now",
					id, o.GetSince(), o.GetUntil())
			}
			if diff := cmp.Diff(want, got, protocmp.Transform(),
				protocmp.IgnoreFields(&marchv1.Origin{}, "since")); diff != "" {
				t.Errorf("decode %d (-want +got): %s", id, diff)
			}
		}
	})
}

func TestBadInput(t *testing.T) {
	c := newCluster(t, testcluster.Halves())
	c.tag(nil, "order")
	c.tag(func(s *record.TagSettings) { s.Limit = 20 }, "small")
	a := c.start("a", "a1", nil)

	calls := map[string]func(ctx context.Context, tag string) error{
		"next": func(ctx context.Context, tag string) error {
			_, err := a.Next(ctx, &marchv1.NextRequest{Tag: tag})
			return err
		},
		"batch": func(ctx context.Context, tag string) error {
			_, err := a.NextBatch(ctx, &marchv1.NextBatchRequest{Tag: tag, Count: 1})
			return err
		},
		"lease": func(ctx context.Context, tag string) error {
			_, err := a.Lease(ctx, &marchv1.LeaseRequest{Tag: tag, Count: 1})
			return err
		},
		"decode": func(ctx context.Context, tag string) error {
			_, err := a.Decode(ctx, &marchv1.DecodeRequest{Tag: tag, Id: 1})
			return err
		},
		"get chain": func(ctx context.Context, tag string) error {
			_, err := marchv1.NewRoomServiceClient(a.Conn).GetChain(ctx, &marchv1.GetChainRequest{Tag: tag})
			return err
		},
		"stream": func(ctx context.Context, tag string) error {
			stream, err := a.Stream(ctx)
			if err != nil {
				return err
			}
			_ = stream.Send(&marchv1.NextRequest{Tag: tag})
			_, err = stream.Recv()
			return err
		},
	}
	long := strings.Repeat("x", 64)
	for call, do := range calls {
		for tag, parts := range map[string][]string{
			"":                        {"tag", "empty"},
			long:                      {"tag", long[:16], "64 bytes"},
			strings.Repeat("x", 9000): {"9000 bytes"},
			"Order":                   {`"Order"`},
			"-order":                  {`"-order"`},
			"or/der":                  {`"or/der"`, `'/'`},
			"or der":                  {`"or der"`},
			"order\x00":               {`\x00`},
			"órder":                   {"órder"},
			"../layout":               {"../layout"},
		} {
			w := want{codes.InvalidArgument, "invalid", append(parts, "[a-z0-9][a-z0-9._-]{0,62}")}
			if problem := w.check(do(t.Context(), tag)); problem != "" {
				t.Errorf("%s of tag %.20q: %s", call, tag, problem)
			}
		}
		if call == "get chain" {
			continue
		}
		w := want{codes.NotFound, "not_found", []string{"unknown", "march tag create unknown"}}
		if problem := w.check(do(t.Context(), "unknown")); problem != "" {
			t.Errorf("%s of an unknown tag: %s", call, problem)
		}
	}

	for count, value := range map[int64]string{0: "0", -1: "-1", 100_001: "100001",
		math.MinInt64: "-9223372036854775808", math.MaxInt64: "9223372036854775807"} {
		_, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: count})
		if problem := (want{codes.InvalidArgument, "invalid", []string{"count", value, "1 to 100000"}}).check(
			err); problem != "" {
			t.Errorf("batch of %d: %s", count, problem)
		}
		if count == 100_001 {
			continue
		}
		_, err = a.Lease(bg, &marchv1.LeaseRequest{Tag: "order", Count: count})
		if problem := (want{codes.InvalidArgument, "invalid", []string{"count", value, "1 to 1000000000"}}).check(
			err); problem != "" {
			t.Errorf("lease of %d: %s", count, problem)
		}
	}
	for _, id := range []int64{-1, math.MinInt64} {
		_, err := a.Decode(bg, &marchv1.DecodeRequest{Tag: "order", Id: id})
		if problem := (want{codes.InvalidArgument, "invalid", []string{"id", "-", "0 to 9223372036854775807"}}).check(
			err); problem != "" {
			t.Errorf("decode of %d: %s", id, problem)
		}
	}
	for _, size := range []int32{-1, 1001} {
		_, err := marchv1.NewRoomServiceClient(a.Conn).ListChains(bg, &marchv1.ListChainsRequest{PageSize: size})
		if problem := (want{codes.InvalidArgument, "invalid", []string{"page_size", "1 to 1000"}}).check(
			err); problem != "" {
			t.Errorf("page size %d: %s", size, problem)
		}
	}

	t.Run("limit", func(t *testing.T) {
		for want := int64(1); want < 20; want++ {
			if got := a.mustNext("small"); got != want {
				t.Fatalf("got %d, want %d", got, want)
			}
		}
		_, err := a.next("small")
		if problem := (want{codes.ResourceExhausted, "exhausted", []string{"small", "20"}}).check(err); problem != "" {
			t.Error(problem)
		}
	})
	if got := a.mustNext("order"); got != 1 {
		t.Errorf("after all that: got %d, want 1", got)
	}
}

func TestUnknownTagCostsEtcdLittle(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		a := c.start("a", "a1", nil)
		before, start := a.store.txns.Load(), time.Now()
		const calls = 90 // below the limit of quick answers
		for range calls {
			if _, err := a.next("unknown"); err == nil {
				t.Fatal("an unknown tag issued an ID")
			}
		}
		// One read a second, and the server's own transactions, such as heartbeats.
		seconds := int64(time.Since(start)/time.Second) + 1
		if got := a.store.txns.Load() - before; got > 2*seconds+2 {
			t.Errorf("%d calls cost etcd %d transactions in %d s", calls, got, seconds)
		}
		c.tag(nil, "unknown")
		start = time.Now()
		a.await("the tag that was created issues", func() bool { _, err := a.next("unknown"); return err == nil })
		took(t, "to find out", start, 1500*time.Millisecond)
	})
}

func TestCreateTags(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		a := c.start("a", "a1", func(cfg *room.Config) { cfg.CreateTags = true })
		b := c.start("b", "b1", func(cfg *room.Config) { cfg.CreateTags = true })
		errs := make(chan error, 40)
		for k := range cap(errs) { // both rooms want it at once
			go func() { _, err := []*instance{a, b}[k%2].next("made"); errs <- err }()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Errorf("a tag to be made: %v", err)
			}
		}
		tag, err := c.Admin.Tag(bg, "made")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(record.DefaultTag(), tag.TagSettings); diff != "" {
			t.Errorf("settings (-want +got): %s", diff)
		}
		if _, err := a.next("Bad"); (want{codes.InvalidArgument, "invalid", nil}).check(err) != "" {
			t.Errorf("a bad name: %v", err)
		}
	})
}

// IDs in one run skip the rest of a block, and a metric counts what was skipped.
func TestContiguous(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		c.tag(timed(cosid), "event")
		a := c.start("a", "a1", nil)
		for _, first := range []int64{1, 100, 200} { // 1 to 49 are left of the first block
			r, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: "order", Count: 40, Contiguous: true})
			if err != nil || len(r.GetRuns()) != 1 || r.GetRuns()[0].GetFirst() != first ||
				r.GetRuns()[0].GetCount() != 40 {
				t.Errorf("40 in a row: %v, %v; want from %d", r, err, first)
			}
		}
		if got := a.metrics()[`march_contiguous_skipped_ids_total{room="a"}`]; got != "19" {
			t.Errorf("9 and 10 IDs were skipped, the metrics say %q", got)
		}
		b := c.start("b", "b1", func(cfg *room.Config) { cfg.Metrics = nil })
		if r, err := b.NextBatch(bg,
			&marchv1.NextBatchRequest{Tag: "order", Count: 40, Contiguous: true}); err != nil ||
			len(r.GetRuns()) != 1 {
			t.Errorf("without metrics: %v, %v", r, err)
		}
		for tag, want := range map[string]want{
			"order": {codes.InvalidArgument, "invalid", []string{"count: 51; allowed: 1 to 50"}},
			"event": {codes.FailedPrecondition, "refused", []string{"tag event has time-ordered IDs"}},
		} {
			_, err := a.NextBatch(bg, &marchv1.NextBatchRequest{Tag: tag, Count: 51, Contiguous: true})
			if problem := want.check(err); problem != "" {
				t.Errorf("%s: %s", tag, problem)
			}
		}
	})
}

// A request on a stream that names no tag is for the tag of the request before it.
// The first request must name a tag.
func TestStreamRemembersTheTag(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order", "other")
		a := c.start("a", "a1", nil)
		stream, err := a.Stream(bg)
		if err != nil {
			t.Fatal(err)
		}
		var ids []int64
		for _, tag := range []string{"order", "", "", "other", "", "order", ""} {
			if err := stream.Send(&marchv1.NextRequest{Tag: tag}); err != nil {
				t.Fatal(err)
			}
			answer, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, answer.GetId())
		}
		if want := []int64{1, 2, 3, 1, 2, 4, 5}; !slices.Equal(ids, want) {
			t.Errorf("got %v, want %v", ids, want)
		}
		nameless, err := a.Stream(bg)
		if err != nil {
			t.Fatal(err)
		}
		if err := nameless.Send(&marchv1.NextRequest{}); err != nil {
			t.Fatal(err)
		}
		_, err = nameless.Recv()
		if code, info := reason(err); code != codes.InvalidArgument || info.GetReason() != "invalid" {
			t.Errorf("no tag at all: %v", err)
		}
	})
}

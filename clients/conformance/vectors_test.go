// Package conformance holds the clients of other languages to the Go code: with one set of vectors, which their unit
// tests read, and in a run of all clients against rooms that fail (make test LIVE=1).
package conformance

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/timeid"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
)

var rewrite = flag.Bool("rewrite", false, "write the vectors of testdata/clients anew")

// vector is one case. Numbers of 64 bits are strings, as in the answers of rooms.
type vector map[string]any

// TestVectors: testdata/clients has what the Go code computes.
func TestVectors(t *testing.T) {
	t.Parallel()
	for name, vectors := range map[string][]vector{
		"segments": segments(t), "layouts": layouts(t), "windows": windows(t), "runs": runs(t), "ttl": ttls(),
		"errors": failures(), "together": togethers(),
	} {
		var want bytes.Buffer
		want.WriteString("[\n")
		for i, v := range vectors {
			line, err := json.Marshal(v) // in the order of the names
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				want.WriteString(",\n")
			}
			want.Write(line)
		}
		want.WriteString("\n]\n")
		file := filepath.Join("..", "..", "testdata", "clients", name+".json")
		if *rewrite {
			if err := os.WriteFile(file, want.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s is not what the Go code computes (%v): run this test with -rewrite", file, err)
		}
	}
}

// message returns a message as rooms answer with it.
func message(t *testing.T, m proto.Message) json.RawMessage {
	t.Helper()
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// segment returns the first n IDs of a room from base on.
func segment(t *testing.T, version, boundary, lower, upper, base, n int64) allocator.Segment {
	t.Helper()
	l := allocator.Layout{Version: version, Boundary: boundary,
		Ranges: map[allocator.Room]allocator.Range{"a": {Lower: lower, Upper: upper}}}
	s, err := l.Segment("a", base, n, allocator.MaxID)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// segments are segments with some of their IDs, their first runs, and how many IDs lie below limits.
func segments(t *testing.T) (all []vector) {
	t.Helper()
	for _, s := range []allocator.Segment{
		segment(t, 1, 1000, 0, 500, 1, 1000),
		segment(t, 7, 1000, 250, 251, 0, 1000), // each ID in a block of its own
		segment(t, 2, 1000, 999, 1000, 1<<53, 10),
		segment(t, 3, 100, 50, 100, 12_345_678, 100_000),
		segment(t, 1, 1, 0, 1, 5, 1_000_000_000), // one room with all IDs
		segment(t, 1, 1009, 333, 1009, 1, 1),
		segment(t, 4, 1<<40, 1<<39, 1<<40, 1<<39+5, 1_000_000),
		segment(t, 9, 64, 0, 63, allocator.MaxID-200, 50), // the end of all IDs
		segment(t, 1, allocator.MaxID, 10, 20, 10, 10),    // one block
	} {
		ids, parts, below := []string{}, [][2]string{}, [][2]string{}
		for _, k := range []int64{0, 1, 2, s.Count / 3, s.Count / 2, s.Count - 2, s.Count - 1} {
			k = min(max(k, 0), s.Count-1)
			ids = append(ids, number(k), number(s.At(k)))
		}
		for run := range s.Runs() {
			if parts = append(parts, [2]string{number(run.First), number(run.Count)}); len(parts) == 3 {
				break
			}
		}
		for _, limit := range []int64{1, s.First, s.First + 1, s.At(s.Count / 2), s.At(s.Count/2) + 1, s.Last(),
			s.Last() + 1, allocator.MaxID} {
			n := sort.Search(int(s.Count), func(k int) bool { return s.At(int64(k)) >= limit })
			below = append(below, [2]string{number(limit), strconv.Itoa(n)})
		}
		all = append(all, vector{"segment": message(t, api.SegmentToProto(s)), "at": ids, "runs": parts,
			"below": below})
	}
	return all
}

// layouts are parts of a new layout, and whether a segment of an older one ends with them.
func layouts(t *testing.T) (all []vector) {
	t.Helper()
	s := segment(t, 5, 1000, 100, 200, 100, 50)
	for _, p := range []allocator.Part{
		s.Part(),
		{Version: 6, Boundary: 1000, Range: allocator.Range{Lower: 100, Upper: 200}},
		{Version: 6, Boundary: 1000, Range: allocator.Range{Lower: 0, Upper: 500}},
		{Version: 6, Boundary: 1000, Range: allocator.Range{Lower: 101, Upper: 200}},
		{Version: 6, Boundary: 1000, Range: allocator.Range{Lower: 100, Upper: 199}},
		{Version: 6, Boundary: 1000, Range: allocator.Range{Lower: 500, Upper: 600}},
		{Version: 6, Boundary: 2000, Range: allocator.Range{Lower: 100, Upper: 200}},
		{Version: 6, Boundary: 1000}, // the room has no range
		{Version: 4, Boundary: 1000, Range: allocator.Range{Lower: 500, Upper: 600}},
		{},
	} {
		all = append(all, vector{"segment": message(t, api.SegmentToProto(s)), "serves": message(t, api.PartToProto(p)),
			"outdated": p.Outdates(s)})
	}
	return all
}

// windows are windows of workers, and what is taken of them, one after the other: as many IDs as asked for or as the
// tick has left, none where it is full, and null where a room must issue them.
func windows(t *testing.T) (all []vector) {
	t.Helper()
	const epoch = 1_577_836_800_000
	for _, tag := range []timeid.Config{
		{Layout: timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 12, Unit: time.Millisecond, Epoch: epoch},
			Worker: 513},
		{Layout: timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 2, Unit: time.Millisecond, Epoch: epoch,
			Order: timeid.WorkerLast}, Worker: 1023},
		{Layout: timeid.Layout{TimeBits: 39, WorkerBits: 16, SequenceBits: 8, Unit: 10 * time.Millisecond,
			Epoch: epoch}, Worker: 7, Sequence: timeid.Carry},
		{Layout: timeid.Layout{TimeBits: 31, WorkerBits: 10, SequenceBits: 3, Unit: time.Second, Epoch: epoch},
			Worker: 0, Sequence: timeid.Carry, CarryTo: 5},
		{Layout: timeid.Layout{TimeBits: 41, WorkerBits: 10, SequenceBits: 4, Unit: time.Millisecond, Epoch: epoch},
			Worker: 3, Sequence: timeid.Random, RandomBelow: 1}, // of one number to begin with
		{Layout: timeid.Wide, Worker: 5}, // IDs of 80 bits exist only as texts
	} {
		unit := tag.Layout.Unit.Milliseconds()
		epoch := tag.Layout.Epoch
		now := int64(0)
		tag.Clock = func() int64 { return now }
		tag.Window = timeid.Window{From: epoch + 10*unit, Until: epoch + 100*unit + unit/2}
		g, err := timeid.New(tag)
		if err != nil {
			t.Fatal(err)
		}
		var takes []vector
		full := int64(-1) // the tick that is
		for _, step := range []struct{ tick, n int64 }{{5, 1}, {10, 1}, {10, 3}, {10, 1}, {11, 100}, {11, 1}, {12, 2},
			{12, 1}, {50, 1}, {20, 1}, {51, 1}, {99, 2}, {100, 1}, {101, 1}} {
			now = epoch + step.tick*unit + unit/3
			take := vector{"nowMs": number(now), "n": number(step.n), "run": nil}
			var run allocator.Run
			for range step.n {
				id, ok := g.TryNext()
				if !ok || tag.Layout == timeid.Wide {
					break
				}
				if run.Count++; run.Count == 1 {
					run.First = id
				}
				if g.Parts(id).Sequence == tag.Layout.PerTick()-1 {
					full = step.tick
				}
			}
			if run.Count > 0 {
				take["run"] = []string{number(run.First), number(run.Count), number(tag.Layout.Stride())}
			} else if full == step.tick {
				take["run"] = []string{}
			}
			takes = append(takes, take)
		}
		window := &marchv1.WorkerWindow{Worker: tag.Worker, FromMs: tag.Window.From, UntilMs: tag.Window.Until}
		all = append(all, vector{"tag": message(t, api.TimeTagToProto(tag)), "takes": takes,
			"window": message(t, window)})
	}
	return all
}

// runs are runs of answers, with their IDs.
func runs(t *testing.T) (all []vector) {
	t.Helper()
	stride := int64(1024)
	for _, run := range []*marchv1.Run{{First: 5, Count: 4}, {First: 1 << 62, Count: 3, Stride: &stride}} {
		ids := []string{}
		for k := range run.GetCount() {
			ids = append(ids, number(run.GetFirst()+k*max(run.GetStride(), 1)))
		}
		all = append(all, vector{"run": message(t, run), "ids": ids})
	}
	return all
}

// ttls are times since a request for a segment was sent, and whether the segment may be used, and must be replaced.
// A third of its time before its end the client asks for another one. Without a ttl a segment has no end.
func ttls() (all []vector) {
	for _, c := range []struct {
		ttl   string
		times []int64
	}{{"600s", []int64{0, 1000, 399_999, 400_001, 599_999, 600_000, 700_000}},
		{"0.300s", []int64{0, 199, 201, 299, 300}}, {"0s", []int64{0, 1_000_000_000}}} {
		d, _ := time.ParseDuration(c.ttl)
		for _, at := range c.times {
			all = append(all, vector{"ttl": c.ttl, "afterMs": number(at), "ended": d > 0 && at >= d.Milliseconds(),
				"replace": d > 0 && at >= d.Milliseconds()*2/3})
		}
	}
	return all
}

// togethers are the kinds of the errors of several instances that a call asked, and of the call's own error.
func togethers() (all []vector) {
	for _, kinds := range [][]allocator.Kind{
		{allocator.NoRange}, {allocator.WentBack}, {allocator.NoRange, allocator.WentBack},
		{allocator.WentBack, allocator.TooMany, allocator.NoRange}, {allocator.TooMany, allocator.Unavailable},
		{allocator.NoRange, allocator.NoRange},
	} {
		names, failures := []string{}, []error{}
		for _, kind := range kinds {
			names, failures = append(names, kind.Error()), append(failures, allocator.Errorf(kind, "a room"))
		}
		all = append(all, vector{"failures": names, "kind": api.Foremost(failures).Error()})
	}
	return all
}

// failures are answers of rooms and of proxies that are no success: of which kind the error is, whether another
// instance may succeed, and when to try again.
func failures() (all []vector) {
	add := func(status int, body, after, kind string, elsewhere bool, limit int64) {
		seconds, _ := strconv.ParseInt(after, 10, 64)
		all = append(all, vector{"status": status, "body": body, "retryAfter": after, "kind": kind,
			"elsewhere": elsewhere, "againSeconds": max(seconds, 1), "limit": number(limit)})
	}
	answer := func(err error) (int, string, string) {
		w := httptest.NewRecorder()
		serve.WriteError(w, err)
		var line bytes.Buffer
		_ = json.Compact(&line, w.Body.Bytes())
		return w.Code, line.String(), w.Header().Get("Retry-After")
	}
	for kind := range allocator.Kinds {
		if kind == allocator.Exists || kind == allocator.Conflict { // of no call of a client
			continue
		}
		err := allocator.Errorf(kind, "tag order: what happened")
		status, body, after := answer(err)
		add(status, body, after, kind.Error(), api.Elsewhere(err), 0)
	}
	status, body, after := answer(&allocator.LimitError{Limit: 5000, Err: allocator.Errorf(allocator.Exhausted, "all")})
	add(status, body, after, "exhausted", false, 5000)
	status, body, after = answer(&allocator.WaitError{After: 7 * time.Second,
		Err: allocator.Errorf(allocator.TooMany, "x")})
	add(status, body, after, "too_many", true, 0)
	status, body, after = answer(&timeid.NoWindowError{Err: allocator.Errorf(allocator.Refused, "no worker is free")})
	add(status, body, after, "refused", true, 0) // a room still issues each ID
	for _, status := range []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		add(status, "<html>a proxy's page</html>", "", "unavailable", true, 0)
	}
	add(http.StatusTooManyRequests, "", "3", "too_many", true, 0)
	add(http.StatusNotFound, `{"code":"NOT_FOUND","message":"no such path"}`, "", "internal", false, 0)
	add(http.StatusInternalServerError, "[]", "", "internal", false, 0)
	add(http.StatusConflict, `{"code":"ABORTED","reason":"of a later release","message":"?"}`, "", "internal", false, 0)
	// Of a reason that a client does not know the status says whether another try may succeed.
	for _, c := range []struct {
		status     int
		body, kind string
		elsewhere  bool
	}{
		{http.StatusRequestTimeout, `{"reason":"of a gateway"}`, "unavailable", true},
		{http.StatusTooManyRequests, `{"reason":"of a gateway"}`, "too_many", true},
		{499, `{"reason":"of a gateway"}`, "unavailable", true},
		{http.StatusBadGateway, `{"reason":"of a gateway"}`, "unavailable", true},
		{http.StatusServiceUnavailable, `{"reason":"closed"}`, "unavailable", true},
		{http.StatusGatewayTimeout, `{"reason":["of","a","gateway"],"metadata":[]}`, "unavailable", true},
		{http.StatusBadRequest, `{"reason":"of a later release"}`, "internal", false},
		{http.StatusForbidden, `{"reason":5,"message":{},"metadata":"none"}`, "internal", false},
		{http.StatusTooManyRequests, `{"reason":"exhausted","metadata":[{"limit":"1"}]}`, "exhausted", false},
		{http.StatusTooManyRequests, `{"reason":"exhausted","metadata":{"limit":["x"]}}`, "exhausted", false},
		{http.StatusTooManyRequests, `{"reason":"exhausted","metadata":{"limit":"many"}}`, "exhausted", false},
	} {
		add(c.status, c.body, "", c.kind, c.elsewhere, 0)
	}
	return all
}

package conformance

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// What may happen to a request: faults that a front makes on demand, an instance that is gone, and a token that counts
// for nothing.
const (
	hang    = "hang"     // no answer comes
	breaks  = "break"    // the connection ends before the room is asked,
	lost    = "lost"     // or after it has leased: the IDs are a gap
	proxy   = "proxy"    // a page of a proxy that has no room
	killed  = "killed"   // the instance behind the front is gone
	refused = "no token" // the room refuses the token
)

// caller is a client with ways of its own to the rooms, so that what happens to its requests is counted.
type caller struct {
	name   string
	fronts []*front // of the instances a1, a2, and b1
	mu     struct {
		sync.Mutex
		faults []fault        // of the next requests, of each one at most
		met    map[string]int // how often what may happen did
		asked  int            // requests for leases of the tag order, over HTTP
		leases []lease        // that were answered
		ends   time.Time      // of the last window that was lent
		runs   []issued
	}
}

// fault is what happens to a request that comes to at, or to any front if that is nil.
type fault struct {
	what string
	at   *front
}

// lease is a segment that a room leased, when the request came, and when it ended at the latest.
type lease struct {
	allocator.Segment
	room        allocator.Room
	asked, ends time.Time
}

// issued are IDs of a call, and when it began, by the caller's clock.
type issued struct {
	tag   string
	run   allocator.Run
	began time.Time
}

func newCaller(name string) *caller {
	c := &caller{name: name}
	c.mu.met = make(map[string]int)
	return c
}

// front is a proxy before the HTTP or the gRPC side of an instance.
type front struct {
	*httptest.Server
	caller *caller
	room   allocator.Room
}

// connection is the key of a request's connection in its context.
type connection struct{}

// front starts a proxy before an address. One with TLS speaks HTTP/2, too; with that, before gRPC.
func (c *caller) front(t *testing.T, room allocator.Room, behind string, tls, grpc bool) *front {
	t.Helper()
	f := &front{caller: c, room: room}
	way := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: behind})
	if grpc {
		var h2c http.Protocols
		h2c.SetUnencryptedHTTP2(true)
		way.Transport = &http.Transport{Protocols: &h2c}
	}
	way.ModifyResponse = f.answered
	way.ErrorHandler = func(_ http.ResponseWriter, r *http.Request, err error) {
		if r.Context().Err() == nil {
			c.meet(killed)
		}
		cut(r)
	}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch fault := c.next(f, strings.HasSuffix(r.URL.Path, "/order/lease")); fault {
		case hang:
			_, _ = io.Copy(io.Discard, r.Body) // so that the end of the connection is noticed
			<-r.Context().Done()
		case breaks:
			cut(r)
		case proxy:
			http.Error(w, "<html>503</html>", http.StatusServiceUnavailable)
		default:
			request := passing{lost: fault == lost, came: time.Now()}
			way.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), passing{}, request)))
		}
	}))
	f.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connection{}, conn)
	}
	if f.EnableHTTP2 = tls; tls {
		f.StartTLS()
	} else {
		f.Start()
	}
	t.Cleanup(f.end)
	c.fronts = append(c.fronts, f)
	return f
}

// passing is what is known of a request that passes to the room. In its context the zero value is its key.
type passing struct {
	lost bool // its answer will be
	came time.Time
}

// end ends the front: connections are refused from now on.
func (f *front) end() {
	f.CloseClientConnections()
	f.Close()
}

// cut ends the connection of a request, with all others that it has.
func cut(r *http.Request) {
	if conn, ok := r.Context().Value(connection{}).(net.Conn); ok {
		_ = conn.Close()
	}
	panic(http.ErrAbortHandler)
}

// next returns what is to happen to a request.
func (c *caller) next(at *front, leases bool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if leases {
		c.mu.asked++
	}
	for k, fault := range c.mu.faults {
		if fault.at == nil || fault.at == at {
			c.mu.faults = append(c.mu.faults[:k:k], c.mu.faults[k+1:]...)
			c.mu.met[fault.what]++
			return fault.what
		}
	}
	return ""
}

// fail has something happen to the next n requests that come to at, or to any front if that is nil.
func (c *caller) fail(n int, what string, at *front) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		c.mu.faults = append(c.mu.faults, fault{what, at})
	}
}

// meet notes that something happened to a request.
func (c *caller) meet(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.met[what]++
}

// times returns how often something happened to the caller's requests, and how many faults are still to come.
func (c *caller) times(what string) (met, left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.met[what], len(c.mu.faults)
}

// leased returns how many segments of a layout, or of a later one, were leased.
func (c *caller) leased(version int64) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.mu.leases {
		if l.Version >= version {
			n++
		}
	}
	return n
}

// lasts returns when the last window ends that was lent.
func (c *caller) lasts() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.ends
}

// add notes a run of a call that began at a time.
func (c *caller) add(tag string, run allocator.Run, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.runs = append(c.mu.runs, issued{tag, run, began})
}

// answered notes what an answer leases. It loses the answer if it should.
func (f *front) answered(r *http.Response) error {
	request, _ := r.Request.Context().Value(passing{}).(passing)
	if request.lost {
		_ = r.Body.Close()
		cut(r.Request)
	}
	const unauthenticated = "16" // the status of gRPC
	if r.StatusCode == http.StatusUnauthorized || r.Header.Get("Grpc-Status") == unauthenticated {
		f.caller.meet(refused)
	}
	if r.StatusCode != http.StatusOK || !strings.HasSuffix(strings.ToLower(r.Request.URL.Path), "/lease") {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var answer marchv1.LeaseResponse
	switch {
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/json"):
		err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, &answer)
	case len(body) < 5: // an error, in the trailer
		return nil
	case binary.BigEndian.Uint32(body[1:5]) != uint32(len(body)-5):
		err = fmt.Errorf("an answer of %d bytes: %x", len(body), body[:5])
	default:
		err = proto.Unmarshal(body[5:], &answer)
	}
	if err != nil {
		return err
	}
	c := f.caller
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := answer.GetTime().GetWindow(); w != nil {
		c.mu.ends = time.UnixMilli(w.GetUntilMs())
	}
	if answer.GetSegment() == nil {
		return nil
	}
	segment, err := api.SegmentFromProto(answer.GetSegment())
	c.mu.leases = append(c.mu.leases, lease{segment, f.room, request.came,
		time.Now().Add(answer.GetTtl().AsDuration())})
	return err
}

// find returns the lease that an ID is of; nil if there is none.
func (c *caller) find(id int64) *lease {
	for k := range c.mu.leases {
		l := &c.mu.leases[k]
		if r := id % l.Boundary; id >= l.First && id <= l.Last() && r >= l.Range.Lower && r < l.Range.Upper {
			return l
		}
	}
	return nil
}

// check checks all that was leased and issued against the layouts by their versions, and returns how many IDs it was:
// each ID is of a segment that was leased, and no call returned one that began after the segment's end, or after the
// caller had replaced the segments of the first layout: it had when it asked for the next after one of the second.
func (c *caller) check(t *testing.T, layouts map[int64]allocator.Layout) (count int64) {
	t.Helper()
	var moved time.Time
	for k, l := range c.mu.leases {
		if k > 0 && c.mu.leases[k-1].Version == 2 && moved.IsZero() {
			moved = l.asked
		}
		if of := layouts[l.Version]; l.Boundary != of.Boundary || l.Range != of.Ranges[l.room] {
			t.Errorf("%s: room %s leased %v, which is not of its range", c.name, l.room, l)
		}
	}
	for _, i := range c.mu.runs {
		count += i.run.Count
		for run := i.run; i.tag == "order" && run.Count > 0; {
			l := c.find(run.First)
			if l == nil {
				t.Errorf("%s: %d is of no segment that it leased", c.name, run.First)
				break
			}
			_, kept := layouts[2].RoomOf(run.First)
			if !i.began.Before(l.ends) || !kept && !moved.IsZero() && i.began.After(moved) {
				t.Errorf("%s: %d, of a call at %v, is of %v, which ended at %v; moved at %v", c.name, run.First,
					i.began, l, l.ends, moved)
			}
			n := min(run.Count, l.Last()-run.First+1, l.Range.Upper-run.First%l.Boundary) // a run may be of two leases
			run.First, run.Count = run.First+n, run.Count-n
		}
	}
	if moved.IsZero() || count < 1000 {
		t.Errorf("%s: %d IDs; it replaced its segments at %v", c.name, count, moved)
	}
	return count
}

// unique checks that no ID of a tag was issued twice.
func unique(t *testing.T, callers []*caller) {
	t.Helper()
	type run struct {
		allocator.Run
		by string
	}
	all := make(map[string][]run)
	for _, c := range callers {
		for _, i := range c.mu.runs {
			if i.run.Stride > 1 && i.run.Count > 1 {
				t.Fatalf("%s: the IDs of %v are not consecutive", c.name, i.run)
			}
			all[i.tag] = append(all[i.tag], run{i.run, c.name})
		}
	}
	for tag, runs := range all {
		slices.SortFunc(runs, func(a, b run) int { return cmp.Compare(a.First, b.First) })
		for k, r := range runs[1:] {
			if before := runs[k]; before.First+before.Count > r.First {
				t.Errorf("ID %d of %s twice: by %s and %s", r.First, tag, before.by, r.by)
			}
		}
	}
}

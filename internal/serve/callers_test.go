package serve_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/testcluster"
)

// A caller is forgotten, even if two of its connections were closed for their resets. Before,
// one entry for each such caller stayed for good.
func TestBarredCallersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		remembered := serve.BarTwice(netip.MustParseAddr("192.0.2.1"))
		if n := remembered(); n != 1 {
			t.Errorf("%d callers are remembered while one is barred", n)
		}
		time.Sleep(time.Minute)
		if n := remembered(); n != 0 {
			t.Errorf("%d callers are remembered afterwards", n)
		}
	})
}

// limited starts a server with limits and metrics.
func limited(t *testing.T, change func(*serve.Limits)) *running {
	t.Helper()
	return startWith(t, func(cfg *serve.Config) {
		cfg.Limits = serve.DefaultLimits()
		change(&cfg.Limits)
		cfg.Metrics = serve.NewMetrics("test", nil)
	})
}

// other is the address of another caller on this machine.
const other = "127.0.0.2"

// dialFrom dials the server's gRPC side from an address of this machine.
func (r *running) dialFrom(t *testing.T, ip string) net.Conn {
	t.Helper()
	conn := must(testcluster.DialFrom(bg, ip, r.grpc))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// dial returns a client at an address.
func (r *running) dial(t *testing.T, ip string) marchv1.IDServiceClient {
	t.Helper()
	return marchv1.NewIDServiceClient(testcluster.Dial(t, "passthrough:///"+r.grpc,
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return testcluster.DialFrom(ctx, ip, address)
		})))
}

// callFrom makes a call on a connection of its own, from an address.
func (r *running) callFrom(t *testing.T, ip, tag string) error {
	t.Helper()
	_, err := r.dial(t, ip).Next(bg, &marchv1.NextRequest{Tag: tag})
	return err
}

// metric returns the value of a series, empty where there is none.
func (r *running) metric(t *testing.T, series string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + r.http + "/metrics")
	if err != nil {
		return "" // there are too many connections
	}
	defer answer.Body.Close()
	body := must(io.ReadAll(answer.Body))(t)
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// raw returns a connection from an address whose frames a test writes by hand.
func (r *running) raw(t *testing.T, ip, method string) *testcluster.Frames {
	t.Helper()
	c := must(testcluster.NewFrames(r.dialFrom(t, ip), method))(t)
	return c
}

// Before, a connection had no bound on its streams, and cost the server 842 MB: 60,000 silent
// streams, two goroutines each.
func TestSilentStreams(t *testing.T) {
	const most, streams = 100, 60_000
	r := limited(t, func(l *serve.Limits) { l.ConnectionStreams = most })
	before := runtime.NumGoroutine()
	c := r.raw(t, other, marchv1.IDService_Next_FullMethodName)
	told, refused := false, make(chan int, 1)
	go func() {
		n := 0
		for n < streams-most {
			frame, err := c.ReadFrame()
			if err != nil {
				break
			}
			switch f := frame.(type) {
			case *http2.SettingsFrame:
				if value, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
					told = value == most
				}
			case *http2.RSTStreamFrame:
				if f.ErrCode == http2.ErrCodeRefusedStream {
					n++
				}
			}
		}
		refused <- n
	}()
	for range streams {
		c.Open()
		if c.Out.Len() > 30_000 {
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if n := <-refused; n != streams-most || !told {
		t.Errorf("%d streams of %d were refused beyond the limit of %d, of which the client was told: %v",
			n, streams, most, told)
	}
	if n := runtime.NumGoroutine() - before; n > most+50 {
		t.Errorf("%d goroutines", n)
	}
	if got := r.metric(t, "march_streams"); got != "100" {
		t.Errorf("march_streams: %q", got)
	}
	if err := r.next("fast"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	_ = c.Conn.Close()
	eventually(t, "no stream is open", func() bool { return r.metric(t, "march_streams") == "0" })
}

// What a stream sends waits in the server until the call reads it: no more than its window, 64 KiB. The window of a
// connection is 1 MiB. gRPC itself would let both grow to 16 MiB.
func TestWindows(t *testing.T) {
	const window, frame = 64 << 10, 16 << 10
	r := startWith(t, func(cfg *serve.Config) {
		cfg.Register = func(s grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(s, unread{}) }
	})
	c := r.raw(t, other, marchv1.IDService_Stream_FullMethodName)
	stream := c.Open()
	for range window / frame {
		_ = c.WriteData(stream, false, make([]byte, frame))
	}
	_ = c.WriteData(stream, false, []byte{0})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	var ofStream, ofConnection uint32
	for reset := http2.ErrCodeNo; reset == http2.ErrCodeNo; {
		frame := must(c.ReadFrame())(t)
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if value, ok := f.Value(http2.SettingInitialWindowSize); ok {
				ofStream = value
			}
		case *http2.WindowUpdateFrame:
			if ofConnection == 0 && f.StreamID == 0 {
				ofConnection = 1<<16 - 1 + f.Increment
			}
		case *http2.RSTStreamFrame:
			if reset = f.ErrCode; reset != http2.ErrCodeFlowControl || f.StreamID != stream {
				t.Errorf("a byte beyond the window: %v", f)
			}
		}
	}
	if ofStream != window || ofConnection != 1<<20 {
		t.Errorf("the client was told of windows of %d and %d", ofStream, ofConnection)
	}
}

// unread is a service that reads no request of a stream.
type unread struct {
	marchv1.UnimplementedIDServiceServer
}

func (unread) Stream(stream marchv1.IDService_StreamServer) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

// Before, a caller could have any number of streams, over many connections.
func TestCallerStreams(t *testing.T) {
	r := limited(t, func(l *serve.Limits) { l.CallerStreams = 2 })
	answers := make(chan error, 2)
	for range 2 {
		go func() { answers <- r.next("slow") }()
		<-r.begun
	}
	err := r.callFrom(t, "127.0.0.1", "fast")
	if status.Code(err) != codes.ResourceExhausted || !errors.Is(api.FromStatus(err), allocator.TooMany) ||
		api.RetryAfter(err) != time.Second || !strings.Contains(err.Error(), "allowed: 2 (--max-caller-streams)") {
		t.Errorf("the third: %v", err)
	}
	if err := r.callFrom(t, other, "fast"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	if got := r.metric(t, `march_limit_refused_total{limit="caller-streams"}`); got != "1" {
		t.Errorf("refused: %q", got)
	}
	close(r.released)
	for range 2 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	eventually(t, "a call is taken", func() bool { return r.next("fast") == nil })
}

// Before, a caller could have any number of connections.
func TestConnections(t *testing.T) {
	for name, change := range map[string]func(*serve.Limits){
		"caller-connections": func(l *serve.Limits) { l.CallerConnections = 2 },
		"connections":        func(l *serve.Limits) { l.Connections = 2 },
	} {
		r := limited(t, change)
		open := func(ip string) (conn net.Conn, taken bool) {
			conn = r.dialFrom(t, ip)
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			_, err := conn.Read(make([]byte, 1)) // gRPC sends its settings first
			return conn, err == nil
		}
		first, taken := open(other)
		if _, second := open(other); !taken || !second {
			t.Errorf("%s: a connection below the limit is refused", name)
		}
		if _, third := open(other); third {
			t.Errorf("%s: a third connection is taken", name)
		}
		if _, taken := open("127.0.0.3"); taken != (name == "caller-connections") {
			t.Errorf("%s: a connection of another caller is taken: %v", name, taken)
		}
		_ = first.Close()
		eventually(t, "the caller may have another connection", func() bool {
			conn, taken := open(other)
			_ = conn.Close()
			return taken
		})
		eventually(t, "refusals are counted", func() bool {
			refused, err := strconv.Atoi(r.metric(t, `march_limit_refused_total{limit="`+name+`"}`))
			return err == nil && refused >= 1
		})
	}
}

// Before, streams that a client resets at once raised a good caller's p99 from 5 ms to 1.7 s:
// they cost the server much and the client nothing. TestBarHitsNewConnectionsOnly has what follows for the address.
func TestCallsGivenUp(t *testing.T) {
	const most = 50
	r := limited(t, func(l *serve.Limits) { l.Resets = most })
	if err := r.callFrom(t, other, "fast"); err != nil {
		t.Fatal(err)
	}
	c := r.raw(t, other, marchv1.IDService_Next_FullMethodName)
	giveUp := func(calls int) {
		for range calls {
			_ = c.WriteRSTStream(c.Open(), http2.ErrCodeCancel)
		}
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	giveUp(most)
	eventually(t, "the calls have ended", func() bool { return r.metric(t, "march_streams") == "0" })
	if got := r.metric(t, `march_limit_refused_total{limit="resets"}`); got != "0" {
		t.Errorf("after %d calls %s connections were closed", most, got)
	}
	giveUp(2) // the address has asked one call, and may give up one more for it
	for err := error(nil); err == nil; {
		_, err = c.ReadFrame()
	}
	if err := r.next("fast"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	eventually(t, "the address may call again", func() bool { return r.callFrom(t, other, "fast") == nil })
}

// A client may give up any number of calls that the server answered or is about to answer. Before, a client that
// ended 50 answered streams a second by a cancel had each new connection of its address closed.
func TestCallsCancelledAreNotGivenUp(t *testing.T) {
	r := limited(t, func(l *serve.Limits) { l.Resets = 20 })
	for range 100 {
		ctx, cancel := context.WithCancel(bg)
		stream, err := r.client.Stream(ctx)
		if err == nil {
			_ = stream.Send(&marchv1.NextRequest{Tag: "fast"}) // Recv says why a stream was refused
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	for range 60 {
		ctx, cancel := context.WithCancel(bg)
		ended := make(chan error, 1)
		go func() {
			_, err := r.client.Next(ctx, &marchv1.NextRequest{Tag: "slow"})
			ended <- err
		}()
		<-r.begun
		cancel()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Fatalf("a call that the client cancelled: %v", err)
		}
	}
	if err := r.next("fast"); err != nil {
		t.Error(err)
	}
	if got := r.metric(t, `march_limit_refused_total{limit="resets"}`); got != "0" {
		t.Errorf("refused: %q", got)
	}
}

// A caller has a bound on its streams, over all its connections. Another caller, and the calls of the same one,
// are served.
func TestOpenStreams(t *testing.T) {
	r := limited(t, func(l *serve.Limits) { l.OpenStreams = 2 })
	answered := func(client marchv1.IDServiceClient) (end func(), err error) {
		ctx, cancel := context.WithCancel(bg)
		stream, err := client.Stream(ctx)
		if err == nil {
			_ = stream.Send(&marchv1.NextRequest{Tag: "fast"}) // Recv says why a stream was refused
			_, err = stream.Recv()
		}
		return cancel, err
	}
	one, two := r.dial(t, other), r.dial(t, other)
	end, err := answered(one)
	if err != nil {
		t.Fatal(err)
	}
	must(answered(two))(t)
	if _, err := answered(two); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "too many open streams of one caller; allowed: 2 (--max-caller-open-streams)") {
		t.Errorf("the third stream: %v", err)
	}
	if _, err := two.Next(bg, &marchv1.NextRequest{Tag: "fast"}); err != nil {
		t.Errorf("a call of the same caller: %v", err)
	}
	if _, err := answered(r.client); err != nil {
		t.Errorf("another caller: %v", err)
	}
	end()
	eventually(t, "another stream is served", func() bool { _, err := answered(one); return err == nil })
}

// A subject that has proven its identity is a caller of its own: others at its address, behind a NAT say, take
// nothing of its streams.
func TestOpenStreamsOfSubjects(t *testing.T) {
	var lines, tokens []string
	for _, name := range []string{"one", "two"} {
		token, line, err := access.NewToken(name, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		lines, tokens = append(lines, line), append(tokens, token)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	gate := must(access.New(access.Config{
		Policy: write("policy", "grants:\n- {subjects: ['token:one', 'token:two'], roles: issuer}\n"),
		Tokens: write("tokens", strings.Join(lines, "\n")+"\n"),
	}))(t)
	r := startWith(t, func(cfg *serve.Config) {
		cfg.Limits, cfg.Access = serve.DefaultLimits(), gate
		cfg.Limits.OpenStreams = 1
	})
	open := func(token string) error {
		stream, err := r.client.Stream(metadata.AppendToOutgoingContext(bg, "authorization", "Bearer "+token))
		if err == nil {
			_ = stream.Send(&marchv1.NextRequest{Tag: "fast"}) // Recv says why a stream was refused
			_, err = stream.Recv()
		}
		return err
	}
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted, codes.ResourceExhausted} {
		if err := open(tokens[i%2]); status.Code(err) != want {
			t.Errorf("stream %d: %v, want %v", i, err, want)
		}
	}
}

// Streams wait while many answers of their connection are not written, all of them until some are, and none for good:
// the answers of a stream that was given up are never written. 500 eager streams of 50 callers took a gigabyte.
func TestStreamsWaitForTheirAnswersToBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := serve.NewUnsent()
		waits := func(ctx context.Context, meanwhile func()) time.Duration {
			var waiting sync.WaitGroup
			began := time.Now()
			for range 3 {
				waiting.Go(func() { u.Wait(ctx) })
			}
			meanwhile()
			waiting.Wait()
			return time.Since(began)
		}
		u.Add(serve.MostUnsent)
		if took := waits(t.Context(), func() {}); took != 0 {
			t.Errorf("at the bound streams wait for %v", took)
		}
		u.Add(100)
		if took := waits(t.Context(), func() {
			time.Sleep(serve.UnsentFor / 4)
			u.Wrote(99)
			time.Sleep(serve.UnsentFor / 4)
			u.Wrote(1)
		}); took != serve.UnsentFor/2 {
			t.Errorf("until enough was written, streams wait for %v", took)
		}
		u.Add(1)
		if took := waits(t.Context(), func() {}); took != serve.UnsentFor {
			t.Errorf("where nothing is written, streams wait for %v", took)
		}
		u.Wrote(2 * serve.MostUnsent) // with what is not of streams
		u.Add(serve.MostUnsent + 1)
		ended, end := context.WithCancel(t.Context())
		if took := waits(ended, func() {
			time.Sleep(time.Millisecond)
			end()
		}); took != time.Millisecond {
			t.Errorf("streams that ended wait for %v", took)
		}
	})
}

// Many eager streams take turns, and each is answered in order.
func TestStreamsTakeTurns(t *testing.T) {
	r := limited(t, func(l *serve.Limits) { l.OpenStreams = 1000 })
	const streams, requests = 100, 50
	var all sync.WaitGroup
	for range streams {
		all.Go(func() {
			stream, err := r.client.Stream(bg)
			if err != nil {
				t.Error(err)
				return
			}
			for range requests {
				if err := stream.Send(&marchv1.NextRequest{Tag: "fast"}); err != nil {
					t.Error(err)
					return
				}
			}
			_ = stream.CloseSend()
			for i := range int64(requests) {
				if got, err := stream.Recv(); err != nil || got.GetId() != i+1 {
					t.Errorf("answer %d: %v, %v", i, got, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// A caller with IPv6 is a /64 prefix, because one machine has all its addresses.
func TestCaller(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::", "[fe80::1%eth0]:80": "fe80::",
	} {
		at := must(net.ResolveTCPAddr("tcp", address))(t)
		if got := serve.CallerAt(at).String(); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// Limits outside the allowed range are refused.
func TestLimitsAreChecked(t *testing.T) {
	for _, change := range []func(*serve.Limits){
		func(l *serve.Limits) { l.Connections = 0 },
		func(l *serve.Limits) { l.CallerConnections = -1 },
		func(l *serve.Limits) { l.ConnectionStreams = 10_000_001 },
		func(l *serve.Limits) { l.CallerStreams = 0 },
		func(l *serve.Limits) { l.Resets = 0 },
		func(l *serve.Limits) { l.OpenStreams = 10_000_001 },
	} {
		l := serve.DefaultLimits()
		change(&l)
		err := setting.Check(&l)
		if !errors.Is(err, allocator.Invalid) || !strings.Contains(err.Error(), "allowed: 1 to 10000000") {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

package serve_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcluster"
)

// counter answers the n-th request of a stream with n. A request for the tag wait keeps its
// stream waiting.
type counter struct {
	marchv1.UnimplementedIDServiceServer
	free chan struct{} // closed where streams wait no longer
}

func (s *counter) Stream(stream marchv1.IDService_StreamServer) error {
	for n := int64(0); ; n++ {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		switch number, _, _ := strings.Cut(r.GetTag(), " "); number {
		case "":
		case "wait":
			select {
			case <-s.free:
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		case strconv.FormatInt(n, 10):
		default:
			return fmt.Errorf("request %s came as the %d-th", number, n)
		}
		if err := stream.Send(&marchv1.NextResponse{Id: n}); err != nil {
			return err
		}
	}
}

// counting starts a server with a counter, of which one stream is answered at a time.
func counting(t *testing.T) (*running, *counter) {
	t.Helper()
	s := &counter{free: make(chan struct{})}
	return startWith(t, func(cfg *serve.Config) {
		cfg.Limits = serve.DefaultLimits()
		cfg.Limits.BusyStreams, cfg.Limits.Resets = 1, 1_000_000
		cfg.MaxRequest = 64 << 10
		cfg.Register = func(r grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(r, s) }
	}), s
}

// Requests of all sizes reach their handlers once and in order, however many streams of
// however many connections are eager at once.
func TestStreamsInOrder(t *testing.T) {
	const conns, streams, requests = 3, 20, 1500
	r, _ := counting(t)
	var group errgroup.Group
	for c := range conns {
		client := marchv1.NewIDServiceClient(testcluster.Dial(t, r.grpc))
		for k := range streams {
			random := rand.New(rand.NewPCG(uint64(c), uint64(k)))
			stream, err := client.Stream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			group.Go(func() error {
				for i := range requests {
					size := random.IntN(20)
					switch random.IntN(200) {
					case 0:
						size = 40_000
					case 1, 2, 3:
						size = 3000
					}
					if err := stream.Send(&marchv1.NextRequest{Tag: fmt.Sprint(i, " ",
						strings.Repeat("x", size))}); err != nil {
						return err
					}
				}
				return stream.CloseSend()
			})
			group.Go(func() error {
				for i := range requests {
					answer, err := stream.Recv()
					if err != nil {
						return fmt.Errorf("answer %d: %w", i, err)
					}
					if answer.GetId() != int64(i) {
						return fmt.Errorf("answer %d has %d", i, answer.GetId())
					}
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// reader reads the frames of a connection, and counts.
type reader struct {
	answers sync.Map     // by stream: *atomic.Int64, bytes
	given   atomic.Int64 // bytes of the connection's window
	pings   atomic.Int64
	closed  chan struct{}
}

func (c *raw) read() *reader {
	r := &reader{closed: make(chan struct{})}
	go func() {
		defer close(r.closed)
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				return
			}
			switch f := frame.(type) {
			case *http2.DataFrame:
				r.of(f.StreamID).Add(int64(len(f.Data())))
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					r.given.Add(int64(f.Increment))
				}
			case *http2.PingFrame:
				r.pings.Add(1)
			}
		}
	}()
	return r
}

func (r *reader) of(stream uint32) *atomic.Int64 {
	n, _ := r.answers.LoadOrStore(stream, new(atomic.Int64))
	return n.(*atomic.Int64)
}

// request returns a request as DATA carries it.
func request(t *testing.T, tag string) []byte {
	t.Helper()
	message, err := proto.Marshal(&marchv1.NextRequest{Tag: tag})
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// A stream whose handler waits, and one of which half a message came, keep no other stream
// of their connection from its answers, nor the connection from anything else. The held
// streams are answered later.
func TestStreamsThatWait(t *testing.T) {
	const waiting, each, requests = 5, 2000, 500
	r, s := counting(t)
	c := r.raw(t, other, marchv1.IDService_Stream_FullMethodName)
	got := c.read()
	flush := func(errs ...error) {
		t.Helper()
		for _, err := range append(errs, c.flush()) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	flush(c.WriteWindowUpdate(0, 1<<20))
	empty := request(t, "")
	var waits []uint32
	for range waiting {
		stream := c.open()
		waits = append(waits, stream)
		flush(c.WriteData(stream, false, request(t, "wait")))
		for range each {
			flush(c.WriteData(stream, false, empty))
		}
	}
	half := c.open()
	flush(c.WriteData(half, false, empty))
	eventually(t, "the stream's first answer", func() bool { return got.of(half).Load() > 0 })
	first := got.of(half).Load()
	flush(c.WriteData(half, false, empty[:3]))
	eager := c.open()
	for range requests {
		flush(c.WriteData(eager, false, empty))
	}
	flush(c.WritePing(false, [8]byte{1}))
	// The first answer has the ID 0, which takes no byte, the others have one or two.
	least := int64(requests*len(empty) + 2*(requests-1))
	eventually(t, "the eager stream's answers", func() bool { return got.of(eager).Load() >= least })
	eventually(t, "the answer to the ping", func() bool { return got.pings.Load() > 0 })
	for _, stream := range waits {
		if n := got.of(stream).Load(); n > 0 {
			t.Errorf("stream %d has %d bytes of answers while it waits", stream, n)
		}
	}
	flush(c.WriteData(half, false, empty[3:]))
	eventually(t, "the rest of the message", func() bool { return got.of(half).Load() > first })
	close(s.free)
	least = int64((each+1)*len(empty) + 2*each)
	for _, stream := range waits {
		eventually(t, "answers to what was held", func() bool { return got.of(stream).Load() >= least })
	}
}

// A stream that is reset gives back what it took of its connection's window, though its
// requests were held.
func TestResetStreamsGiveTheWindowBack(t *testing.T) {
	const rounds, streams, each = 60, 20, 60_000
	r, _ := counting(t)
	c := r.raw(t, other, marchv1.IDService_Stream_FullMethodName)
	got := c.read()
	request := append(request(t, "wait"), request(t, strings.Repeat("x", 900))...)
	sent := int64(0)
	for range rounds {
		var open []uint32
		for range streams {
			open = append(open, c.open())
		}
		for n := 0; n < each; n += len(request) {
			for _, stream := range open {
				if err := c.WriteData(stream, false, request); err != nil {
					t.Fatal(err)
				}
				sent += int64(len(request))
			}
			if err := c.flush(); err != nil {
				t.Fatal(err)
			}
		}
		for _, stream := range open {
			if err := c.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.flush(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // so that some are reset while their requests are released
	}
	// gRPC gives a quarter of the window at a time.
	eventually(t, "the window is given back", func() bool { return got.given.Load() > sent-(64<<20)/4 })
}

// A client that sends more on a stream than it may loses its connection.
func TestMoreThanTheWindow(t *testing.T) {
	r, _ := counting(t)
	c := r.raw(t, other, marchv1.IDService_Stream_FullMethodName)
	got := c.read()
	stream := c.open()
	for n := 0; n < 1<<22; n += 10_000 {
		_ = c.WriteData(stream, false, append(request(t, "wait"), make([]byte, 10_000)...))
		if c.flush() != nil {
			break
		}
	}
	select {
	case <-got.closed:
	case <-time.After(time.Minute):
		t.Error("the connection is open after a minute")
	}
}

// A client may use its whole window for the smallest messages, and send frames of no bytes.
func TestSmallestMessages(t *testing.T) {
	const window, nothing = 64 << 10, 100_000
	r, s := counting(t)
	c := r.raw(t, other, marchv1.IDService_Stream_FullMethodName)
	got := c.read()
	send := func(stream uint32, ends bool, data []byte) {
		t.Helper()
		if err := c.WriteData(stream, ends, data); err != nil {
			t.Fatal(err)
		}
	}
	wait, empty := request(t, "wait"), request(t, "")
	stream, requests := c.open(), 1
	send(stream, false, wait)
	for n := len(wait); n+len(empty) <= window; n += len(empty) {
		send(stream, false, empty)
		requests++
	}
	for range nothing {
		send(stream, false, nil)
	}
	if err := errors.Join(c.WriteWindowUpdate(0, 1<<20), c.WriteWindowUpdate(stream, 1<<20), c.flush()); err != nil {
		t.Fatal(err)
	}
	close(s.free)
	// The first 128 answers but one have an ID of one byte, and the others one of two bytes.
	least := int64(requests*len(empty) + 2*127 + 3*(requests-128))
	eventually(t, "all answers", func() bool { return got.of(stream).Load() >= least })
}

package serve_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/observe"
	"github.com/march-id/march/internal/serve"
)

// prompt answers each request of a stream at once.
type prompt struct {
	marchv1.UnimplementedIDServiceServer
	answered atomic.Int64
}

func (p *prompt) Stream(stream marchv1.IDService_StreamServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		p.answered.Add(1)
		if err := stream.Send(&marchv1.NextResponse{Id: 1}); err != nil {
			return err
		}
	}
}

// Before, 5,000 answers waited on each stream whose client did not read, 1.2 MB: 500 streams
// took 600 MB.
func TestStreamAnswers(t *testing.T) {
	const (
		streams, each, most = 20, 500, 10
		answer              = 5 + 2 // bytes: gRPC's prefix, and the ID 1
		window              = each * answer
	)
	s := &prompt{}
	r := startWith(t, func(cfg *serve.Config) {
		cfg.Limits = serve.DefaultLimits()
		cfg.Limits.StreamAnswers = most
		cfg.Metrics = observe.New("test", nil)
		cfg.Register = func(r grpc.ServiceRegistrar) { marchv1.RegisterIDServiceServer(r, s) }
	})
	c := r.raw(t, other, marchv1.IDService_Stream_FullMethodName)
	check := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	// The client lets the server send no answer.
	check(c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
		c.WriteWindowUpdate(0, (streams+1)*window))
	ask := func(stream uint32) {
		for range each {
			check(c.WriteData(stream, false, make([]byte, 5))) // an empty request
		}
	}
	var open []uint32
	for range streams { // at once: the server reads many HEADERS together
		open = append(open, c.open())
	}
	for _, stream := range open {
		ask(stream)
	}
	check(c.flush())
	waited := func() string { return r.metric(t, `march_limit_refused_total{limit="stream-answers"}`) }
	eventually(t, "each stream waits", func() bool { return waited() == strconv.Itoa(streams) })
	if n := s.answered.Load(); n != streams*most {
		t.Errorf("%d requests were taken while no answer can be written, want %d", n, streams*most)
	}

	// It takes the answers of one stream: the others still wait, and keep it from nothing.
	read := func(want int) {
		t.Helper()
		for got := 0; got < want; {
			f, err := c.ReadFrame()
			check(err)
			if data, ok := f.(*http2.DataFrame); ok {
				got += len(data.Data())
			}
		}
	}
	check(c.WriteWindowUpdate(open[0], window), c.flush())
	read(window)
	if n := s.answered.Load(); n != (streams-1)*most+each {
		t.Errorf("%d requests were taken once one stream is read, want %d", n, (streams-1)*most+each)
	}
	// Windows that end within answers, and one stream that is reset.
	check(c.WriteRSTStream(open[1], http2.ErrCodeCancel))
	for part := range 2 {
		for _, stream := range open[2:] {
			check(c.WriteWindowUpdate(stream, []uint32{window/2 + 3, window - window/2 - 3}[part]))
		}
		check(c.flush())
		read((streams - 2) * []int{window/2 + 3, window - window/2 - 3}[part])
	}
	if n := s.answered.Load(); n != most+(streams-1)*each {
		t.Errorf("%d requests were taken once all streams are read, want %d", n, most+(streams-1)*each)
	}
	eventually(t, "the stream that was reset is over", func() bool {
		return r.metric(t, "march_streams") == strconv.Itoa(streams-1)
	})
}

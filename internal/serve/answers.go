package serve

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/march-id/march/internal/frame"
	"github.com/march-id/march/internal/observe"
)

// answers bounds the answers of a stream that wait to be written.
//
// gRPC lets 64 KiB of answers wait for each stream, if its client reads them slowly. These
// are 5,000 answers of 13 bytes, and each takes about 240 bytes in memory: 500 eager
// streams took 600 MB, and the collector's work on that kept other callers waiting.
// So a stream takes no further request while too many of its answers wait.
// Requests that wait cost little more than their bytes, which HTTP/2 bounds. The
// connection is read all the same, because what comes next may be the client's leave
// to send it more answers.
type answers struct {
	frames *frames // the stream's connection
	stream uint32

	requests frame.Messages // guarded by frames.mu
	unread   atomic.Int64   // requests that gRPC has, and the handler has not taken; below 0 once the stream ended
	holds    atomic.Bool    // held is not empty; changed under frames.mu
	turn     atomic.Int32   // the stream's slot in turns, and 1; 0 for none
	since    atomic.Int64   // the tick when it took its turn
	waits    bool           // for it; guarded by turns.mu
	held     [][]byte       // whole frames, in chunks; the reader's
	from     int            // where in the first chunk the next begins
	bytes    int            // held

	messages frame.Messages                // guarded by frames.mu
	waiting  atomic.Int64                  // sent, and not written
	few      atomic.Pointer[chan struct{}] // tells the stream's handler that few wait; nil for a call that is no stream
	limit    int64
}

// answersKey is the key of a call's answers in its context.
type answersKey struct{}

// answered takes note of what a stream carries to the client.
func (f *frames) answered(stream uint32, piece []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.mu.open[stream]; a != nil {
		a.written(int64(a.messages.Count(piece)))
	}
}

// asked takes note of what a stream carries from the client.
func (f *frames) asked(stream uint32, piece []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.mu.open[stream]; a != nil {
		a.unread.Add(int64(a.requests.Count(piece)))
	}
}

// written takes note of so many answers that no longer wait.
func (a *answers) written(n int64) {
	waiting := a.waiting.Add(-n)
	few := a.few.Load()
	if few == nil || waiting > a.limit/2 {
		return
	}
	select {
	case *few <- struct{}{}:
	default:
	}
}

// boundAnswers bounds the answers of streams.
func boundAnswers(limit *observe.Limit) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		a, ok := stream.Context().Value(answersKey{}).(*answers)
		if !ok || a == nil {
			return handler(server, stream)
		}
		few := make(chan struct{}, 1)
		a.limit = limit.Most()
		a.few.Store(&few)
		return handler(server, &boundStream{ServerStream: stream, answers: a, few: few, limit: limit})
	}
}

// boundStream is a stream with a bound on its answers.
type boundStream struct {
	grpc.ServerStream
	answers *answers
	few     chan struct{}
	limit   *observe.Limit
}

// RecvMsg implements grpc.ServerStream.
func (s *boundStream) RecvMsg(m any) error {
	if s.answers.waiting.Load() >= s.answers.limit {
		s.limit.Count()
		if err := s.wait(s.Context()); err != nil {
			return err
		}
	}
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.answers.took()
	}
	return err
}

// wait waits until few answers wait.
func (s *boundStream) wait(ctx context.Context) error {
	for s.answers.waiting.Load() > s.answers.limit/2 {
		select {
		case <-s.few: // or a while ago
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// SendMsg implements grpc.ServerStream.
func (s *boundStream) SendMsg(m any) error {
	s.answers.waiting.Add(1)
	return s.ServerStream.SendMsg(m)
}

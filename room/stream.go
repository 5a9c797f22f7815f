package room

import (
	"cmp"
	"errors"
	"io"
	"sync/atomic"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
)

// Stream implements IDService. A drain ends it with UNAVAILABLE between two
// answers, so that the client goes to another instance. It ends an idle stream at
// once: otherwise every client that keeps a stream open would delay each stop for
// the whole drain. The loss of the caller's right ends an idle stream, too.
func (s *Server) Stream(stream marchv1.IDService_StreamServer) error {
	var turn turn
	ended := make(chan error, 1)
	s.streams.Go(func() { ended <- s.answer(stream, &turn) })
	select {
	case err := <-ended:
		return err
	case <-stream.Context().Done():
		if err := access.Lost(stream.Context()); err != nil && turn.end() {
			return err // this also ends Recv
		}
		return <-ended
	case <-s.status.stop:
	}
	if turn.end() {
		return s.status.stopping() // this also ends Recv
	}
	return <-ended
}

// answer answers the requests of a stream until it ends.
func (s *Server) answer(stream marchv1.IDService_StreamServer, turn *turn) error {
	request := &marchv1.NextRequest{} // reused for every message: no call below keeps it
	tag := ""
	var kept issuer // the tag's, to avoid a lookup for each message
	for {
		err := stream.RecvMsg(request)
		if !turn.begin() {
			return nil // Stream has returned
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if next := request.GetTag(); next != "" && next != tag {
			tag, kept = next, nil
		}
		var id int64
		var text *texts.Text
		if kept != nil {
			text = kept.Text()
			id, err = nextOf(stream.Context(), tag, kept)
			if err != nil && !errors.Is(err, error(allocator.ErrClosed)) {
				err = s.failed(stream.Context(), tag, err)
			}
		}
		if kept == nil || errors.Is(err, error(allocator.ErrClosed)) {
			id, text, err = s.next(stream.Context(), tag)
			kept = s.tags.memory.get(tag)
		}
		if err == nil {
			err = s.send(stream, tag, id, text)
		}
		if err != nil {
			return err
		}
		turn.rest()
		// Stream may have found an answer under way before rest.
		if err := cmp.Or(s.status.stopping(), access.Lost(stream.Context())); err != nil {
			return err
		}
	}
}

// send answers with an ID.
func (s *Server) send(stream marchv1.IDService_StreamServer, tag string, id int64, text *texts.Text) error {
	answer, err := issued(id, text)
	if err != nil {
		return ofTag(tag, err)
	}
	s.count(1)
	return stream.Send(answer)
}

// turn says whether a stream has an answer under way, or may be ended. One
// goroutine calls begin and rest, another calls end.
type turn struct{ state atomic.Int32 }

const (
	resting int32 = iota
	answering
	over
)

func (t *turn) rest() { t.state.Store(resting) }

// begin reports whether an answer may begin.
func (t *turn) begin() bool { return t.state.CompareAndSwap(resting, answering) }

// end reports whether no answer was under way. If so, no answer begins after it.
func (t *turn) end() bool { return t.state.CompareAndSwap(resting, over) }

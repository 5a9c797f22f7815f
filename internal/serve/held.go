package serve

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"github.com/march-id/march/internal/frame"
)

// gRPC keeps 64 KiB of requests for each stream until the stream's handler takes them. A
// request of 15 bytes takes 150 bytes there, and several pointers: 500 eager streams had
// 100 MB of them, and the collector, which has to follow all pointers, kept other
// callers waiting for 10 ms at a time.
//
// So gRPC is given no further DATA of a stream while mostUnread of its requests wait. The
// frames are held as they came, as bytes without pointers, which cost the collector
// nothing. All other frames pass them: one of them may be the client's leave to send it
// more answers, without which the handler takes no request. HTTP/2 allows that, since
// DATA stays in order within its stream, and all other frames stay in order.
const (
	// mostUnread is how many requests of a stream gRPC is given before the stream's handler
	// takes some of them, and fewUnread how many are left when gRPC is given more.
	mostUnread = 64
	fewUnread  = mostUnread / 2
	// mostReleased is how many bytes of a stream gRPC is given at a time; the smaller
	// number is for the time in which streams take turns.
	mostReleased, mostReleasedCrowded = 2 << 10, 256
	// mostHeld is more than a client may send on a stream, in bytes: the window twice, as
	// gRPC opens it once more for a large message, in frames of one byte.
	mostHeld = 2 * (64 << 10) * (frame.HeaderSize + 1)
)

var errFlow = errors.New("the client sent more on a stream than it may")

// holder divides what the client sends into what passes and what is held. It is the
// reader's.
type holder struct {
	skip    int // bytes that pass before the next header
	header  [frame.HeaderSize]byte
	have    int      // bytes of the header
	of      *answers // the stream of the frame that is to be held; nil while none is
	left    int      // bytes of it that are to come
	whole   []byte   // what came of it
	block   bool     // HEADERS passed of which the rest has yet to come
	pass    []byte   // what passed
	last    *answers // the stream that was released last
	streams int      // of which DATA is held
	spent   []byte   // the chunk of which all was released last
}

// sort returns what of b passes, until the next call, and holds the rest.
func (f *frames) sort(b []byte) ([]byte, error) {
	h := &f.held
	h.pass = h.pass[:0]
	for len(b) > 0 {
		switch {
		case h.skip > 0:
			n := min(h.skip, len(b))
			h.pass = append(h.pass, b[:n]...)
			h.skip, b = h.skip-n, b[n:]
		case h.left > 0:
			n := min(h.left, len(b))
			h.whole = append(h.whole, b[:n]...)
			if h.left, b = h.left-n, b[n:]; h.left == 0 {
				if err := f.hold(); err != nil {
					return h.pass, err
				}
			}
		default:
			n := copy(h.header[h.have:], b)
			h.have, b = h.have+n, b[n:]
			if h.have < len(h.header) {
				return h.pass, nil
			}
			h.have = 0
			if err := f.see(); err != nil {
				return h.pass, err
			}
		}
	}
	return h.pass, nil
}

// see decides on the frame whose header came.
func (f *frames) see() error {
	h := &f.held
	header, length := frame.ParseHeader(h.header)
	switch header.Kind {
	case http2.FrameData:
		h.of = f.full(header.Stream, header.Flags.Has(http2.FlagDataEndStream))
	case http2.FrameHeaders, http2.FrameContinuation:
		h.block = !header.Flags.Has(http2.FlagHeadersEndHeaders)
	}
	if h.of == nil {
		h.pass, h.skip = append(h.pass, h.header[:]...), length
		return nil
	}
	if length == 0 && !header.Ends() {
		h.of = nil // it says nothing, and no window bounds how many of its kind come
		return nil
	}
	if h.whole, h.left = append(h.whole[:0], h.header[:]...), length; length == 0 {
		return f.hold()
	}
	return nil
}

// full returns the stream of a number if its DATA is to be held, and otherwise nil. DATA
// that ends a stream passes, unless other DATA of it is held: that of a unary call does.
func (f *frames) full(stream uint32, ends bool) *answers {
	if ends && f.held.streams == 0 {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.mu.holding[stream]; a != nil {
		return a
	}
	a := f.mu.open[stream]
	if a == nil || ends || a.few.Load() == nil {
		return nil
	}
	if a.unread.Load() >= mostUnread || a.turn.Load() == 0 && !f.turns().takeFirst(a) {
		return a
	}
	return nil
}

// hold holds the frame that is whole now.
func (f *frames) hold() error {
	a := f.held.of
	f.held.of = nil
	if a.bytes += len(f.held.whole); a.bytes > mostHeld {
		return errFlow
	}
	last := len(a.held) - 1
	if last < 0 || len(a.held[last])+len(f.held.whole) > cap(a.held[last]) {
		a.held, last = append(a.held, f.from.callers.chunk(len(f.held.whole))), last+1
	}
	a.held[last] = append(a.held[last], f.held.whole...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.holding[a.stream] = a
	f.held.streams = len(f.mu.holding)
	a.holds.Store(true)
	if f.mu.open[a.stream] != a {
		f.ready(a) // it ended meanwhile
	} else {
		f.want(a) // the handler may have taken all meanwhile, and saw nothing held
	}
	return nil
}

// want has a stream wait for its turn if it is to be given more. The lock is held.
func (f *frames) want(a *answers) {
	if a.holds.Load() && a.unread.Load() <= fewUnread && a.turn.Load() == 0 && f.turns().wait(a) {
		f.ready(a)
	}
}

// ready has the reader release frames of a stream. The lock is held.
func (f *frames) ready(a *answers) {
	f.mu.ready = append(f.mu.ready, a)
	if f.mu.blocked {
		f.mu.blocked, f.mu.woken = false, true
		_ = f.SetReadDeadline(time.Unix(1, 0)) // ends the read
	}
}

// took takes note of a request that the stream's handler took.
func (a *answers) took() {
	left := a.unread.Add(-1)
	if left == 0 {
		a.frames.turns().end(a)
	}
	if left == 0 || left == fewUnread {
		a.wants()
	}
}

// wants has the stream wait for its turn if it is to be given more.
func (a *answers) wants() {
	if a.holds.Load() {
		a.frames.mu.Lock()
		defer a.frames.mu.Unlock()
		a.frames.want(a)
	}
}

// granted has the reader use the turn that the stream waited for. It reports whether the
// stream has not ended.
func (a *answers) granted() bool {
	f := a.frames
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.open[a.stream] != a {
		return false
	}
	f.ready(a)
	return true
}

// unlock unlocks mu, and ends the turns of streams that ended.
func (f *frames) unlock() {
	ended := f.mu.ended
	f.mu.ended = nil
	f.mu.Unlock()
	for _, a := range ended {
		f.turns().end(a)
	}
}

func (f *frames) turns() *turns { return f.from.callers.turns }

// release returns frames of a stream that may be given more; nothing where there is none.
func (f *frames) release() []byte {
	h := &f.held
	if h.spent != nil {
		f.from.callers.reuse(h.spent)
		h.spent = nil
	}
	if h.streams == 0 || !h.between() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := h.last; a != nil && a.holds.Load() && a.turn.Load() != 0 && a.unread.Load() == 0 {
		f.mu.ready = append(f.mu.ready, a) // it was given a part of a message
	}
	h.last = nil
	for len(f.mu.ready) > 0 {
		a := f.mu.ready[0]
		f.mu.ready = f.mu.ready[1:]
		if len(a.held) == 0 {
			continue // all was released before
		}
		most := mostReleased
		if f.turns().crowded() {
			most = mostReleasedCrowded
		}
		some := a.some(h, most)
		if len(a.held) == 0 {
			a.holds.Store(false)
			delete(f.mu.holding, a.stream)
			h.streams = len(f.mu.holding)
		} else if f.mu.open[a.stream] != a {
			f.mu.ready = append(f.mu.ready, a) // it ended: gRPC gives back what all took of the connection's window
		}
		h.last = a
		return some
	}
	return nil
}

// between reports whether gRPC is between two frames that others may come between.
func (h *holder) between() bool { return h.skip == 0 && !h.block }

// some takes the first frames of those that are held: one, or as many as have most bytes.
func (a *answers) some(h *holder, most int) []byte {
	held, n := a.held[0][a.from:], 0
	for n < len(held) {
		_, length := frame.ParseHeader([frame.HeaderSize]byte(held[n:]))
		end := n + frame.HeaderSize + length
		if n > 0 && end > most {
			break
		}
		n = end
	}
	a.bytes -= n
	if a.from += n; n == len(held) {
		h.spent = a.held[0]
		a.held, a.from = slices.Delete(a.held, 0, 1), 0
	}
	return held[:n]
}

// await reads from the connection. It returns nothing, and no error, where held frames may
// be released.
func (f *frames) await(b []byte) (int, error) {
	if f.held.streams == 0 {
		return f.Conn.Read(b)
	}
	f.mu.Lock()
	some := len(f.mu.ready) > 0
	f.mu.blocked = !some
	f.mu.Unlock()
	if some && f.held.between() {
		return 0, nil
	}
	n, err := f.Conn.Read(b)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.blocked = false
	if !f.mu.woken {
		return n, err
	}
	f.mu.woken = false
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return n, cmp.Or(err, f.SetReadDeadline(time.Time{}))
}

// chunkSize is what frames are held in, in bytes; a larger frame has a chunk of its own.
const chunkSize = 4 << 10

// chunk returns an empty chunk for a frame of a size.
func (c *callers) chunk(size int) []byte {
	if size > chunkSize {
		return make([]byte, 0, size)
	}
	if b, ok := c.chunks.Get().(*[chunkSize]byte); ok {
		return b[:0]
	}
	return make([]byte, 0, chunkSize)
}

// reuse takes a chunk back.
func (c *callers) reuse(chunk []byte) {
	if cap(chunk) == chunkSize {
		c.chunks.Put((*[chunkSize]byte)(chunk[:chunkSize]))
	}
}

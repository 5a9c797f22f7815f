// Package frame finds the frames of HTTP/2 in the bytes that one side of a connection
// sends, however they are split into pieces.
package frame

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// Header is the header of a frame, but for its length.
type Header struct {
	Kind   http2.FrameType
	Flags  http2.Flags
	Stream uint32
}

// HeaderSize is the size of a frame's header, in bytes.
const HeaderSize = 9

// ParseHeader returns a header, and how many bytes of the frame follow it.
func ParseHeader(b [HeaderSize]byte) (h Header, length int) {
	return Header{
		Kind: http2.FrameType(b[3]), Flags: http2.Flags(b[4]), Stream: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31),
	}, int(b[0])<<16 | int(b[1])<<8 | int(b[2])
}

// Ends reports whether the sender ends the stream with the frame.
func (h Header) Ends() bool {
	return (h.Kind == http2.FrameData || h.Kind == http2.FrameHeaders) && h.Flags.Has(http2.FlagDataEndStream)
}

// Parser finds the frames that one side sends. The zero value is for the server's
// side, which begins with a frame. It is not for concurrent use.
type Parser struct {
	// Data, where it is set, is called with each piece of what a DATA frame carries,
	// padding included.
	Data func(stream uint32, piece []byte)

	header [HeaderSize]byte
	have   int    // bytes of it
	skip   int    // bytes before the next header
	data   bool   // they are a DATA frame's, for Data
	stream uint32 // the DATA frame's
}

// FromClient returns a parser for the client's side, which begins with the preface.
func FromClient() Parser { return Parser{skip: len(http2.ClientPreface)} }

// Parse calls see with each header that ends in b, until it returns false; then
// Parse returns false.
func (p *Parser) Parse(b []byte, see func(Header) bool) bool {
	for {
		n, h, ok := p.next(b)
		if !ok {
			return true
		}
		if !see(h) {
			return false
		}
		b = b[n:]
	}
}

// Before returns how many of the next bytes b come before a frame of a kind that begins
// in b, but not at its beginning; all, if there is none. The parser stays where it is.
func (p *Parser) Before(kind http2.FrameType, b []byte) int {
	ahead := *p
	ahead.Data, ahead.data = nil, false
	for at := 0; ; {
		n, h, ok := ahead.next(b[at:])
		if !ok {
			return len(b)
		}
		at += n
		if start := at - len(ahead.header); h.Kind == kind && start > 0 {
			return start
		}
	}
}

// next returns the next header, and how many bytes of b there are to its end; false if
// it does not end in b.
func (p *Parser) next(b []byte) (n int, header Header, ok bool) {
	for n < len(b) {
		if p.skip > 0 {
			k := min(p.skip, len(b)-n)
			if p.data {
				p.Data(p.stream, b[n:n+k])
			}
			p.skip, n = p.skip-k, n+k
			continue
		}
		k := copy(p.header[p.have:], b[n:])
		p.have, n = p.have+k, n+k
		if p.have < len(p.header) {
			break
		}
		p.have = 0
		header, p.skip = ParseHeader(p.header)
		p.data, p.stream = p.Data != nil && header.Kind == http2.FrameData, header.Stream
		return n, header, true
	}
	return n, header, false
}

// Messages counts the messages of gRPC in what the DATA frames of a stream carry. gRPC
// splits a message where a window ends, so that frames are not messages. The
// zero value is for a stream's beginning.
type Messages struct {
	prefix [5]byte // a flag, and the length of the message
	have   int     // bytes of it
	left   uint32  // bytes of the message
}

// Count returns how many messages end in the stream's next bytes.
func (m *Messages) Count(b []byte) (n int) {
	for len(b) > 0 {
		if m.left > 0 {
			skip := min(uint64(m.left), uint64(len(b)))
			m.left, b = m.left-uint32(skip), b[skip:]
		} else {
			k := copy(m.prefix[m.have:], b)
			m.have, b = m.have+k, b[k:]
			if m.have < len(m.prefix) {
				break
			}
			m.have, m.left = 0, binary.BigEndian.Uint32(m.prefix[1:])
		}
		if m.left == 0 {
			n++
		}
	}
	return n
}

// Package frame finds the frames of HTTP/2 in the bytes that one side of a connection
// sends, however they are split into pieces.
package frame

import "golang.org/x/net/http2"

// Header is the header of a frame, but for its length.
type Header struct {
	Kind   http2.FrameType
	Flags  http2.Flags
	Stream uint32
}

// Ends reports whether the sender ends the stream with the frame.
func (h Header) Ends() bool {
	return (h.Kind == http2.FrameData || h.Kind == http2.FrameHeaders) && h.Flags.Has(http2.FlagDataEndStream)
}

// Parser finds the frames that one side sends. The zero value is for the server's
// side, which begins with a frame. It is not for concurrent use.
type Parser struct {
	header [9]byte
	have   int // bytes of it
	skip   int // bytes before the next header
}

// FromClient returns a parser for the client's side, which begins with the preface.
func FromClient() Parser { return Parser{skip: len(http2.ClientPreface)} }

// Parse calls see with each header that ends in b, until it returns false; then
// Parse returns false.
func (p *Parser) Parse(b []byte, see func(Header) bool) bool {
	for len(b) > 0 {
		if p.skip > 0 {
			n := min(p.skip, len(b))
			p.skip, b = p.skip-n, b[n:]
			continue
		}
		n := copy(p.header[p.have:], b)
		p.have, b = p.have+n, b[n:]
		if p.have < len(p.header) {
			break
		}
		p.have = 0
		h := &p.header
		p.skip = int(h[0])<<16 | int(h[1])<<8 | int(h[2])
		if !see(Header{
			Kind: http2.FrameType(h[3]), Flags: http2.Flags(h[4]),
			Stream: (uint32(h[5])<<24 | uint32(h[6])<<16 | uint32(h[7])<<8 | uint32(h[8])) &^ (1 << 31),
		}) {
			return false
		}
	}
	return true
}

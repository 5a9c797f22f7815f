package main

import (
	"encoding/binary"

	"golang.org/x/net/http2"
)

// frameHeader is the header of a frame, but for its length.
type frameHeader struct {
	Kind   http2.FrameType
	Flags  http2.Flags
	Stream uint32
}

// headerSize is the size of a frame's header, in bytes.
const headerSize = 9

// parseHeader returns a header, and how many bytes of the frame follow it.
func parseHeader(b [headerSize]byte) (h frameHeader, length int) {
	return frameHeader{
		Kind: http2.FrameType(b[3]), Flags: http2.Flags(b[4]), Stream: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31),
	}, int(b[0])<<16 | int(b[1])<<8 | int(b[2])
}

// ends reports whether the sender ends the stream with the frame.
func (h frameHeader) ends() bool {
	return (h.Kind == http2.FrameData || h.Kind == http2.FrameHeaders) && h.Flags.Has(http2.FlagDataEndStream)
}

// frameParser finds the frames of HTTP/2 in the bytes that one side of a connection sends, however they are split
// into pieces. The zero value is for the server's side, which begins with a frame. It is not for concurrent use.
type frameParser struct {
	header [headerSize]byte
	have   int // bytes of it
	skip   int // bytes before the next header
}

// fromClient returns a parser for the client's side, which begins with the preface.
func fromClient() frameParser { return frameParser{skip: len(http2.ClientPreface)} }

// parse calls see with each header that ends in b.
func (p *frameParser) parse(b []byte, see func(frameHeader)) {
	for len(b) > 0 {
		if p.skip > 0 {
			k := min(p.skip, len(b))
			p.skip, b = p.skip-k, b[k:]
			continue
		}
		k := copy(p.header[p.have:], b)
		p.have, b = p.have+k, b[k:]
		if p.have == headerSize {
			var h frameHeader
			h, p.skip = parseHeader(p.header)
			p.have = 0
			see(h)
		}
	}
}

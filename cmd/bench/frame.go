package main

import (
	"bytes"

	"golang.org/x/net/http2"
)

// headerSize is the size of a frame's header, in bytes.
const headerSize = 9

// endsStream reports whether the sender of a frame ends the stream with it.
func endsStream(h http2.FrameHeader) bool {
	return (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) && h.Flags.Has(http2.FlagDataEndStream)
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
func (p *frameParser) parse(b []byte, see func(http2.FrameHeader)) {
	for len(b) > 0 {
		if p.skip > 0 {
			k := min(p.skip, len(b))
			p.skip, b = p.skip-k, b[k:]
			continue
		}
		k := copy(p.header[p.have:], b)
		p.have, b = p.have+k, b[k:]
		if p.have == headerSize {
			h, _ := http2.ReadFrameHeader(bytes.NewReader(p.header[:])) // fails only if there are too few bytes
			p.have, p.skip = 0, int(h.Length)
			see(h)
		}
	}
}

package frame_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/net/http2"

	"github.com/march-id/march/internal/frame"
)

// sent returns the bytes that a client sends: three frames of two streams, one of which ends.
func sent(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	for _, err := range []error{
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte("abc"), EndHeaders: true}),
		f.WriteData(1, true, make([]byte, 70_000)),
		f.WriteRSTStream(1<<31-1, http2.ErrCodeCancel),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// TestParse: the parser finds the same frames in pieces of any size.
func TestParse(t *testing.T) {
	all := sent(t)
	want := []frame.Header{
		{Kind: http2.FrameHeaders, Flags: http2.FlagHeadersEndHeaders, Stream: 1},
		{Kind: http2.FrameData, Flags: http2.FlagDataEndStream, Stream: 1},
		{Kind: http2.FrameRSTStream, Stream: 1<<31 - 1},
	}
	for _, size := range []int{1, 2, 7, 9, 10, 24, 25, 1000, len(all)} {
		p := frame.FromClient()
		var got []frame.Header
		ends := 0
		for piece := range slices.Chunk(all, size) {
			if !p.Parse(piece, func(h frame.Header) bool {
				got = append(got, h)
				if h.Ends() {
					ends++
				}
				return true
			}) {
				t.Fatalf("pieces of %d: it stopped", size)
			}
		}
		if !slices.Equal(got, want) || ends != 1 {
			t.Errorf("pieces of %d: %+v, of which %d end a stream; want %+v and 1", size, got, ends, want)
		}
	}
}

// TestParseStops: the parser stops once the caller has seen enough.
func TestParseStops(t *testing.T) {
	p, seen := frame.FromClient(), 0
	if p.Parse(sent(t), func(frame.Header) bool { seen++; return seen < 2 }) || seen != 2 {
		t.Errorf("%d frames were seen, want 2", seen)
	}
}

// TestBefore: the bytes before the next HEADERS are the same as those that Parse then sees no
// HEADERS in, but at their beginning.
func TestBefore(t *testing.T) {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	for stream := uint32(1); stream < 20; stream += 2 {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte("abc"),
			EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
		if err := f.WriteData(stream, false, make([]byte, stream)); err != nil {
			t.Fatal(err)
		}
	}
	for size := 1; size <= b.Len(); size++ {
		var p frame.Parser
		seen := 0
		for piece := range slices.Chunk(b.Bytes(), size) {
			for len(piece) > 0 {
				n, headers := p.Before(http2.FrameHeaders, piece), 0
				p.Parse(piece[:n], func(h frame.Header) bool {
					if h.Kind == http2.FrameHeaders {
						headers++
					}
					return true
				})
				if piece = piece[n:]; n == 0 || headers > 1 {
					t.Fatalf("pieces of %d: %d HEADERS in %d bytes", size, headers, n)
				}
				seen += headers
			}
		}
		if seen != 10 {
			t.Errorf("pieces of %d: %d HEADERS, want 10", size, seen)
		}
	}
}

// TestMessages: messages are counted once, however frames and pieces divide them.
func TestMessages(t *testing.T) {
	var carried []byte
	lengths := []int{0, 3, 0, 300, 70_000, 1}
	for _, n := range lengths {
		carried = append(binary.BigEndian.AppendUint32(append(carried, 0), uint32(n)), make([]byte, n)...)
	}
	for _, size := range []int{1, 2, 4, 5, 6, 1000, len(carried)} {
		var b bytes.Buffer
		f := http2.NewFramer(&b, nil)
		for piece := range slices.Chunk(carried, size) {
			if err := f.WriteData(1, false, piece); err != nil {
				t.Fatal(err)
			}
		}
		var messages frame.Messages
		got := 0
		p := frame.Parser{Data: func(_ uint32, piece []byte) { got += messages.Count(piece) }}
		for piece := range slices.Chunk(b.Bytes(), 7) {
			p.Parse(piece, func(frame.Header) bool { return true })
		}
		if got != len(lengths) {
			t.Errorf("frames of %d bytes: %d messages, want %d", size, got, len(lengths))
		}
	}
}

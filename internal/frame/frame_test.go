package frame_test

import (
	"bytes"
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

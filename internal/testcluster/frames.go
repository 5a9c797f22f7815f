package testcluster

import (
	"bytes"
	"context"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// DialFrom connects to a server from an address of this machine. To a server each address is another caller.
func DialFrom(ctx context.Context, from, address string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", address)
}

// Frames is a connection of HTTP/2 whose frames a test writes by hand, as harmful clients do.
type Frames struct {
	*http2.Framer
	Conn    net.Conn
	Out     bytes.Buffer // frames not sent yet
	headers []byte
	next    uint32 // stream
}

// NewFrames begins HTTP/2 on a connection. Its streams call a method of gRPC.
func NewFrames(conn net.Conn, method string) (*Frames, error) {
	f := &Frames{Conn: conn, next: 1}
	f.Framer = http2.NewFramer(&f.Out, conn)
	f.Out.WriteString(http2.ClientPreface)
	if err := f.WriteSettings(); err != nil {
		return nil, err
	}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSizeLimit(0) // each stream has the same block
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := e.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			return nil, err
		}
	}
	f.headers = block.Bytes()
	return f, nil
}

// Open opens a stream and returns its number.
func (f *Frames) Open() uint32 {
	stream := f.next
	f.next += 2
	// A buffer takes all.
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.headers, EndHeaders: true})
	return stream
}

// Flush sends the frames in Out.
func (f *Frames) Flush() error {
	_, err := f.Out.WriteTo(f.Conn)
	return err
}

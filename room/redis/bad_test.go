package redis

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"
)

// script is a connection whose client sends what it has to send, reads all answers, and
// goes.
type script struct {
	net.Conn
	send bytes.Reader
	got  bytes.Buffer
}

func (s *script) Read(b []byte) (int, error)       { return s.send.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return s.got.Write(b) }
func (*script) SetReadDeadline(time.Time) error    { return nil }
func (*script) SetWriteDeadline(t time.Time) error { return nil }
func (*script) RemoteAddr() net.Addr               { return &net.TCPAddr{} }

// reply reads one answer from the front of b, and returns what is behind it.
func reply(b []byte) (rest []byte, err error) {
	line, rest, ok := bytes.Cut(b, []byte("\r\n"))
	if !ok || len(line) == 0 {
		return nil, fmt.Errorf("no line: %.80q", b)
	}
	switch line[0] {
	case '+', '-', '_':
		return rest, nil
	}
	n, err := strconv.ParseInt(string(line[1:]), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%.80q: %w", line, err)
	}
	switch line[0] {
	case ':':
		return rest, nil
	case '$':
		if n < 0 {
			return rest, nil
		}
		if int64(len(rest)) < n+2 || string(rest[n:n+2]) != "\r\n" {
			return nil, fmt.Errorf("a bulk string of %d bytes: %.80q", n, rest)
		}
		return rest[n+2:], nil
	case '*', '%':
		if line[0] == '%' {
			n *= 2
		}
		for range n {
			if rest, err = reply(rest); err != nil {
				return nil, err
			}
		}
		return rest, nil
	}
	return nil, fmt.Errorf("no type of answer: %.80q", line)
}

// Each of 100,000 bad streams is answered in well-formed answers or not at all, and its
// connection ends: with an error of the protocol, or where the client goes. A loop that answers
// the first commands changes nothing in what the client reads.
func TestBadStreams(t *testing.T) {
	const streams = 100_000
	from := &anyTag{}
	d := New(Config{Room: from})
	names := make([]string, 0, len(d.commands)+len(refused))
	for name := range d.commands {
		names = append(names, name)
	}
	for name := range refused {
		names = append(names, name)
	}
	names = append(names, "post", "host:")
	slices.Sort(names) // so that each run has the same streams
	names = append(names, slices.Repeat([]string{"incr", "INCR", "incrby"}, 10)...)
	dice := rand.New(rand.NewPCG(20, 1))
	words := []string{"order", "", "-1", "0", "1", "1", "3", "51", "9223372036854775807", "92233720368547758080", "nx",
		"get", "auth", "setname", "\x00\xff", "a b", "\r\n", "docs", "é"}
	lines := []string{"*", "$", "\r\n", "\n", "*0\r\n", "*-1\r\n", "*1025\r\n", "*2\r\n$4\r\nINCR\r\n", "$65537\r\n",
		"$-1\r\n", "*1\r\n:1\r\n", "99999999999999999999999999999999999", "incr 'a\r\n", "ping\r\n", "\x00"}
	var b []byte
	answers := 0
	for n := range streams {
		b = b[:0]
		for range 1 + dice.IntN(6) {
			if dice.IntN(3) == 0 {
				b = append(b, lines[dice.IntN(len(lines))]...)
				continue
			}
			count := 1 + dice.IntN(4)
			b = fmt.Appendf(b, "*%d\r\n", count)
			for k := range count {
				word := words[dice.IntN(len(words))]
				if k == 0 {
					word = names[dice.IntN(len(names))]
				}
				b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(word), word)
			}
		}
		if len(b) > 0 && dice.IntN(4) == 0 { // a byte of it is another one, or the end is missing
			if at := dice.IntN(len(b)); dice.IntN(2) == 0 {
				b[at] = byte(dice.IntN(256))
			} else {
				b = b[:at]
			}
		}
		s, looped := &script{}, &script{}
		s.send.Reset(b)
		for _, s := range []*script{s, looped} {
			from.last.Store(0)
			c := &conn{door: d, accepted: s, net: s, ctx: t.Context(), anonymous: t.Context(),
				output: output{protocol: 2}, in: make([]byte, 0, 512)}
			if s == looped {
				c.in = append(c.in, b...)
				c.countOnly()
			}
			if err := c.run(); err != nil && !errors.Is(err, io.EOF) {
				t.Fatalf("stream %d, %q: %v", n, b, err)
			}
		}
		if one, other := s.got.String(), looped.got.String(); one != other {
			t.Fatalf("stream %d, %q: a goroutine answers %q, a loop %q", n, b, one, other)
		}
		for rest := s.got.Bytes(); len(rest) > 0; answers++ {
			var err error
			if rest, err = reply(rest); err != nil {
				t.Fatalf("stream %d, %q: %v", n, b, err)
			}
		}
	}
	if answers < streams/2 {
		t.Errorf("%d answers to %d streams", answers, streams)
	}
}

package redis_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/march-id/march/room/redis"
)

// .ci/doors/record sets these flags for each client.
var (
	recordAt = flag.String("record", "",
		"instead of a test, serve a client at this address, and write what was sent to the file -as")
	recordAs = flag.String("as", "", "the file")
)

// TestRecorded replays what real clients sent, byte for byte. Each file of
// testdata/exchanges is one connection: lines that begin with > are of the client, and those
// that begin with < are of the door.
func TestRecorded(t *testing.T) {
	if *recordAt != "" {
		recordOne(t)
		return
	}
	files, err := filepath.Glob("testdata/exchanges/*.txt")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			both(t, func(t *testing.T, conn net.Conn) {
				for k, turn := range readExchange(t, file) {
					if got := exchange(t, conn, turn.send, len(turn.want)); got != turn.want {
						t.Fatalf("turn %d: %q\ngot  %q\nwant %q", k, turn.send, got, turn.want)
					}
				}
			})
		})
	}
}

// turn is what a client sends, and the answers that it reads before it sends more.
type turn struct{ send, want string }

func readExchange(t *testing.T, file string) (turns []turn) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		bytes, err := strconv.Unquote(strings.TrimSpace(line[1:]))
		if err != nil {
			t.Fatalf("%s: %s: %v", file, line, err)
		}
		last := len(turns) - 1
		switch {
		case line[0] == '<' && last >= 0:
			turns[last].want += bytes
		case last >= 0 && turns[last].want == "":
			turns[last].send += bytes
		default:
			turns = append(turns, turn{send: bytes})
		}
	}
	return turns
}

// recordOne serves one connection, and writes what went over it.
func recordOne(t *testing.T) {
	l, err := net.Listen("tcp", *recordAt)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	one := &pipes{conns: make(chan net.Conn, 1), ended: make(chan struct{})}
	taped := &tape{Conn: conn, ended: make(chan struct{})}
	one.conns <- taped
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- redis.New(redis.Config{Room: &counters{}}).Run(ctx, one) }()
	<-taped.ended
	stop()
	if err := errors.Join(<-done, os.WriteFile(*recordAs, []byte("# "+strings.TrimSuffix(filepath.Base(*recordAs),
		".txt")+", recorded by .ci/doors/record\n"+taped.text.String()), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// tape is a connection that notes each command and answer, one a line of the protocol.
type tape struct {
	net.Conn
	ended chan struct{} // closed by Close
	once  sync.Once
	text  strings.Builder // the door's goroutine alone writes it
}

func (c *tape) note(mark string, b []byte) {
	lines := bufio.NewReader(strings.NewReader(string(b)))
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			_, _ = fmt.Fprintf(&c.text, "%s %q\n", mark, line)
		}
		if errors.Is(err, io.EOF) {
			return
		}
	}
}

func (c *tape) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.note(">", b[:n])
	return n, err
}

func (c *tape) Write(b []byte) (int, error) {
	c.note("<", b)
	return c.Conn.Write(b)
}

func (c *tape) Close() error {
	c.once.Do(func() { close(c.ended) })
	return c.Conn.Close()
}

package redis_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/march-id/march/room/redis"
)

// openTCP runs a door over TCP, where loops serve clients that count. It returns what stops the
// door.
func openTCP(t *testing.T, l net.Listener) (stop func()) { return openWith(t, l, &counters{}) }

func openWith(t *testing.T, l net.Listener, tags *counters) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- redis.New(redis.Config{Room: tags}).Run(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dialTCP(t *testing.T, l net.Listener) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T", conn)
	}
	return tcp
}

// Over TCP commands are answered one by one, in pipelines longer than the buffer, in halves
// and in transactions.
func TestTCP(t *testing.T) {
	t.Parallel()
	l := listen(t)
	openTCP(t, l)
	conn, last := dialTCP(t, l), 0
	count := func(n int) (send, want string) {
		var answers strings.Builder
		for range n {
			last++
			answers.WriteString(":" + strconv.Itoa(last) + "\r\n")
		}
		return strings.Repeat(bulks("INCR", "order"), n), answers.String()
	}
	for _, n := range []int{1, 1, 16, 1, 1000, 5000, 1, 1} {
		send, want := count(n)
		if got := exchange(t, conn, send, len(want)); got != want {
			t.Fatalf("%d commands: %.80q; want %.80q", n, got, want)
		}
	}
	for range 100 { // the half of a command comes with another one before it
		send, want := count(2)
		half := len(send) - 9
		first := want[:strings.IndexByte(want, '\n')+1]
		if got := exchange(t, conn, send[:half], len(first)); got != first {
			t.Fatalf("%q; want %q", got, first)
		}
		if got := exchange(t, conn, send[half:], len(want)-len(first)); got != want[len(first):] {
			t.Fatalf("%q; want %q", got, want[len(first):])
		}
	}
	for range 3 {
		last++
		want := "+OK\r\n+QUEUED\r\n*1\r\n:" + strconv.Itoa(last) + "\r\n"
		if got := exchange(t, conn, bulks("MULTI")+bulks("INCR", "order"), 14); got != want[:14] {
			t.Fatalf("%q; want %q", got, want)
		}
		if got := exchange(t, conn, bulks("EXEC"), len(want)-14); got != want[14:] {
			t.Fatalf("%q; want %q", got, want)
		}
	}
}

// A client may end its stream together with its last command: it is answered, and the
// connection ends.
func TestEndWithACommand(t *testing.T) {
	t.Parallel()
	l := listen(t)
	conns := make([]*net.TCPConn, 20)
	for k := range conns { // before the door accepts any of them
		conns[k] = dialTCP(t, l)
		if _, err := io.WriteString(conns[k], bulks("PING")); err != nil {
			t.Fatal(err)
		}
		if err := conns[k].CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	openTCP(t, l)
	for k, conn := range conns {
		if got, err := io.ReadAll(conn); err != nil || string(got) != "+PONG\r\n" {
			t.Errorf("client %d: %q, %v", k, got, err)
		}
	}
}

// A door that stops ends connections that wait.
func TestStopOverTCP(t *testing.T) {
	t.Parallel()
	l := listen(t)
	stop := openTCP(t, l)
	busy, silent, counting := dialTCP(t, l), dialTCP(t, l), dialTCP(t, l)
	if got := exchange(t, busy, bulks("PING"), 7); got != "+PONG\r\n" {
		t.Fatalf("%q", got)
	}
	for k := range 3 {
		if got, want := exchange(t, counting, bulks("INCR", "order"), 4), fmt.Sprintf(":%d\r\n", k+1); got != want {
			t.Fatalf("%q; want %q", got, want)
		}
	}
	stop()
	for _, conn := range []net.Conn{busy, silent, counting} {
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%q", got)
		}
	}
}

// A client counts, sends other commands, and counts again. Each time another owner serves its
// connection, and commands of both kinds may come together.
func TestCountersChangeOwners(t *testing.T) {
	t.Parallel()
	l := listen(t)
	openTCP(t, l)
	conn, last := dialTCP(t, l), 0
	next := func() string {
		last++
		return fmt.Sprintf(":%d\r\n", last)
	}
	for k := range 3 {
		// the first is answered by the goroutine
		for _, command := range []string{bulks("INCR", "order"), bulks("INCR", "order"),
			bulks("incrby", "order", "1")} {
			if want := next(); exchange(t, conn, command, len(want)) != want {
				t.Fatalf("round %d: want %q", k, want)
			}
		}
		for _, other := range []struct{ send, want string }{
			{bulks("PING"), "+PONG\r\n"},
			{bulks("INCR", "full"), "-ERR march: tag full: no ID is left  +OK\r\n"},
			{bulks("INCR", "away"), "-TRYAGAIN march: etcd is away\r\n"},
			{bulks("INCR", ""), "-ERR march: "},
			{bulks("EXISTS", "missing"), ":0\r\n"},
		} {
			mixed := bulks("INCR", "order") + other.send + bulks("INCR", "order")
			want := next() + other.want
			if strings.HasSuffix(other.want, "\r\n") {
				want += next()
			} else {
				next()
			}
			got := exchange(t, conn, mixed, len(want))
			if got != want {
				t.Fatalf("round %d: %q: %q; want %q", k, mixed, got, want)
			}
			for !strings.HasSuffix(got, fmt.Sprintf(":%d\r\n", last)) {
				got += exchange(t, conn, "", 1)
			}
		}
		time.Sleep(1100 * time.Millisecond) // after which the loop takes the connection again
	}
}

// IDs of a strict tag are never there at once: the client is served all the same.
func TestStrictTagOverTCP(t *testing.T) {
	t.Parallel()
	l := listen(t)
	openTCP(t, l)
	conn := dialTCP(t, l)
	for k := range 200 {
		if got, want := exchange(t, conn, bulks("INCR", "strict"), len(strconv.Itoa(k+1))+3),
			fmt.Sprintf(":%d\r\n", k+1); got != want {
			t.Fatalf("%q; want %q", got, want)
		}
	}
}

// A client that counts and then sends half a command is cut off as any other one.
func TestHalfACommandAfterCounting(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 10 seconds")
	}
	l := listen(t)
	openTCP(t, l)
	conn := dialTCP(t, l)
	for k := range 3 {
		if got, want := exchange(t, conn, bulks("INCR", "order"), 4), fmt.Sprintf(":%d\r\n", k+1); got != want {
			t.Fatalf("%q; want %q", got, want)
		}
	}
	began := time.Now()
	if got := exchange(t, conn, "*2\r\n$4\r\nIN", 1); got != "" {
		t.Errorf("%q", got)
	}
	if took := time.Since(began); took < 8*time.Second {
		t.Errorf("cut off after %v; want 10s", took)
	}
}

// A client that sends commands and reads no answer is cut off, and does not hold up another one.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 10 seconds")
	}
	l := listen(t)
	openTCP(t, l)
	deaf, other := dialTCP(t, l), dialTCP(t, l)
	ended := make(chan error, 1)
	go func() {
		commands := []byte(strings.Repeat(bulks("INCR", "order"), 1000))
		for {
			if _, err := deaf.Write(commands); err != nil {
				ended <- err
				return
			}
		}
	}()
	for until := time.Now().Add(time.Minute); ; {
		if got := exchange(t, other, bulks("INCR", "other"), 1); got != ":" {
			t.Fatalf("%q", got)
		}
		for exchange(t, other, "", 1) != "\n" {
		}
		select {
		case <-ended:
			return
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(until) {
			t.Fatal("the client that reads nothing is served for a minute")
		}
	}
}

const manyClients = 10_000

// 10,000 clients of another process are connected over TCP at once. Each one counts three times,
// and no two get the same.
func TestManyConnectionsOverTCP(t *testing.T) {
	l, tags := listen(t), &counters{}
	openWith(t, l, tags)
	clients := exec.CommandContext(t.Context(), os.Args[0])
	clients.Env = append(os.Environ(), clientsOf+"="+l.Addr().String())
	if out, err := clients.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%.2000s", err, out)
	}
	if taken := tags.last.Load(); taken != 3*manyClients {
		t.Errorf("%d IDs were taken; want %d", taken, 3*manyClients)
	}
}

// clientsOf is set in a process that has many clients of a door: one process may not have as
// many files as the door and its clients need.
const clientsOf = "MARCH_TEST_REDIS_CLIENTS_OF"

// countMany connects all clients, and then lets each of them count. It is an error if an ID comes
// twice.
func countMany(address string) error {
	conns := make([]net.Conn, 0, manyClients)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	for k := range manyClients {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return fmt.Errorf("client %d: %w", k, err)
		}
		conns = append(conns, conn)
	}
	var mu sync.Mutex
	seen := make(map[string]bool)
	for range 3 {
		var counting errgroup.Group
		counting.SetLimit(100)
		for k, conn := range conns {
			counting.Go(func() error {
				if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
					return err
				}
				if _, err := io.WriteString(conn, bulks("INCR", "order")); err != nil {
					return fmt.Errorf("client %d: %w", k, err)
				}
				answer := make([]byte, 32)
				n, err := conn.Read(answer) // it comes in one piece
				if err != nil {
					return fmt.Errorf("client %d: %w", k, err)
				}
				id := string(answer[:n])
				mu.Lock()
				defer mu.Unlock()
				if id[0] != ':' || seen[id] {
					return fmt.Errorf("client %d got %q, which is no number or came before", k, id)
				}
				seen[id] = true
				return nil
			})
		}
		if err := counting.Wait(); err != nil {
			return err
		}
	}
	return nil
}

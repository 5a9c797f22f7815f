package redis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/room/door"
	"github.com/march-id/march/room/redis"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(clientsOf); address != "" {
		if err := countMany(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// counters is a room of two tags: order begins at 1, full has no ID left, away waits for
// etcd. With a token it has a policy.
type counters struct {
	door.Room
	last  atomic.Int64
	token string
}

func (c *counters) take(tag string, n int64) (int64, error) {
	switch tag {
	case "full":
		return 0, allocator.Errorf(allocator.Exhausted, "tag full: no ID is left\r\n+OK")
	case "away":
		return 0, allocator.Errorf(allocator.Unavailable, "etcd is away")
	case "busy":
		return 0, &allocator.WaitError{After: 90 * time.Second, Err: allocator.Errorf(allocator.TooMany, "too many")}
	case "missing":
		return 0, allocator.Errorf(allocator.NotFound, "tag missing does not exist")
	}
	if n > 50 {
		return 0, allocator.Errorf(allocator.Invalid, "count: %d; allowed: 1 to 50", n)
	}
	return c.last.Add(n) - n + 1, nil
}

func (c *counters) Next(_ context.Context, tag string) (int64, error) { return c.take(tag, 1) }

func (c *counters) TryNext(_ context.Context, tag string) (int64, bool, error) {
	if tag == "away" || tag == "strict" {
		return 0, false, nil
	}
	id, err := c.take(tag, 1)
	return id, err == nil, err
}

func (c *counters) NextRun(_ context.Context, tag string, n int64) (int64, error) {
	return c.take(tag, n)
}

func (c *counters) Peek(_ context.Context, tag string) (int64, error) {
	if tag == "missing" || tag == "away" {
		return c.take(tag, 1)
	}
	return c.last.Load() + 1, nil
}

func (c *counters) Create(_ context.Context, tag string, _ int64) (bool, error) {
	return tag == "missing", nil
}

type loggedIn struct{}

func (c *counters) Open() bool { return c.token == "" }

func (c *counters) Barred(ctx context.Context) bool { return ctx.Value(loggedIn{}) == nil }

func (c *counters) Login(ctx context.Context, token string) (context.Context, error) {
	if token != c.token {
		return nil, allocator.Errorf(allocator.Unauthenticated, "wrong")
	}
	return context.WithValue(ctx, loggedIn{}, true), nil
}

// open runs a door and returns what dials it.
func open(t *testing.T) func() net.Conn { return openRoom(t, &counters{}) }

func openRoom(t *testing.T, of *counters) func() net.Conn {
	l := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- redis.New(redis.Config{Room: of}).Run(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return func() net.Conn {
		ours, theirs := net.Pipe()
		l.conns <- theirs
		t.Cleanup(func() { _ = ours.Close() })
		return ours
	}
}

// exchange sends bytes and returns what comes until the connection has been silent, or has
// ended.
func exchange(t *testing.T, conn net.Conn, send string, length int) string {
	t.Helper()
	var sent sync.WaitGroup
	sent.Go(func() { _, _ = io.WriteString(conn, send) })
	got := make([]byte, length)
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, err := io.ReadFull(conn, got)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		t.Errorf("%.60q: %v", send, err)
	}
	sent.Wait()
	return string(got[:n])
}

// bulks is a command as clients send it.
func bulks(words ...string) string {
	var b strings.Builder
	_, _ = b.WriteString("*" + strconv.Itoa(len(words)) + "\r\n")
	for _, w := range words {
		_, _ = b.WriteString("$" + strconv.Itoa(len(w)) + "\r\n" + w + "\r\n")
	}
	return b.String()
}

const hello3 = "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n" +
	"$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n" +
	"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"

// both runs a test over connections in memory and over TCP, where loops serve clients that count.
// Each connection is to a door of its own.
func both(t *testing.T, test func(t *testing.T, conn net.Conn)) {
	t.Run("pipe", func(t *testing.T) { test(t, open(t)()) })
	t.Run("tcp", func(t *testing.T) {
		l := listen(t)
		openTCP(t, l)
		test(t, dialTCP(t, l))
	})
}

// Each exchange is of a connection of its own: what a client sends, and all that it reads.
func TestExchanges(t *testing.T) {
	hello2 := strings.NewReplacer("%7", "*14", ":3\r\n", ":2\r\n").Replace(hello3)
	join := func(parts ...string) string { return strings.Join(parts, "") }
	for name, e := range map[string]struct{ send, want string }{
		"counting": {bulks("INCR", "order") + bulks("incrby", "order", "10") + "INCR order\r\n" + bulks("GET",
			"order"), ":1\r\n:11\r\n:12\r\n$2\r\n13\r\n"},
		"errors": {bulks("INCR", "full") + bulks("INCR", "away") + bulks("INCR", "busy") + bulks("INCRBY", "order",
			"51"),
			"-ERR march: tag full: no ID is left  +OK\r\n-TRYAGAIN march: etcd is away\r\n-TRYAGAIN march: too many; " +
				"try again after 1m30s\r\n-ERR march: count: 51; " +
				"allowed: 1 to 50\r\n"},
		"missing": {bulks("GET", "missing") + bulks("EXISTS", "missing", "order") + bulks("MGET", "order",
			"missing"), "$-1\r\n:1\r\n*2\r\n$1\r\n1\r\n$-1\r\n"},
		"null of RESP3": {bulks("HELLO", "3") + bulks("GET", "missing"), hello3 + "_\r\n"},
		"creating": {bulks("SET", "missing", "41", "NX") + bulks("SET", "order", "1", "nx") + bulks("SETNX",
			"missing", "1") + bulks("SETNX", "order", "1"), "+OK\r\n$-1\r\n:1\r\n:0\r\n"},
		"bad numbers": {bulks("INCRBY", "order", "x") + bulks("SET", "missing", "-1", "NX") + bulks("SELECT",
			"x") + bulks("SELECT", "1") + bulks("SELECT", "0"),
			"-ERR value is not an integer or out of range\r\n-ERR " +
				"value is not an integer or out of range: a tag's IDs begin at 0 or above\r\n-ERR value is not an " +
				"integer or out of range\r\n-ERR DB index is out of range\r\n+OK\r\n"},
		"not served": {bulks("DEL", "order") + bulks("FOO", "a", "b") + bulks("INCR"),
			"-ERR march: DEL is not served: a tag is deleted with `march tag delete`\r\n-ERR unknown command 'FOO', " +
				"with args beginning with: 'a' 'b' \r\n-ERR wrong number of arguments for 'incr' command\r\n"},
		"transaction": {bulks("MULTI") + bulks("INCR", "order") + bulks("INCR", "full") + bulks("EXEC") + bulks("EXEC"),
			"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n-ERR march: tag full: no ID is left  +OK\r\n-ERR EXEC " +
				"without MULTI\r\n"},
		"aborted": {bulks("MULTI") + bulks("FOO") + bulks("INCR", "order") + bulks("EXEC") + bulks("MULTI") + bulks(
			"DISCARD"), "+OK\r\n-ERR unknown command 'FOO', with args beginning with: " +
			"\r\n+QUEUED\r\n-EXECABORT Transaction discarded because of previous errors.\r\n+OK\r\n+OK\r\n"},
		"no password": {bulks("AUTH", "x") + bulks("AUTH", "default", "x") + bulks("AUTH", "u", "x"),
			"-ERR AUTH <password> called without any password configured for the default user. " +
				"Are you sure your configuration is correct?\r\n+OK\r\n-WRONGPASS invalid username-password pair or " +
				"user is disabled.\r\n"},
		"hello": {bulks("HELLO", "4") + bulks("HELLO", "x") + bulks("HELLO") + bulks("HELLO", "3", "AUTH",
			"default", "x", "SETNAME", "n") + bulks("CLIENT", "GETNAME"),
			"-NOPROTO unsupported protocol version\r\n-ERR Protocol version is not an integer or out of range\r\n" +
				hello2 + hello3 + "$1\r\nn\r\n"},
		// A page of any site can have a browser post such a body. Before, its commands were executed.
		"post": {"POST / HTTP/1.1\r\nContent-Type: text/plain\r\n\r\nSETNX evil 2\r\nINCR order\r\n", ""},
		"fetch": {"GET /order HTTP/1.1\r\nHost: march\r\n\r\nINCR order\r\n",
			"-ERR wrong number of arguments for 'get' command\r\n"},
		"another method": {"QUERY /order HTTP/1.1\r\nHost: march\r\n\r\nINCR order\r\n", ""},
		"HTTP/2":         {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nINCR order\r\n", ""},
		"upper":          {bulks("PING") + "HOST: march\r\nPING\r\n", "+PONG\r\n"},
		"quit": {bulks("PING") + bulks("PING", "x") + bulks("ECHO",
			"y") + bulks("RESET") + bulks("QUIT") + bulks("PING"), "+PONG\r\n$1\r\nx\r\n$1\r\ny\r\n+RESET\r\n+OK\r\n"},
		"no protocol": {bulks("PING") + "*1\r\n:5\r\n", "+PONG\r\n-ERR Protocol error: expected '$', got ':'\r\n"},

		// As clients connect that are not recorded, and count.
		"redis-py 8": {
			join(bulks("HELLO", "3"), bulks("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type",
				"external-ip"), bulks("CLIENT", "SETINFO", "LIB-NAME", "redis-py"), bulks("CLIENT", "SETINFO",
				"LIB-VER", "8.0.0"), bulks("SELECT", "0"), bulks("MULTI"),
				bulks("INCRBY", "order", "1"), bulks("EXEC")),
			hello3 + "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT " +
				"HELP.\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n:1\r\n",
		},
		"jedis 8": {
			join(bulks("HELLO", "3"), bulks("CLIENT", "SETINFO", "LIB-NAME", "jedis"),
				bulks("CLIENT", "SETINFO", "LIB-VER", "8.0.0"), bulks("INCR", "order")),
			hello3 + "+OK\r\n+OK\r\n:1\r\n",
		},
		"lettuce": {
			join(bulks("HELLO", "3", "SETNAME", "app"), bulks("CLIENT", "SETINFO", "lib-name", "Lettuce"),
				bulks("CLIENT", "SETINFO", "lib-ver", "6.5"), bulks("PING"), bulks("INCR", "order")),
			hello3 + "+OK\r\n+OK\r\n+PONG\r\n:1\r\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, conn net.Conn) {
				if got := exchange(t, conn, e.send, len(e.want)); got != e.want {
					t.Errorf("got  %q\nwant %q", got, e.want)
				}
			})
		})
	}
	if got := exchange(t, open(t)(), bulks("INFO"), 120); !strings.Contains(got, "\r\nloading:0\r\n") {
		t.Errorf("info: %q", got)
	}
}

// Before AUTH a client of a room that lets no anonymous caller in gets what Redis gives: nothing, not even PING.
func TestBeforeAuth(t *testing.T) {
	at := openRoom(t, &counters{token: "good"})()
	const noauth = "-NOAUTH Authentication required.\r\n"
	send, want := "", ""
	for _, command := range []string{"PING", "ECHO x", "INFO", "SELECT 0", "CLIENT ID", "CONFIG GET *", "COMMAND",
		"MULTI", "EXEC", "DISCARD", "UNWATCH"} {
		send, want = send+command+"\r\n", want+noauth
	}
	send += "HELLO 3\r\nAUTH bad\r\nRESET\r\nAUTH good\r\nPING\r\nRESET\r\nPING\r\n" +
		"HELLO 3 AUTH u good\r\nPING\r\nQUIT\r\n"
	want += "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH " +
		"<user> <pass> option can be used to authenticate the client and select the RESP protocol version at the " +
		"same time\r\n-WRONGPASS invalid username-password pair or user is disabled.\r\n+RESET\r\n+OK\r\n" +
		"+PONG\r\n+RESET\r\n" + noauth + hello3 + "+PONG\r\n+OK\r\n"
	if got := exchange(t, at, send, len(want)); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A client that sends half a command, or nothing, is cut off in time; one that is between
// commands has longer.
func TestSilence(t *testing.T) {
	for send, after := range map[string]time.Duration{"": 30 * time.Minute, "*2\r\n$4\r\nINCR\r\n": 10 * time.Second,
		bulks("MULTI"): 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			conn := open(t)()
			began := time.Now()
			if _, err := io.WriteString(conn, send); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(conn); err != nil {
				t.Error(err)
			}
			if passed := time.Since(began); passed != after {
				t.Errorf("%q: cut off after %v, want %v", send, passed, after)
			}
		})
	}
}

// A byte now and then does not keep half a command. Commands of a transaction do, each for its time.
func TestSlowBytes(t *testing.T) {
	for name, test := range map[string]struct {
		first, then string
		after       time.Duration
	}{
		"half a command": {"*2\r\n$4\r\nINCR\r\n$9\r\n", "x", 10 * time.Second},
		"a transaction":  {bulks("MULTI"), bulks("INCR", "order"), 110 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := open(t)()
				began := time.Now()
				var sent sync.WaitGroup
				defer sent.Wait()
				sent.Go(func() {
					_, err := io.WriteString(conn, test.first)
					for n := 0; n < 20 && err == nil; n++ {
						time.Sleep(5 * time.Second)
						_, err = io.WriteString(conn, test.then)
					}
				})
				if _, err := io.ReadAll(conn); err != nil {
					t.Error(err)
				}
				if passed := time.Since(began); passed != test.after {
					t.Errorf("cut off after %v, want %v", passed, test.after)
				}
			})
		})
	}
}

// The door answers any bytes or closes the connection, and goes on for other clients.
func TestGarbage(t *testing.T) {
	dial := open(t)
	dice := rand.New(rand.NewPCG(1, 2))
	parts := []string{"*", "$", "\r\n", "-1", "3", "INCR", "order", "\x00", "99999999999", " ", "'", bulks("MULTI"),
		bulks("INCR", "order"), bulks("HELLO", "3")}
	for range 2000 {
		var b bytes.Buffer
		for range 1 + dice.IntN(50) {
			_, _ = b.WriteString(parts[dice.IntN(len(parts))])
		}
		conn := dial()
		var sent sync.WaitGroup
		sent.Go(func() {
			_, _ = conn.Write(b.Bytes())
			_, _ = io.WriteString(conn, "\r\n") // may be refused: it was closed
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		})
		_, _ = io.Copy(io.Discard, conn)
		sent.Wait()
		_ = conn.Close()
	}
	if got := exchange(t, dial(), bulks("PING"), 7); got != "+PONG\r\n" {
		t.Errorf("after it: %q", got)
	}
}

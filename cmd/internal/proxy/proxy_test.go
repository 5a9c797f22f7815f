package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/march-id/march/cmd/internal/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers each line with itself.
func echo(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

func start(t *testing.T) (*proxy.Link, func() net.Conn) {
	t.Helper()
	link := proxy.New(echo(t))
	listener, err := proxy.Listen(link)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		link.Close()
	})
	return link, func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := fmt.Fprintln(conn, text); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	got, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || got != want+"\n" {
		t.Fatalf("heard %q, %v; want %q", got, err, want)
	}
}

// hearNothing waits for a moment. On a slow machine it may miss data that comes late.
func hearNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	var b [1]byte
	if n, err := conn.Read(b[:]); n != 0 || err == nil {
		t.Fatalf("heard %q", b[:n])
	}
}

// Data that is held in either direction arrives when the link is released, on old and on new
// connections.
func TestHold(t *testing.T) {
	for _, fault := range []proxy.Fault{{HoldUp: true}, {HoldDown: true}, {HoldUp: true, HoldDown: true}} {
		t.Run(fmt.Sprintf("%+v", fault), func(t *testing.T) {
			link, dial := start(t)
			conn := dial()
			say(t, conn, "one")
			hear(t, conn, "one")
			link.Set(fault)
			fresh := dial()
			say(t, conn, "two")
			say(t, fresh, "three")
			hearNothing(t, conn)
			hearNothing(t, fresh)
			link.Set(proxy.Fault{})
			hear(t, conn, "two")
			hear(t, fresh, "three")
		})
	}
}

func TestCutAndRefuse(t *testing.T) {
	link, dial := start(t)
	conn := dial()
	say(t, conn, "one")
	hear(t, conn, "one")
	link.Set(proxy.Fault{HoldUp: true})
	say(t, conn, "two")
	if n := link.Cut(); n != 1 {
		t.Errorf("%d connections were cut", n)
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if b, err := io.ReadAll(conn); len(b) != 0 || err == nil {
		t.Errorf("heard %q, %v", b, err)
	}
	link.Set(proxy.Fault{Refuse: true})
	// The reset may come before the connection is made, or after.
	if refused, err := net.Dial("tcp", conn.RemoteAddr().String()); err == nil {
		_ = refused.SetReadDeadline(time.Now().Add(30 * time.Second))
		if b, err := io.ReadAll(refused); len(b) != 0 || err == nil {
			t.Errorf("heard %q, %v", b, err)
		}
		_ = refused.Close()
	}
	link.Set(proxy.Fault{})
	again := dial()
	say(t, again, "three")
	hear(t, again, "three")
}

func TestDelayAndRate(t *testing.T) {
	link, dial := start(t)
	conn := dial()
	for _, fault := range []proxy.Fault{{Delay: 30 * time.Millisecond}, {Rate: 200}} {
		link.Set(fault)
		began := time.Now()
		say(t, conn, "seven")
		hear(t, conn, "seven")
		if took := time.Since(began); took < 60*time.Millisecond {
			t.Errorf("%+v: there and back in %v", fault, took)
		}
	}
}

// Socks chooses the link by the address that a caller dials.
func TestSocks(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Host)
	}))
	defer server.Close()
	link := proxy.New(server.Listener.Addr().String())
	defer link.Close()
	listener, err := proxy.Socks(func(address netip.AddrPort) *proxy.Link {
		if address == netip.MustParseAddrPort("203.0.113.2:2380") {
			return link
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "socks5", Host: listener.Address()})}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	answer, err := client.Get("http://203.0.113.2:2380/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if b, err := io.ReadAll(answer.Body); string(b) != "203.0.113.2:2380" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if answer, err := client.Get("http://203.0.113.3:2380/"); err == nil {
		_ = answer.Body.Close()
		t.Error("an unknown address was reached")
	}
}

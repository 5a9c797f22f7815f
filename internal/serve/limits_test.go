package serve_test

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	marchv1 "github.com/march-id/march/api/march/v1"

	"github.com/march-id/march/internal/testcluster"
)

// TestLimits sends requests that are too large.
func TestLimits(t *testing.T) {
	r := start(t, time.Second)
	if code := status.Code(r.next(strings.Repeat("x", 2000))); code != codes.ResourceExhausted {
		t.Errorf("a request beyond MaxRequest: %v", code)
	}
	big := metadata.AppendToOutgoingContext(bg, "x", strings.Repeat("x", 20<<10))
	if _, err := r.client.Next(big, &marchv1.NextRequest{Tag: "fast"}); err == nil {
		t.Error("20 KiB of metadata were taken")
	}
	some := metadata.AppendToOutgoingContext(bg, "x", strings.Repeat("x", 8<<10))
	if _, err := r.client.Next(some, &marchv1.NextRequest{Tag: "fast"}); err != nil {
		t.Errorf("8 KiB of metadata: %v", err)
	}
	if got := r.send(t, "GET /livez HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 32<<10)+
		"\r\n\r\n"); !strings.Contains(got, " 431 ") {
		t.Errorf("32 KiB of HTTP headers: %q", got)
	}
	for request, want := range map[string]string{
		"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n":                       " 200 ",
		"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n":                      " 200 ",
		"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n": " 405 ",
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n":                    " 404 ",
		"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n":                 " 421 ",
		"GET /../livez HTTP/1.1\r\nHost: localhost\r\n\r\n":            " 30",
		"\x00\xff\r\n\r\n": " 400 ",
	} {
		if got := r.send(t, request); !strings.Contains(got, want) {
			t.Errorf("%.30q: got %q, want %q", request, got, want)
		}
	}
	why := errors.New("starting")
	r.ready.Store(&why)
	if got := r.get(t, "/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d", got)
	}
}

// TestSlowClients has clients that send nothing, or a byte now and then: the server cuts them
// off.
func TestSlowClients(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		r := start(t, time.Second)
		conn := must(testcluster.DialContext(t.Context(), r.http))(t)
		defer conn.Close()
		began := time.Now()
		cut := make(chan struct{})
		go func() {
			defer close(cut)
			_, _ = conn.Read(make([]byte, 1))
		}()
		fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nX: ")
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		never := time.After(time.Minute)
		for {
			select {
			case <-cut:
				if took := time.Since(began); took < 4*time.Second {
					t.Errorf("cut off after %v, want 5 s", took)
				}
				return
			case <-ticker.C:
				fmt.Fprint(conn, "x")
			case <-never:
				t.Fatal("the client is never cut off")
			}
		}
	})
}

// send sends bytes to the HTTP side and returns the first line of the answer.
func (r *running) send(t *testing.T, request string) string {
	t.Helper()
	conn := must(testcluster.DialContext(t.Context(), r.http))(t)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(conn, request)
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return line
}

func (r *running) get(t *testing.T, path string) int {
	t.Helper()
	client := testcluster.Client()
	answer, err := client.Get("http://" + r.http + path)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

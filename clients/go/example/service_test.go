package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/march-id/march/api/client"
	"github.com/march-id/march/api/client/clienttest"
	"github.com/march-id/march/console"
	"github.com/march-id/march/console/web"
	"github.com/march-id/march/marchtest"
	"github.com/march-id/march/room"
	"github.com/march-id/march/server"
)

func post(service http.Handler) (code int, body string) {
	w := httptest.NewRecorder()
	service.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders", http.NoBody))
	return w.Code, w.Body.String()
}

// A unit test, which needs no room.
func TestOrdersWithoutARoom(t *testing.T) {
	ids := clienttest.New(1000, 250, 500)
	service := orders(ids)
	if code, body := post(service); code != http.StatusOK || body != `{"order":"250"}` {
		t.Errorf("%d: %s", code, body)
	}
	ids.Fail("order", client.Unavailable)
	if code, _ := post(service); code != http.StatusServiceUnavailable {
		t.Errorf("no IDs: %d", code)
	}
}

// An integration test: the service goes on while etcd is away.
func TestOrders(t *testing.T) {
	march := marchtest.Start(t, marchtest.Rooms("eu", "us"), marchtest.Boundary(1000))
	service := orders(march.Client("us"))
	if code, body := post(service); code != http.StatusOK || body != `{"order":"500"}` {
		t.Errorf("%d: %s", code, body)
	}
	march.StopEtcd()
	if code, body := post(service); code != http.StatusOK || body != `{"order":"501"}` {
		t.Errorf("without etcd: %d: %s", code, body)
	}
}

// A program of another module can fill all settings of rooms and consoles.
func TestConfig(t *testing.T) {
	gate, err := server.NewGate(server.GateConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r, c := room.DefaultConfig(), console.DefaultConfig()
	r.Access, r.Metrics, r.Limits = gate, server.NewMetrics("test", nil), server.Limits{CallerStreams: 10}
	r.Diagnose = server.NewDiagnoser(server.DiagnoserConfig{Build: "test"})
	c.Access, c.Metrics, c.Login = gate, server.NewMetrics("test", nil), web.LoginConfig{Lasts: time.Hour}
	if r.Metrics == nil || r.Diagnose == nil || c.Metrics == nil {
		t.Error("a setting is empty")
	}
}

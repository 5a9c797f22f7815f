package console_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/console"
	"github.com/march-id/march/internal/testcluster"
)

// TestLongHistory: histories of more than a day come from Prometheus, with the migrations and with
// rooms that it does not know. Shorter ones do not ask it.
func TestLongHistory(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	var down atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w,
			`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"room":"a"},"values":[[`+
				r.FormValue("end")+`,"7"]]}]}}`)
	}))
	t.Cleanup(server.Close)
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "ann")
	n := c.Console(func(cfg *console.Config) { cfg.Prometheus.URL = server.URL })
	planned, err := n.PlanMigration(t.Context(), &marchv1.PlanMigrationRequest{Move: []string{"a:25-50=b"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.ApplyMigration(t.Context(), &marchv1.ApplyMigrationRequest{Plan: planned.GetPlan()}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.GetHistory(t.Context(), &marchv1.GetHistoryRequest{Minutes: 1440, Step: 60}); err != nil ||
		asked.Load() > 0 {
		t.Errorf("a day: %v, asked %d times", err, asked.Load())
	}
	week := &marchv1.GetHistoryRequest{Minutes: 7 * 24 * 60, Step: 120}
	r, err := n.GetHistory(t.Context(), week)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.GetRooms()) != 2 || r.GetRooms()[0].GetAll().GetRates()[83] != 7 ||
		r.GetRooms()[1].GetAll().GetRates()[83] != -1 || len(r.GetMigrations()) != 1 ||
		r.GetStep() != 120 || len(r.GetSilent()) > 0 {
		t.Errorf("a week: %v", r)
	}
	down.Store(true)
	if _, err := n.GetHistory(t.Context(), &marchv1.GetHistoryRequest{Minutes: 7 * 24 * 60, Step: 60}); status.Code(
		err) != codes.Unavailable || !strings.Contains(err.Error(),
		"not as a Prometheus does (503 Service Unavailable)") {
		t.Errorf("without Prometheus: %v", err)
	}
	if _, err := n.GetHistory(t.Context(), &marchv1.GetHistoryRequest{Minutes: 7 * 24 * 60, Step: 7}); status.Code(
		err) != codes.InvalidArgument {
		t.Errorf("a wrong step: %v", err)
	}
	if _, err := c.Console(nil).GetHistory(t.Context(), week); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "a console with --prometheus has more") {
		t.Errorf("of a console without a Prometheus: %v", err)
	}
}

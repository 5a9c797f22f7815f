package client_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	metricsdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/march-id/march/allocator/ledger/ledgertest"
	"github.com/march-id/march/api/client"
	"github.com/march-id/march/api/client/clientotel"
	"github.com/march-id/march/api/client/clientprom"
	"github.com/march-id/march/internal/testcluster"
)

// What Lease returns is of the room's range, and neither it nor a tag's own IDs come twice.
func TestLease(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		ids := newClient(t, client.Options{Addresses: []string{a.address}})
		var got issued
		for range 3 {
			segment, err := ids.Lease(t.Context(), "order", 70)
			if err != nil || segment.Count != 70 || !segment.Until.After(time.Now()) {
				t.Fatalf("%v, %v", segment, err)
			}
			for run := range segment.Runs() {
				got.add(run)
			}
			runs, err := ids.NextN(t.Context(), "order", 60)
			if err != nil || len(slices.Collect(runs.IDs())) != 60 {
				t.Fatalf("%v, %v", runs, err)
			}
			got.add(runs...)
		}
		got.unique(t, "a", testcluster.Halves())
		for _, n := range []int64{0, 1_000_000_001} {
			_, err := ids.Lease(t.Context(), "order", n)
			ledgertest.WantKind(t, err, client.Invalid, "count: ")
		}
		ids.Close()
		if _, err := ids.Lease(t.Context(), "order", 1); err != error(client.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// A client with a console keeps the layout, and follows it.
func TestLayout(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		console, stopConsole := c.console()
		ids := newClient(t, discover(console))
		if got, err := ids.RoomOf(t.Context(), 275); err != nil || got != "b" {
			t.Errorf("%s, %v", got, err)
		}
		c.Change(layout(100, 0, 50, 50, 70), "test")
		testcluster.Await(t, "the new layout", func() bool {
			_, err := ids.RoomOf(t.Context(), 275)
			return client.KindOf(err) == client.NotFound
		})
		stopConsole()
		time.Sleep(10 * time.Second)
		if got, err := ids.Decode(t.Context(), 269); err != nil ||
			got != (client.Place{Version: 2, Block: 2, Residue: 69, Room: "b"}) {
			t.Errorf("%+v, %v", got, err)
		}
		mine, err := ids.Layout(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		clear(mine.Ranges)
		if got, err := ids.RoomOf(t.Context(), 269); err != nil || got != "b" {
			t.Errorf("after the caller changed what it got: %q, %v", got, err)
		}
		_, err = ids.Decode(t.Context(), -1)
		ledgertest.WantKind(t, err, client.Invalid, "id: -1")
		_, err = newClient(t, client.Options{Addresses: []string{a.address}}).RoomOf(t.Context(), 1)
		ledgertest.WantKind(t, err, client.Refused, "Options.Discover")
		ids.Close()
		if _, err := ids.RoomOf(t.Context(), 269); err != error(client.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// Prometheus and OpenTelemetry get a client's metrics, and slog gets its log.
func TestMetricsAndSlog(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.room("a", "a1")
		var log bytes.Buffer
		ids := newClient(t, client.Options{Addresses: []string{a.address},
			Slog: slog.New(slog.NewTextHandler(&log, nil))})
		for range 3 {
			if _, err := ids.Next(t.Context(), "order"); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]float64{"march_client_ids_issued_total": 3, "march_client_leases_total": 1,
			"march_client_failing": 0}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(clientprom.New(ids))
		families, err := registry.Gather()
		if err != nil || len(families) != len(client.Metrics()) {
			t.Errorf("%d families, %v", len(families), err)
		}
		for _, family := range families {
			m := family.GetMetric()[0]
			got := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if w, ok := want[family.GetName()]; ok && got != w || m.GetLabel()[0].GetValue() != "order" {
				t.Errorf("%s: %v, want %v", family.GetName(), m, w)
			}
		}

		reader := metricsdk.NewManualReader()
		meter := metricsdk.NewMeterProvider(metricsdk.WithReader(reader)).Meter("test")
		registration, err := clientotel.Observe(ids, meter)
		if err != nil {
			t.Fatal(err)
		}
		var all metricdata.ResourceMetrics
		if err := reader.Collect(t.Context(), &all); err != nil || len(all.ScopeMetrics) != 1 {
			t.Fatalf("%v, %v", all, err)
		}
		found := 0
		for _, m := range all.ScopeMetrics[0].Metrics {
			var points []metricdata.DataPoint[float64]
			switch data := m.Data.(type) {
			case metricdata.Sum[float64]:
				points = data.DataPoints
			case metricdata.Gauge[float64]:
				points = data.DataPoints
			}
			tag, _ := points[0].Attributes.Value(attribute.Key("tag"))
			if w, ok := want[m.Name]; ok && points[0].Value == w && tag.AsString() == "order" {
				found++
			}
		}
		if found != len(want) || registration.Unregister() != nil {
			t.Errorf("found %d of %d", found, len(want))
		}
		ids.Close()
		if !strings.Contains(log.String(), `level=INFO msg="room leases IDs" address=`) {
			t.Errorf("log: %s", log.String())
		}
	})
}

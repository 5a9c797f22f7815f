package room_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

var services = []string{"", "march.v1.IDService", "march.v1.RoomService"}

func (i *instance) health(service string) healthpb.HealthCheckResponse_ServingStatus {
	r, err := healthpb.NewHealthClient(i.Conn).Check(bg, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		return healthpb.HealthCheckResponse_UNKNOWN
	}
	return r.GetStatus()
}

// TestHealth checks the health of an instance before it is ready, while it is ready, and
// while it stops.
func TestHealth(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		c.tag(nil, "order")
		warm := make(chan struct{})
		c.onTxn = func(txn store.Txn) {
			for _, op := range txn.Then {
				if op.Put != nil && op.Put.Key == "/march/default/marks/a/order" {
					<-warm
				}
			}
		}
		a := c.launch("a", "a1", func(cfg *room.Config) {
			cfg.WarmTags, cfg.Drain = []allocator.Tag{"order"}, 20*time.Second
		})
		a.await("registered", func() bool { return c.registered("a", "a1") != nil })
		a.await("http", func() bool { code, _ := a.get("/livez"); return code == http.StatusOK })
		if code, body := a.get("/readyz"); code != http.StatusServiceUnavailable || !contains(body, "starting") {
			t.Errorf("before: readyz %d %q", code, body)
		}
		a.check(healthpb.HealthCheckResponse_NOT_SERVING)
		close(warm)
		a.await("ready", func() bool { code, _ := a.get("/readyz"); return code == http.StatusOK })
		a.await("serving", func() bool { return a.health("") == healthpb.HealthCheckResponse_SERVING })
		a.check(healthpb.HealthCheckResponse_SERVING)
		if code, _ := a.get("/nothing"); code != http.StatusNotFound {
			t.Errorf("/nothing: %d", code)
		}

		// A call under way keeps the instance from stopping, so the test can check its health.
		release := make(chan struct{})
		a.store.onTxn(func(store.Txn) { <-release })
		watch, err := healthpb.NewHealthClient(a.Conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := watch.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("watch: %v, %v", r, err)
		}
		a.Cancel()
		if r, err := watch.Recv(); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("watch: %v, %v", r, err)
		}
		a.await("not ready", func() bool {
			code, body := a.get("/readyz")
			return code == http.StatusServiceUnavailable && contains(body, "stopping")
		})
		if code, _ := a.get("/livez"); code != http.StatusOK {
			t.Errorf("livez while it drains: %d", code)
		}
		close(release)
		_ = a.Conn.Close()
		if err := a.Wait(); err != nil {
			t.Error(err)
		}
		if code, _ := a.get("/livez"); code != 0 {
			t.Errorf("livez after the end: %d", code)
		}
	})
}

func (i *instance) check(want healthpb.HealthCheckResponse_ServingStatus) {
	i.Helper()
	for _, service := range services {
		if got := i.health(service); got != want {
			i.Errorf("health of %q: %v, want %v", service, got, want)
		}
	}
}

func TestReflection(t *testing.T) {
	testcluster.Bubble(t, func(t *testing.T) {
		c := newCluster(t, testcluster.Halves())
		a := c.start("a", "a1", nil)
		stream, err := reflectionpb.NewServerReflectionClient(a.Conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		list := &reflectionpb.ServerReflectionRequest_ListServices{}
		if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: list}); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range r.GetListServicesResponse().GetService() {
			got = append(got, s.GetName())
		}
		for _, want := range append(services[1:], "grpc.health.v1.Health") {
			if !slices.Contains(got, want) {
				t.Errorf("%s is not among %v", want, got)
			}
		}
	})
}

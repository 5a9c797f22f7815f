//go:build live

package prometheus_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/march-id/march/console/history"
	"github.com/march-id/march/console/prometheus"
	"github.com/march-id/march/internal/minutes"
	"github.com/march-id/march/internal/programs"
)

// every is how far apart the samples of the test are.
const every = 5 * time.Minute

// past writes metrics of rooms from two days before end on, as the rooms show them, in OpenMetrics.
// Room a has two instances, one of which starts again after a day, and room b one instance that
// begins after a day. Another cluster has a room a, too.
func past(end time.Time) string {
	var b strings.Builder
	line := func(name, labels string, value func(seconds float64) float64) {
		for at := end.Add(-48 * time.Hour); !at.After(end); at = at.Add(every) {
			if v := value(at.Sub(end.Add(-48 * time.Hour)).Seconds()); v >= 0 {
				fmt.Fprintf(&b, "%s{%s} %g %d\n", name, labels, v, at.Unix())
			}
		}
	}
	const day = 86400
	rises := func(perSecond float64) func(float64) float64 {
		return func(s float64) float64 { return perSecond * s }
	}
	restarts := func(perSecond float64) func(float64) float64 {
		return func(s float64) float64 {
			if s > day {
				s -= day
			}
			return perSecond * s
		}
	}
	late := func(perSecond float64) func(float64) float64 {
		return func(s float64) float64 { return perSecond*(s-day) - 1e-9 }
	}
	flat := func(v float64) func(float64) float64 { return func(float64) float64 { return v } }
	const a1, a2, b1, other = `cluster="prod",instance="a1:7020",room="a"`,
		`cluster="prod",instance="a2:7020",room="a"`, `cluster="prod",instance="b1:7020",room="b"`,
		`cluster="test",instance="x:7020",room="a"`
	line("march_chain_issued_ids_total", a1+`,tag="order"`, rises(10))
	line("march_chain_issued_ids_total", a1+`,tag="(other)"`, rises(1))
	line("march_chain_issued_ids_total", a2+`,tag="order"`, restarts(20))
	line("march_chain_issued_ids_total", b1+`,tag="item"`, late(5))
	line("march_chain_issued_ids_total", other+`,tag="order"`, rises(1000))
	for n := range 25 { // of which the busiest are to be told
		line("march_chain_issued_ids_total", a1+fmt.Sprintf(`,tag="rare-%02d"`, n), rises(.0001*float64(n+1)))
	}
	line("march_time_issued_ids_total", a1, rises(4))
	line("march_chain_requests_total", a1+`,tag="order"`, rises(10))
	line("march_chain_requests_total", a1+`,tag="idle"`, flat(7))
	line("march_chain_reserve_seconds", a1+`,tag="order"`, func(s float64) float64 {
		return 600 - 300*float64(int(s)/day)
	})
	line("march_chain_reserve_seconds", a1+`,tag="idle"`, flat(1))
	for _, bucket := range []struct {
		le     string
		faster float64
	}{{"0.001", .5}, {"0.01", 1}, {"+Inf", 1}} {
		line("march_etcd_transaction_seconds_bucket", a1+`,le="`+bucket.le+`"`, rises(bucket.faster))
	}
	line("march_etcd_away_seconds", a1, func(s float64) float64 {
		switch {
		case s == 3600*10+1800:
			return 95
		case s == 3600*20+1800:
			return 10
		}
		return 0
	})
	line("march_requests_total", a1+`,method="march.v1.IDService/Next",code="OK"`, rises(10))
	line("march_requests_total", a1+`,method="march.v1.IDService/Next",code="Unavailable"`, rises(.01))
	line("march_requests_total", a1+`,method="march.v1.IDService/Next",code="NotFound"`, rises(3))
	line("march_http_requests_total", a1+`,route="POST /v1/tags/{tag}/next",class="5xx"`, rises(.02))
	return b.String() + "# EOF\n"
}

// start starts a Prometheus that has the metrics of past, and returns its address.
func start(t *testing.T, end time.Time) string {
	t.Helper()
	server, tool := programs.Find(t, "prometheus"), programs.Find(t, "promtool")
	dir := t.TempDir()
	file, data, config := filepath.Join(dir, "metrics"), filepath.Join(dir, "data"),
		filepath.Join(dir, "prometheus.yml")
	for path, content := range map[string]string{file: past(end), config: "global: {}\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(tool, "tsdb", "create-blocks-from", "openmetrics", file,
		data).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := exec.Command(server, "--config.file="+config, "--storage.tsdb.path="+data,
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(20 * time.Millisecond) {
		r, err := client.Get("http://" + address + "/-/ready")
		if err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return "http://" + address
			}
		}
		select {
		case <-ended:
			t.Fatalf("Prometheus ended:\n%s", out.String())
		default:
		}
	}
	t.Fatal("Prometheus is not ready in time")
	return ""
}

// TestHistory asks a Prometheus for all that a history has.
func TestHistory(t *testing.T) {
	t.Parallel()
	s := span()
	end := s.First.Add(48 * time.Hour)
	at := start(t, end)
	told, err := newClient(t, prometheus.Config{URL: at, Cluster: "prod"}).History(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	rooms, tags := history.Merge(s, []string{"a", "b", "c"}, told)
	if len(rooms) != 3 || rooms[0].GetRoom() != "a" || rooms[2].GetRoom() != "c" {
		t.Fatalf("rooms %v", rooms)
	}
	near := func(what string, got float32, want float64) {
		t.Helper()
		if g := float64(got); g < want*.97-.001 || g > want*1.03+.001 {
			t.Errorf("%s is %v, want about %v", what, got, want)
		}
	}
	a, b := rooms[0].GetAll(), rooms[1].GetAll()
	near("the rate of a", a.GetRates()[5], 10+1+20+4+.0001*25*13)
	near("the rate of a in the last hour", a.GetRates()[47], 10+1+20+4+.0001*25*13)
	near("the rate of b once it runs", b.GetRates()[40], 5)
	if v := b.GetRates()[3]; v != minutes.Unknown {
		t.Errorf("the rate of b before it ran is %v", v)
	}
	near("the reserve of a", a.GetReserves()[5], 600)
	near("the reserve of a on the second day", a.GetReserves()[40], 300)
	near("the latency of etcd", a.GetEtcdLatencies()[5], .00982)
	near("the failed calls", a.GetFailed()[5], (.01+.02)*3600)
	for point, want := range map[int]float64{10: 95, 5: 0, 20: 0} {
		near(fmt.Sprintf("etcd's time away in point %d", point), a.GetEtcdAway()[point], want)
	}
	if v := b.GetFailed()[40]; v != 0 {
		t.Errorf("a room without a failed call has %v", v)
	}
	if len(tags) != minutes.MaxTags || tags[0].GetTag() != "order" || tags[1].GetTag() != "item" ||
		tags[19].GetTag() != "rare-07" {
		t.Errorf("the busiest tags are %v", tags)
	}
	near("the rate of order", tags[0].GetRates()[5], 30)
	near("the reserve of order", tags[0].GetReserves()[5], 600)
	if len(tags[0].GetFailed()) > 0 && tags[0].GetFailed()[5] != minutes.Unknown {
		t.Errorf("failed calls of a tag: %v", tags[0].GetFailed()[5])
	}

	all, err := newClient(t, prometheus.Config{URL: at}).History(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	near("the rate of both clusters", all[0].Answer.GetAll().GetRates()[5], 1035)
	none, err := newClient(t, prometheus.Config{URL: at, Cluster: `it's "none"`}).History(t.Context(), s)
	if err != nil || len(none) != 0 {
		t.Errorf("of a cluster that is not there: %v, %v", none, err)
	}
}

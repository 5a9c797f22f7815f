package problem_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
	"github.com/march-id/march/internal/testcluster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A process tells of an etcd that answers, of its disk, and what it was asked for.
func TestDiagnose(t *testing.T) {
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "test")
	dir := t.TempDir()
	counters := prometheus.NewRegistry()
	counters.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "some_total", Help: "Some."}))
	server := problem.NewHost(problem.HostConfig{Build: "v1", Ledger: c.Ledger(), Journal: dir, Metrics: counters})

	got := must(server.Diagnose(t.Context(), &marchv1.DiagnoseRequest{}))(t)
	if e := got.GetEtcd(); e.GetError() != "" || e.GetVersion() == "" || e.GetRevision() == 0 ||
		e.GetLatency().AsDuration() <= 0 || e.GetSize() == 0 {
		t.Errorf("etcd: %v", e)
	}
	if j := got.GetJournal(); j.GetError() != "" || j.GetFree() <= 0 || j.GetSync().AsDuration() <= 0 {
		t.Errorf("journal: %v", j)
	}
	if off := time.Since(got.GetClock().AsTime()).Abs(); off > time.Minute {
		t.Errorf("clock is off by %v", off)
	}
	if got.GetBuild() != "v1" || got.GetMetrics() != "" || got.GetHeap() != nil || got.GetGoroutines() != nil {
		t.Errorf("not asked for: %v", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the journal's directory: %v, %v", left, err)
	}

	got = must(server.Diagnose(t.Context(), &marchv1.DiagnoseRequest{Profiles: true, Metrics: true}))(t)
	if !strings.Contains(got.GetMetrics(), "some_total 0") || len(got.GetHeap()) == 0 || len(got.GetGoroutines()) == 0 {
		t.Errorf("metrics %q, %d bytes of heap, %d of goroutines", got.GetMetrics(),
			len(got.GetHeap()), len(got.GetGoroutines()))
	}
}

// A disk that takes no write is named with its cause.
func TestJournalGone(t *testing.T) {
	c := testcluster.New(t)
	dir := filepath.Join(t.TempDir(), "gone")
	got := must(problem.NewHost(problem.HostConfig{Ledger: c.Ledger(), Journal: dir}).Diagnose(t.Context(),
		&marchv1.DiagnoseRequest{}))(t)
	if j := got.GetJournal(); !strings.Contains(j.GetError(), "gone") || j.GetSync() != nil {
		t.Errorf("journal: %v", j)
	}
}

// Of each file that a setting names, the certificate that ends first is told.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	var file []byte
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	for i, name := range []string{"late", "soon"} {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
			NotAfter: ends.Add(time.Duration(1-i) * time.Hour)}
		der := must(x509.CreateCertificate(rand.Reader, c, c, key.Public(), key))(t)
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	good, empty := filepath.Join(dir, "good.pem"), filepath.Join(dir, "empty.pem")
	for path, content := range map[string][]byte{good: file, empty: []byte("none")} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := testcluster.New(t)
	server := problem.NewHost(problem.HostConfig{Ledger: c.Ledger(), Settings: []*marchv1.Setting{
		{Name: "etcd-cert", Value: good}, {Name: "etcd-ca", Value: empty}, {Name: "etcd-key", Value: good},
		{Name: "tls-cert"}, {Name: "ca", Value: filepath.Join(dir, "gone")},
	}})
	want := fmt.Sprintf(
		`# HELP march_certificate_end_timestamp_seconds When the first certificate of a file ends, by the setting that names the file.
# TYPE march_certificate_end_timestamp_seconds gauge
march_certificate_end_timestamp_seconds{setting="etcd-cert"} %d
`, ends.Unix())
	if err := testutil.CollectAndCompare(server, strings.NewReader(want),
		"march_certificate_end_timestamp_seconds"); err != nil {
		t.Error(err)
	}
	got := must(server.Diagnose(t.Context(), &marchv1.DiagnoseRequest{}))(t)
	all := got.GetCertificates()
	if len(all) != 3 || all[0].GetSubject() != "CN=soon" || !all[0].GetEnds().AsTime().Equal(ends) ||
		all[0].GetError() != "" {
		t.Fatalf("got %v", all)
	}
	if !strings.Contains(all[1].GetError(), "no certificate") || !strings.Contains(all[2].GetError(), "gone") {
		t.Errorf("got %v", all)
	}
}

// must returns the value of a call that may not fail: must(call())(t).
func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}

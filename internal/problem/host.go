package problem

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/store"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/smallfile"
)

// Host answers operators how a process, its host and its etcd do: for `march doctor`, which finds the problems in it, and
// `march debug bundle`. Rooms and consoles serve it. It implements marchv1.DiagnoseServiceServer.
type Host struct {
	marchv1.UnimplementedDiagnoseServiceServer
	cfg   HostConfig
	mu    sync.Mutex // held while a caller is answered: profiles and syncs cost the others
	known struct {   // certificates as they were read last
		sync.Mutex
		at   time.Time
		list []certificate
	}
}

// HostConfig says what a process is.
type HostConfig struct {
	Build  string
	Ledger *ledger.Ledger
	// Journal is the directory of the process's journal; empty for none.
	Journal string
	// Settings are the process's settings, without secrets.
	Settings []*marchv1.Setting
	// Metrics is what the process counts; nil for none.
	Metrics prometheus.Gatherer
	// Now is the process's clock. Default, also for nil: time.Now.
	Now func() time.Time
}

// NewHost returns a Host.
func NewHost(cfg HostConfig) *Host {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Host{cfg: cfg}
}

// Register registers the service. A nil Host registers nothing.
func (s *Host) Register(r grpc.ServiceRegistrar) {
	if s != nil {
		marchv1.RegisterDiagnoseServiceServer(r, s)
	}
}

// Diagnose implements marchv1.DiagnoseServiceServer.
func (s *Host) Diagnose(ctx context.Context, req *marchv1.DiagnoseRequest) (*marchv1.DiagnoseResponse, error) {
	if !s.mu.TryLock() {
		return nil, allocator.Errorf(allocator.Unavailable, "diagnose: another caller is being answered: try again")
	}
	defer s.mu.Unlock()
	answer := &marchv1.DiagnoseResponse{
		Build: s.cfg.Build, Runtime: runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH,
		Etcd: s.etcd(ctx), Settings: s.cfg.Settings, Certificates: statuses(certificates(s.cfg.Settings)),
	}
	if s.cfg.Journal != "" {
		answer.Journal = journalStatus(s.cfg.Journal)
	}
	if req.GetMetrics() && s.cfg.Metrics != nil {
		text, err := metrics(s.cfg.Metrics)
		if err != nil {
			return nil, err
		}
		answer.Metrics = text
	}
	if req.GetProfiles() {
		var err error
		if answer.Goroutines, err = profile("goroutine"); err != nil {
			return nil, err
		}
		if answer.Heap, err = profile("heap"); err != nil {
			return nil, err
		}
	}
	answer.Clock = timestamppb.New(s.cfg.Now()) // last: the caller knows when the answer came
	return answer, nil
}

func (s *Host) etcd(ctx context.Context) *marchv1.EtcdStatus {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Ledger.Patience())
	defer cancel()
	began := time.Now()
	status, err := s.cfg.Ledger.Ping(ctx)
	took := time.Since(began)
	if err != nil {
		return &marchv1.EtcdStatus{Error: err.Error(), Etcdctl: s.cfg.Ledger.Etcdctl()}
	}
	answer := &marchv1.EtcdStatus{
		Etcdctl: s.cfg.Ledger.Etcdctl(),
		Version: status.Version, Size: status.Size, Quota: status.Quota, Revision: status.Revision,
		Latency: durationpb.New(took),
		NoSpace: status.NoSpace, Corrupt: status.Corrupt,
	}
	// While there is no cluster there is no history of it either.
	if compacted, err := admin.New(s.cfg.Ledger, admin.Config{}).Compacted(ctx); err == nil {
		answer.Compacted = compacted
	}
	if clock, err := store.ReadClock(ctx, s.cfg.Ledger.Cluster().Store); err != nil {
		answer.ClockError = err.Error()
	} else {
		answer.ClockAhead, answer.ClockUnsure = durationpb.New(clock.Ahead), durationpb.New(clock.Unsure)
	}
	return answer
}

// journalStatus measures the disk of a journal's directory.
func journalStatus(dir string) *marchv1.JournalStatus {
	answer := &marchv1.JournalStatus{Path: dir}
	if bytes, ok := free(dir); ok {
		answer.Free = &bytes
	}
	took, err := syncTime(filepath.Join(dir, ".march-sync"))
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	answer.Sync = durationpb.New(took)
	return answer
}

// syncTime returns how long it takes to write and sync 4 KiB to a file, which it removes.
func syncTime(path string) (time.Duration, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _, _ = f.Close(), os.Remove(path) }()
	began := time.Now()
	if _, err := f.Write(make([]byte, 4<<10)); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// metrics returns all metrics in the text format.
func metrics(from prometheus.Gatherer) (string, error) {
	families, err := from.Gather()
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// profile returns a profile of this process, compressed.
func profile(name string) ([]byte, error) {
	var b bytes.Buffer
	if err := pprof.Lookup(name).WriteTo(&b, 0); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// maxCertificates bounds a file of certificates, in bytes.
const maxCertificates = 1 << 20

type certificate struct {
	*marchv1.CertificateStatus
	begins time.Time // of the certificate that ends first
}

// certificates reads the files of certificates that settings name: those whose names end in cert
// or ca. The files are read anew, because they are replaced while the process runs.
func certificates(settings []*marchv1.Setting) (list []certificate) {
	for _, s := range settings {
		last := s.GetName()[strings.LastIndexByte(s.GetName(), '-')+1:]
		if s.GetValue() == "" || last != "cert" && last != "ca" {
			continue
		}
		c := certificate{CertificateStatus: &marchv1.CertificateStatus{Setting: s.GetName(), Path: s.GetValue()}}
		if first, err := firstToEnd(s.GetName(), s.GetValue()); err != nil {
			c.Error = err.Error()
		} else {
			c.Subject, c.Ends, c.begins = first.Subject.String(), timestamppb.New(first.NotAfter), first.NotBefore
		}
		list = append(list, c)
	}
	return list
}

// readEvery is how often Certificates reads the files.
const readEvery = time.Minute

func statuses(list []certificate) []*marchv1.CertificateStatus {
	var all []*marchv1.CertificateStatus
	for _, c := range list {
		all = append(all, c.CertificateStatus)
	}
	return all
}

// Certificates returns the certificates that can be read, without the paths of their files, as
// they were at most a minute ago. A nil Host has none.
func (s *Host) Certificates() []*marchv1.CertificateStatus {
	if s == nil {
		return nil
	}
	return statuses(s.readable())
}

// readable returns the certificates that can be read, as they were at most a minute ago.
func (s *Host) readable() []certificate {
	k := &s.known
	k.Lock()
	defer k.Unlock()
	if !k.at.IsZero() && time.Since(k.at) < readEvery {
		return k.list
	}
	k.at, k.list = time.Now(), nil
	for _, c := range certificates(s.cfg.Settings) {
		if c.GetError() == "" {
			c.Path = ""
			k.list = append(k.list, c)
		}
	}
	return k.list
}

var (
	descBegin = prometheus.NewDesc("march_certificate_begin_timestamp_seconds",
		"When the certificate that ends first began, by the setting that names its file.", []string{"setting"}, nil)
	descEnd = prometheus.NewDesc("march_certificate_end_timestamp_seconds",
		"When the first certificate of a file ends, by the setting that names the file.", []string{"setting"}, nil)
)

// Describe implements prometheus.Collector: the metrics tell when certificates end.
func (s *Host) Describe(out chan<- *prometheus.Desc) {
	out <- descBegin
	out <- descEnd
}

// Collect implements prometheus.Collector.
func (s *Host) Collect(out chan<- prometheus.Metric) {
	for _, c := range s.readable() {
		out <- prometheus.MustNewConstMetric(descBegin, prometheus.GaugeValue, float64(c.begins.Unix()), c.GetSetting())
		out <- prometheus.MustNewConstMetric(descEnd, prometheus.GaugeValue,
			float64(c.GetEnds().AsTime().Unix()), c.GetSetting())
	}
}

// firstToEnd returns the certificate of a file (PEM) that ends first.
func firstToEnd(setting, path string) (first *x509.Certificate, err error) {
	content, err := smallfile.Read(setting, path, maxCertificates)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if first == nil || c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	if first == nil {
		return nil, errors.New("it has no certificate (PEM)")
	}
	return first, nil
}

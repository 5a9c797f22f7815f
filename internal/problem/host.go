package problem

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
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
)

// Host answers operators how a process, its host and its etcd do: for `march doctor`, which finds the problems in it, and
// `march debug bundle`. Rooms and consoles serve it. It implements marchv1.DiagnoseServiceServer.
type Host struct {
	marchv1.UnimplementedDiagnoseServiceServer
	cfg   HostConfig
	known known
	mu    sync.Mutex // held while a caller is answered: profiles and syncs cost the others
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

// etcd asks the member in use.
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

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/store"
	"github.com/march-id/march/api/tlsfiles"
)

// clusterFlags say which cluster a server belongs to and how to reach its etcd.
type clusterFlags struct {
	endpoints          []string
	cluster, uuid      string
	user, passwordFile string
	ca, cert, key      string
	auditLog           string
	MaxTags            int64 // a flag of commands that create tags: LimitFlags
}

func (f *clusterFlags) options() []option {
	f.MaxTags = admin.DefaultConfig().MaxTags
	return []option{
		{"etcd", usually(&f.endpoints, []string{"127.0.0.1:2379"}), "etcd's client endpoints, HOST:PORT or URLs, " +
			"separated by commas"},
		{"cluster", usually(&f.cluster, "default"), "the cluster's name: its keys are under /march/NAME/"},
		{"cluster-uuid", &f.uuid, "refuse any other cluster than this one ('march layout show' prints it)"},
		{"etcd-user", &f.user, "etcd user"},
		{"etcd-password-file", &f.passwordFile, "file with the etcd user's password"},
		{"etcd-ca", &f.ca, "file with the CA certificates (PEM) that sign etcd's certificate; turns TLS on. It is " +
			"read again when it changes, as are the next two"},
		{"etcd-cert", &f.cert, "file with this client's certificate (PEM)"},
		{"etcd-key", &f.key, "file with this client's key (PEM)"},
		{"audit-log", &f.auditLog, "file to which this process adds each entry of the audit that it writes, as a " +
			"line of JSON with the entry's hash, for 'march audit verify'; or stdout"},
	}
}

// Open returns the cluster's ledger once etcd has answered.
func (f *clusterFlags) Open(ctx context.Context, w watched, log hclog.Logger) (*ledger.Ledger, error) {
	l, err := f.Ledger(w, log)
	if err != nil {
		return nil, err
	}
	if err := f.Ping(ctx, l); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Ping checks that etcd answers.
func (f *clusterFlags) Ping(ctx context.Context, l *ledger.Ledger) error {
	_, err := f.ask(ctx, l)
	return err
}

// Ledger returns the cluster's ledger; nothing has been asked of etcd.
func (f *clusterFlags) Ledger(w watched, log hclog.Logger) (*ledger.Ledger, error) {
	if f.MaxTags < 1 {
		return nil, allocator.Errorf(allocator.Invalid, "max-tags: %d; allowed: 1 or more", f.MaxTags)
	}
	cfg := store.EtcdConfig{Endpoints: f.endpoints, Username: f.user, Logger: log}
	if f.passwordFile != "" {
		cfg.ReadPassword = passwordFile(f.passwordFile)
		if _, err := cfg.ReadPassword(); err != nil { // not only when it is first asked for
			return nil, err
		}
	}
	var err error
	if cfg.TLS, err = f.tls(log); err != nil {
		return nil, err
	}
	own := ledger.DefaultConfig()
	own.Cluster, own.UUID, own.Etcdctl, own.EtcdUser = f.cluster, f.uuid, f.etcdctl(), f.user
	if own.Audited, err = openAuditLog(f.auditLog, f.cluster, w.Metrics, log); err != nil {
		return nil, err
	}
	return newLedger(cfg, own, w, log)
}

// etcdctl returns the command that asks the same etcd. It has no user: how many members answer is told without one, and
// what an operator mends takes etcd's root.
func (f *clusterFlags) etcdctl() string {
	command := "etcdctl --endpoints=" + strings.Join(shownEndpoints(f.endpoints), ",")
	for _, file := range [][2]string{{"cacert", f.ca}, {"cert", f.cert}, {"key", f.key}} {
		if file[1] != "" {
			command += fmt.Sprintf(" --%s=%s", file[0], file[1])
		}
	}
	return command
}

// shownEndpoints returns endpoints without users and passwords.
func shownEndpoints(endpoints []string) []string {
	list := make([]string, len(endpoints))
	for k, endpoint := range endpoints {
		list[k] = store.WithoutUser(endpoint)
	}
	return list
}

// Admin returns the limits of what a server may create. The metrics count the tags
// that it refuses.
func (w watched) Admin(maxTags int64) admin.Config {
	return admin.Config{MaxTags: maxTags, TooManyTags: w.Metrics.Limit(admin.MaxTags, maxTags).Count}
}

// newLedger returns a ledger on an etcd; nothing has been asked of it.
func newLedger(to store.EtcdConfig, cfg ledger.Config, w watched, log hclog.Logger) (*ledger.Ledger, error) {
	to.Tracer = w.Tracer
	etcd, err := store.NewEtcd(to)
	if err != nil {
		return nil, err
	}
	cfg.Logger, cfg.Tracer = log.Named("ledger"), w.Tracer
	if w.Metrics != nil {
		cfg.Observe = w.Metrics.Transaction
	}
	l, err := ledger.New(etcd, cfg)
	if err != nil {
		return nil, errors.Join(err, etcd.Close())
	}
	if w.Metrics != nil {
		w.Metrics.Ledger(l)
	}
	return l, nil
}

// roomNeeds checks that an instance can register: that etcd has the cluster, is not full, and lets the instance write.
// It asks all that at once, as etcd may be far away.
func (f *clusterFlags) roomNeeds(ctx context.Context, l *ledger.Ledger, r allocator.Room, i allocator.Instance) error {
	ctx, cancel := context.WithTimeout(ctx, etcdAnswersWithin)
	defer cancel()
	var noCluster, noRights error
	var asked sync.WaitGroup
	asked.Go(func() { noCluster = l.Attach(ctx) })
	asked.Go(func() { noRights = l.MayRegister(ctx, r, i) })
	status, err := f.ask(ctx, l)
	if err != nil {
		cancel()
	}
	asked.Wait()
	switch {
	case err != nil:
		return err
	case noCluster != nil:
		return noCluster
	case status.NoSpace:
		return allocator.Errorf(allocator.Unavailable, "etcd: %w; ask it with `%s alarm list`", store.ErrNoSpace,
			l.Etcdctl())
	}
	return noRights
}

// etcdAnswersWithin bounds how long a server that starts waits for one answer: a connection and a round trip, where
// each of five ways may take 2 s.
const etcdAnswersWithin = 12 * time.Second

// ask asks etcd about itself. The error names the endpoints.
func (f *clusterFlags) ask(ctx context.Context, l *ledger.Ledger) (store.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdAnswersWithin)
	defer cancel()
	status, err := l.Ping(ctx)
	if err != nil {
		err = allocator.Errorf(allocator.KindOf(err), "etcd (--etcd %s): %w",
			strings.Join(shownEndpoints(f.endpoints), ","), err)
	}
	return status, err
}

// tls returns the settings of connections to etcd, which follow their files; nil for plain
// text. Its error is Invalid.
func (f *clusterFlags) tls(log hclog.Logger) (func(host string) *tls.Config, error) {
	if f.ca == "" && f.cert == "" && f.key == "" {
		return nil, nil
	}
	// Many an etcd is set to TLS 1.2.
	files, err := tlsfiles.Open(tlsfiles.Config{Flags: "etcd", CA: f.ca, Cert: f.cert,
		Key: f.key, TLS12: true, Logger: log})
	if err != nil {
		return nil, err
	}
	return files.Client, nil
}

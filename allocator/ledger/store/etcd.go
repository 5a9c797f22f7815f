package store

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/internal/zaplog"
)

// EtcdConfig says how to reach etcd.
type EtcdConfig struct {
	// Endpoints are the client URLs of the cluster's members, or host:port. The store uses one
	// at a time, and another one when that fails. Put no load balancer in between.
	Endpoints []string
	// Username and Password authenticate, where Username is set.
	Username, Password string
	// ReadPassword, if set, is called for the password in place of Password: before each
	// connection, and after etcd refused the user, as the password may have been changed.
	ReadPassword func() (string, error)
	// TLS returns the settings that secure a connection to a host, before each connection to
	// an endpoint that is not plain text by its scheme; nil is plain text.
	TLS func(host string) *tls.Config
	// Silence is how long a watch may receive nothing, although it asked for progress, before
	// it counts as broken. Default 10 s.
	Silence time.Duration
	// Tracer makes spans of calls that belong to a trace; nil makes none.
	Tracer trace.TracerProvider
	// Logger; nil logs nothing. It also gets the errors of etcd's client, as warnings.
	Logger hclog.Logger
}

// etcd is the Store over an etcd cluster.
type etcd struct {
	cfg EtcdConfig
	log *zap.Logger // of its client

	ended atomic.Int64 // connections that ended so far

	mu struct {
		sync.Mutex
		member  *member                // nil before the first use and after Close
		next    int                    // the endpoint to use next
		list    []*etcdserverpb.Member // etcd's members, as last read
		failed  int                    // clients made in a row that no member let in
		closed  bool
		retired []*member // replaced but not yet closed: they still have calls under way

		refused   error // why etcd refused the user; etcd is not asked again for refusedFor
		refusedAt time.Time
		rights    Rights // of the user, as last read after a refusal
		rightsAt  time.Time
	}
}

// member is a client of one endpoint.
type member struct {
	*clientv3.Client
	endpoint string
}

// NewEtcd returns a store over etcd. It does not connect yet. Its error is
// Invalid.
func NewEtcd(cfg EtcdConfig) (Store, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if err := cfg.readEndpoints(); err != nil {
		return nil, err
	}
	if cfg.Silence == 0 {
		cfg.Silence = 10 * time.Second
	}
	return &etcd{cfg: cfg, log: clientLog(cfg.Logger)}, nil
}

// clientLog returns a logger for etcd's client. What that calls an error comes back from the call, whose
// caller says what it means; some of them come each few milliseconds while a member is away.
func clientLog(log hclog.Logger) *zap.Logger {
	return zaplog.New(log.Named("etcd-client"), hclog.Error, hclog.Warn).WithOptions(
		zap.WrapCore(func(c zapcore.Core) zapcore.Core {
			return zapcore.NewSamplerWithOptions(c, 10*time.Second, 1, 0)
		}))
}

// client returns the client in use.
func (e *etcd) client() (*member, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed {
		return nil, allocator.Errorf(allocator.Unavailable, "the connection to etcd is closed")
	}
	if e.mu.member != nil {
		return e.mu.member, nil
	}
	if e.mu.refused != nil && time.Since(e.mu.refusedAt) < refusedFor {
		return nil, e.mu.refused
	}
	endpoint := e.cfg.Endpoints[e.mu.next%len(e.cfg.Endpoints)]
	password := e.cfg.Password
	if e.cfg.ReadPassword != nil {
		var err error
		if password, err = e.cfg.ReadPassword(); err != nil {
			return nil, allocator.Errorf(allocator.Unauthenticated, "%w", err)
		}
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{endpoint},
		Username:             e.cfg.Username,
		Password:             password,
		TLS:                  e.cfg.secured(endpoint),
		DialTimeout:          min(2*time.Second<<min(e.mu.failed, 3), connectWithin), // for the password
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		// Each try is sent once. A transaction that is sent again could be applied twice before
		// the answer to the first is read.
		MaxUnaryRetries: 1,
		Logger:          e.log,
		DialOptions: append(traced(e.cfg.Tracer),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
					MaxDelay: 500 * time.Millisecond},
				MinConnectTimeout: connectWithin,
			}),
			grpc.WithChainUnaryInterceptor(failFast),
			grpc.WithStatsHandler((*endings)(e)),
		),
	})
	if err != nil {
		err = e.failed(nil, endpoint, err)
		e.mu.failed++
		if allocator.KindOf(err) == allocator.Unavailable {
			e.mu.next++
		}
		if allocator.KindOf(err) == allocator.Unauthenticated {
			e.mu.refused, e.mu.refusedAt = err, time.Now()
		}
		return nil, err
	}
	e.mu.refused, e.mu.failed = nil, 0
	e.mu.member = &member{Client: c, endpoint: endpoint}
	return e.mu.member, nil
}

// connectWithin bounds how long a connection may take: four round trips with TLS, and each may take 2 s.
const connectWithin = 10 * time.Second

// Close implements Store.
func (e *etcd) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.closed = true
	var errs []error
	for _, m := range append(e.mu.retired, e.mu.member) {
		if m != nil {
			errs = append(errs, ignoreCanceled(m.Client.Close()))
		}
	}
	e.mu.retired, e.mu.member = nil, nil
	return errors.Join(errs...)
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// failed translates an error of m. If another endpoint may do better, the store goes on to
// that.
func (e *etcd) failed(m *member, endpoint string, err error) error {
	translated := translate(endpoint, err)
	// by the caller: not the member's fault
	gaveUp := errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled
	late := errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
	switch {
	case len(e.cfg.Endpoints) == 1 && e.cfg.Username != "" && late && m != nil:
		// With a token of the etcd before, a restored one waits until its log is as long as it was then.
		e.rotate(m, 0)
	case translated.Kind == allocator.Unavailable && m != nil && !gaveUp:
		e.rotate(m, 1)
	case translated.Kind == allocator.Unauthenticated && m != nil:
		e.rotate(m, 0) // the same endpoint again, with the password that it has then
	}
	return translated
}

// rotate goes on to another endpoint, unless another call did already. Calls under way on the
// old client run to their own deadline.
func (e *etcd) rotate(m *member, by int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.member != m || by > 0 && len(e.cfg.Endpoints) == 1 {
		return
	}
	e.mu.next += by
	e.mu.member = nil
	e.ended.Add(1) // for this store
	e.mu.retired = append(e.mu.retired, m)
	if len(e.mu.retired) > len(e.cfg.Endpoints) { // its calls have ended long ago
		_ = e.mu.retired[0].Client.Close()
		e.mu.retired = e.mu.retired[1:]
	}
}

// refusedFor is how long a refused user is not tried again: each check of a password costs etcd
// some 100 ms.
const refusedFor = time.Second

// Status implements Store. It tries every endpoint once.
func (e *etcd) Status(ctx context.Context) (Status, error) {
	var last error
	for range e.cfg.Endpoints {
		m, err := e.client()
		if err != nil {
			return Status{}, err
		}
		ended := e.ended.Load()
		// The client's own Status would open another connection.
		var r *etcdserverpb.StatusResponse
		if r, err = etcdserverpb.NewMaintenanceClient(m.ActiveConnection()).Status(ctx,
			&etcdserverpb.StatusRequest{}); err == nil {
			return Status{
				Sender: e.sender(r.Header, ended), Revision: r.Header.Revision, Version: r.Version,
				RaftIndex: r.RaftIndex, RaftTerm: r.RaftTerm, Size: r.DbSize, Quota: r.DbSizeQuota,
				NoSpace: raised(r, etcdserverpb.AlarmType_NOSPACE), Corrupt: raised(r, etcdserverpb.AlarmType_CORRUPT),
			}, nil
		}
		last = e.failed(m, m.endpoint, err)
		if ctx.Err() != nil {
			break
		}
	}
	return Status{}, last
}

// raised reports whether a status has an alarm of any member. Each of its errors is the text of
// one alarm.
func raised(r *etcdserverpb.StatusResponse, alarm etcdserverpb.AlarmType) bool {
	return slices.ContainsFunc(r.Errors, func(text string) bool {
		return strings.Contains(text, "alarm:"+alarm.String())
	})
}

// Compact implements Store.
func (e *etcd) Compact(ctx context.Context, revision int64) error {
	m, err := e.client()
	if err != nil {
		return err
	}
	if _, err := m.Compact(ctx, revision); errors.Is(err, rpctypes.ErrCompacted) {
		return ErrCompacted
	} else if err != nil {
		return e.failed(m, m.endpoint, err)
	}
	return nil
}

// sender returns the member and the connection that answered with header. ended is how
// many connections had ended before the request was sent.
func (e *etcd) sender(header *etcdserverpb.ResponseHeader, ended int64) Sender {
	o := Sender{ClusterID: header.ClusterId, MemberID: header.MemberId}
	if e.ended.Load() == ended { // otherwise it may have been sent on the next one
		o.Connection = ended + 1
	}
	return o
}

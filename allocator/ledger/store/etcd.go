package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
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

// Watch implements Store.
func (e *etcd) Watch(ctx context.Context, intervals []Interval, from int64) <-chan Change {
	out := make(chan Change)
	go func() {
		defer close(out)
		err := e.watch(ctx, intervals, from, out)
		select {
		case out <- Change{Err: err}:
		case <-ctx.Done():
		}
	}()
	return out
}

// watch runs one etcd watch for each interval, all on one stream. It asks the member for
// progress, so that it notices a watch that hangs.
func (e *etcd) watch(ctx context.Context, intervals []Interval, from int64, out chan<- Change) error {
	m, err := e.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	watcher := clientv3.NewWatcher(m.Client)
	var forwarders sync.WaitGroup
	defer forwarders.Wait()
	defer func() { _ = watcher.Close() }()
	defer cancel()

	heard, ended := make(chan clientv3.WatchResponse), make(chan struct{}, len(intervals))
	for _, in := range intervals {
		opts := []clientv3.OpOption{clientv3.WithRev(from), clientv3.WithProgressNotify()}
		if in.End != "" {
			opts = append(opts, clientv3.WithRange(in.End))
		}
		responses := watcher.Watch(ctx, in.Key, opts...)
		forwarders.Go(func() {
			for r := range responses {
				select {
				case heard <- r:
				case <-ctx.Done():
					return
				}
			}
			ended <- struct{}{}
		})
	}
	ask := time.NewTicker(e.cfg.Silence / 3)
	defer ask.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ask.C:
			if time.Since(last) > e.cfg.Silence {
				return e.failed(m, m.endpoint, fmt.Errorf("a watch heard nothing for %v: %w", e.cfg.Silence,
					context.DeadlineExceeded))
			}
			if err := watcher.RequestProgress(ctx); err != nil {
				return e.failed(m, m.endpoint, err)
			}
		case <-ended:
			return e.failed(m, m.endpoint, fmt.Errorf("a watch ended: %w", clientv3.ErrNoAvailableEndpoints))
		case r := <-heard:
			last = time.Now()
			switch {
			case r.CompactRevision != 0:
				return &CompactedError{r.CompactRevision}
			case r.Err() != nil:
				return e.failed(m, m.endpoint, r.Err())
			case len(r.Events) == 0:
				continue
			}
			select {
			case out <- Change{KVs: changed(r.Events)}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func changed(events []*clientv3.Event) []KV {
	kvs := make([]KV, 0, len(events))
	for _, ev := range events {
		kv := KV{Key: string(ev.Kv.Key), Value: ev.Kv.Value, ModRevision: ev.Kv.ModRevision}
		if ev.Type == clientv3.EventTypeDelete {
			kv.Value, kv.ModRevision = nil, 0
		}
		kvs = append(kvs, kv)
	}
	return kvs
}

// traced returns the interceptor that makes spans of transactions. Watches and heartbeats
// belong to no caller and have no spans.
func traced(tracer trace.TracerProvider) []grpc.DialOption {
	if tracer == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithTracerProvider(tracer),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(filters.MethodName("Txn")),
	))}
}

// failFast makes calls fail at once, with the reason, while there is no connection. The
// client's default is to wait for the call's deadline; the ledger retries by itself.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

// endings counts the connections that end, from either side.
type endings etcd

// HandleConn implements stats.Handler.
func (e *endings) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		e.ended.Add(1)
	}
}

// HandleRPC implements stats.Handler.
func (*endings) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn implements stats.Handler.
func (*endings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC implements stats.Handler.
func (*endings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// translate turns an error of etcd's client into one with a Kind.
func translate(endpoint string, err error) *allocator.Error {
	kind := allocator.Internal
	s, ok := status.FromError(err)
	code := s.Code()
	e := rpctypes.Error(err)
	if !ok {
		if etcdErr, isEtcd := e.(rpctypes.EtcdError); isEtcd {
			code, ok = etcdErr.Code(), true
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, clientv3.ErrNoAvailableEndpoints):
		kind = allocator.Unavailable
	case !ok:
	default:
		switch code {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
			kind = allocator.Unavailable
		case codes.ResourceExhausted: // NOSPACE, or too many requests: an operator or time mends it
			kind = allocator.Unavailable
		case codes.PermissionDenied:
			kind = allocator.Denied
		case codes.Unauthenticated:
			kind = allocator.Unauthenticated
		case codes.InvalidArgument, codes.FailedPrecondition:
			if errors.Is(e, rpctypes.ErrAuthFailed) || errors.Is(e, rpctypes.ErrUserEmpty) {
				kind = allocator.Unauthenticated
			}
		}
	}
	cause := plain(err)
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		cause = ErrNoSpace
	case errors.Is(e, rpctypes.ErrCompacted):
		cause = ErrCompacted
	case kind == allocator.Unauthenticated:
		cause = fmt.Errorf("%w; give --etcd-user and --etcd-password-file", cause)
	}
	return allocator.Errorf(kind, "%w", &EndpointError{endpoint, cause})
}

// EndpointError is an error of etcd, or of the way to it. Its text has addresses.
type EndpointError struct {
	Endpoint string
	Err      error
}

func (e *EndpointError) Error() string { return "etcd at " + e.Endpoint + ": " + e.Err.Error() }

// Unwrap returns the error.
func (e *EndpointError) Unwrap() error { return e.Err }

// plainError is an error of gRPC, told without gRPC's codes and the names of its parts.
type plainError struct {
	text string
	err  error
}

func (e *plainError) Error() string { return e.text }

// Unwrap returns gRPC's error.
func (e *plainError) Unwrap() error { return e.err }

// plain returns an error with a text for people.
func plain(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return &plainError{"no answer in time", err}
		}
		return err // of etcd, or of the caller's context
	}
	text := allocator.ConnectionText(s.Message())
	// gRPC closes a connection on which the server does not greet within its time.
	if s.Code() == codes.DeadlineExceeded || strings.Contains(text, net.ErrClosed.Error()) {
		text = "no answer in time"
	}
	return &plainError{text, err}
}

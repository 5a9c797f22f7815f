package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/access/policy"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/internal/testcerts"
	"github.com/march-id/march/internal/testcluster"
	"github.com/march-id/march/room"
)

// workers is the concurrency of all figures of gRPC, HTTP, Redis and PostgreSQL.
const workers = 16

// room starts an instance of room a with metrics, and its settings as change modifies them.
func (p *part) room(c *testcluster.Cluster, name allocator.Instance, change func(*room.Config),
	warm ...allocator.Tag) *testcluster.Room {
	return c.Room("a", name, func(cfg *room.Config) {
		cfg.HTTP, cfg.WarmTags = testcluster.Listen(p, ""), warm
		cfg.Metrics = serve.NewMetrics("bench", prometheus.Labels{"room": "a"})
		if change != nil {
			change(cfg)
		}
	})
}

// conns returns two connections to a server.
func (p *part) conns(address string) []*grpc.ClientConn {
	return []*grpc.ClientConn{testcluster.Dial(p, address), testcluster.Dial(p, address)}
}

// echo starts a server with the settings of a room that does nothing: its answers are empty.
func (p *part) echo() (conns []*grpc.ClientConn, httpAt string) {
	cfg := serve.Config{
		Settings: serve.Settings{GRPC: testcluster.Listen(p, ""), HTTP: testcluster.Listen(p, ""), Drain: time.Second,
			Metrics: serve.NewMetrics("bench", nil)},
		Health: health.NewServer(), MaxRequest: 64 << 10,
		Register: func(r grpc.ServiceRegistrar) { r.RegisterService(&echoService, nil) },
		Ready:    func(context.Context) []serve.Check { return nil },
		Routes: func(mux *http.ServeMux) {
			mux.HandleFunc("POST /v1/tags/{tag}/empty", func(http.ResponseWriter, *http.Request) {})
		},
	}
	testcluster.Start(p, func(ctx context.Context) error { return serve.Run(ctx, cfg) })
	return p.conns(cfg.GRPC.Addr().String()), cfg.HTTP.Addr().String()
}

// echoService answers each empty message of a stream with another one.
var echoService = grpc.ServiceDesc{
	ServiceName: "bench.Echo", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Echo", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				if err := s.RecvMsg(&emptypb.Empty{}); err != nil {
					return nil //nolint:nilerr // the client is done
				}
				if err := s.SendMsg(&emptypb.Empty{}); err != nil {
					return err
				}
			}
		},
	}},
}

type echoStream struct{ grpc.ClientStream }

func (s echoStream) Send() error { return s.SendMsg(&emptypb.Empty{}) }
func (s echoStream) Recv() error { return s.RecvMsg(&emptypb.Empty{}) }

func echoStreams(conns []*grpc.ClientConn) streams {
	return func(ctx context.Context, i int) (load.Stream, error) {
		s, err := conns[i%len(conns)].NewStream(ctx, &echoService.Streams[0], "/bench.Echo/Echo")
		return echoStream{s}, err
	}
}

func healthCalls(conns []*grpc.ClientConn) func(int) load.Caller {
	return func(i int) load.Caller {
		client, request := healthpb.NewHealthClient(conns[i%len(conns)]), &healthpb.HealthCheckRequest{}
		return func(ctx context.Context) (int64, error) {
			_, err := client.Check(ctx, request)
			return 1, err
		}
	}
}

func grpcRows(p *part) {
	conns := p.conns(p.room(p.cluster(), "bench", nil, tag).Address)
	echo, _ := p.echo()
	var last load.Result
	calls := func(of func(int) load.Caller) func() float64 {
		return func() float64 {
			last = p.load(load.Config{New: of})
			return last.CallsPerSecond()
		}
	}
	ids := func(of func(int) load.Caller) func() float64 {
		return func() float64 { return p.load(load.Config{New: of}).IDsPerSecond() }
	}
	tail := &row{what: "gRPC Next p99.9 vs empty unary call", unit: "us", goal: 1.1, atMost: true}
	noteTail := func(to *[]float64, calls func() float64) func() float64 {
		return func() float64 {
			rate := calls()
			*to = append(*to, float64(last.Latency.ValueAtQuantile(99.9))/1000)
			return rate
		}
	}
	stream := &row{what: "Stream, IDs, vs empty messages echoed", unit: "/s", goal: 0.9,
		yard: p.streams(echoStreams(echo)), march: p.streams(load.Streams(conns, tag))}
	p.measure(p.rounds,
		&row{what: "gRPC Next vs empty unary call", unit: "/s", goal: 0.95,
			yard:  noteTail(&tail.yards, calls(healthCalls(conns))),
			march: noteTail(&tail.measured, calls(load.Unary(conns, tag)))},
		stream,
		&row{what: "NextBatch(1000), IDs", unit: "/s", march: ids(load.Batch(conns, tag, 1000))},
		&row{what: "Lease(1000), IDs", unit: "/s", march: ids(load.Lease(conns, tag, 1000))})
	p.add(tail)
	p.stream = stream.measured
}

// firstRows compares the first Next of a tag in warm_tags, after a room said that it is ready,
// with the hundredth. Another tag has warmed up the connection and the code, so that only the
// cost of the tag's first call is left. Two equal calls differ by some percent from round to
// round, so the goal is 1.05.
func firstRows(p *part) {
	c := p.cluster()
	var took []time.Duration
	p.measure(max(p.rounds, 15), // single calls: more rounds for a steady median
		&row{what: "first Next of a warm tag vs its hundredth", unit: "us", goal: 1.05, atMost: true,
			yard: func() float64 {
				r := p.room(c, "bench", nil, tag, otherTag)
				defer r.Stop()
				took = nil
				for _, tag := range []string{otherTag, tag} {
					call := load.Unary([]*grpc.ClientConn{r.Conn}, tag)(0)
					for range 100 {
						start := time.Now()
						_ = must(call(p.ctx))
						took = append(took, time.Since(start))
					}
				}
				return took[199].Seconds() * 1e6
			}, march: func() float64 { return took[100].Seconds() * 1e6 }})
}

// side is what one of two sides did in its turns.
type side struct {
	calls     int64
	time, cpu time.Duration
}

// rate returns calls per second, and cost the processor's microseconds per call.
func (s side) rate() float64 { return float64(s.calls) / s.time.Seconds() }
func (s side) cost() float64 { return float64(s.cpu.Microseconds()) / float64(s.calls) }

// sides makes load on two sides in short turns, so that other work of the machine slows both: the first, the
// second, the second, the first.
func (p *part) sides(first, second func(int) load.Caller) (a, b side) {
	for turn := range 16 {
		to, of := &a, first
		if turn%4 == 1 || turn%4 == 2 {
			to, of = &b, second
		}
		before := cpuTime()
		r := p.load(load.Config{New: of, Duration: p.unit / 4})
		to.calls, to.time, to.cpu = to.calls+r.Calls, to.time+r.Elapsed, to.cpu+cpuTime()-before
	}
	return a, b
}

// cpuTime returns how long this process has used processors.
func cpuTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// metricsRows compares Next of a room that counts and times its calls with one that does not.
func metricsRows(p *part) {
	c := p.cluster()
	on := p.conns(p.room(c, "on", nil, tag).Address)
	off := p.conns(p.room(c, "off", func(cfg *room.Config) { cfg.Metrics = nil }, tag).Address)
	calls := &row{what: "gRPC Next with metrics vs without", unit: "/s", goal: 0.95}
	cpu := &row{what: "CPU per gRPC Next with metrics vs without", unit: "us", goal: 1.05, atMost: true}
	for range max(p.rounds, 5) { // the difference is small
		with, without := p.sides(load.Unary(on, tag), load.Unary(off, tag))
		calls.measured, calls.yards = append(calls.measured, with.rate()), append(calls.yards, without.rate())
		cpu.measured, cpu.yards = append(cpu.measured, with.cost()), append(cpu.yards, without.cost())
	}
	p.add(calls, cpu)
}

// httpNext is the path of Next, and httpEmpty that of the empty handler on a server with the same settings.
const httpNext, httpEmpty = "/v1/tags/" + tag + "/next", "/v1/tags/" + tag + "/empty"

func httpRows(p *part) {
	r := p.room(p.cluster(), "bench", nil, tag)
	_, echo := p.echo()
	p.measure(p.rounds, &row{what: "HTTP next vs an empty handler on the same server", unit: "/s", goal: 0.9,
		yard: p.requests("POST", echo, httpEmpty, ""), march: p.requests("POST", r.HTTP, httpNext, "")})
}

// requests measures how many requests without a body a server answers per second, each caller over a connection
// of its own. It does as little as possible. net/http's client takes longer than its server, and longer still
// for an answer with a body, which would hide the server's time. header are further header lines.
func (p *part) requests(method, address, path, header string) func() float64 {
	request := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n%s\r\n", method, path, address,
		header)
	return func() float64 {
		conns := make([]net.Conn, workers)
		defer func() {
			for _, conn := range conns {
				if conn != nil {
					_ = conn.Close()
				}
			}
		}()
		for i := range conns {
			conns[i] = must(testcluster.DialContext(p.ctx, address))
		}
		return p.calls(func(i int) load.Caller {
			answers := textproto.NewReader(bufio.NewReader(conns[i]))
			return func(context.Context) (int64, error) {
				if _, err := conns[i].Write(request); err != nil {
					return 0, err
				}
				return 1, skipAnswer(answers)
			}
		})()
	}
}

// skipAnswer reads an answer, which must report success.
func skipAnswer(from *textproto.Reader) error {
	line, err := from.ReadLineBytes()
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("answered %q", line)
	}
	body := 0
	for {
		line, err := from.ReadLineBytes()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			_, err := from.R.Discard(body)
			return err
		}
		if length, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if body, err = strconv.Atoi(string(length)); err != nil {
				return err
			}
		}
	}
}

// accessPolicy has a quota that no run reaches, so that the room counts calls for it.
const accessPolicy = `grants:
  - {subjects: ["token:other"], roles: viewer}
  - {subjects: ["token:bench", "dns:bench.example"], roles: issuer, tags: ["a*", "b*", "bench*", "*"],
     quotas: {ids_per_second: 1000000000, tags: 10}}
`

// manyGrants is a policy in which the last of 21 grants allows the call, with every quota.
func manyGrants() []byte {
	var b strings.Builder
	b.WriteString("grants:\n")
	for k := range 20 {
		fmt.Fprintf(&b, "  - {subjects: '*', roles: issuer, tags: [a-%d-*, b-%d-*]}\n", k, k)
	}
	b.WriteString("  - {subjects: '*', roles: issuer, tags: [order-*], quotas: {ids_per_second: 1000000000, " +
		"tag_ids_per_second: 1000000000, tags: 10, ids_per_lease: 10}}\n")
	return []byte(b.String())
}

// rightRows measures the check of a right.
func rightRows(p *part) {
	caller := must(policy.Parse("policy", manyGrants())).Rights(&policy.Usages{}, "token:bench")
	r := policy.Request{Call: policy.CallOf(marchv1.IDService_Next_FullMethodName),
		Tag: "order-eu", Room: "eu-1", IDs: 1}
	allocated := allocations("such check", func() { _ = caller.Check(time.Now(), r) })
	allocated.march = func() float64 { return testing.AllocsPerRun(1000, func() { _ = caller.Check(time.Now(), r) }) }
	p.measure(p.rounds,
		&row{what: "check of a right: 21 grants, 4 quotas", unit: "ns", goal: 500, atMost: true, march: func() float64 {
			return 1e9 / p.perSecond(1, callLoop(func() (int64, error) { return 0, caller.Check(time.Now(), r) }))
		}}, allocated)
}

// write writes a file of the part, and returns its path.
func (p *part) write(name, content string) string {
	path := filepath.Join(p.TempDir(), name)
	p.check(os.WriteFile(path, []byte(content), 0o600))
	return path
}

// accessRows compares a room with a policy and callers with tokens to a room without.
func accessRows(p *part) {
	token, line, err := access.NewToken("bench", time.Time{})
	p.check(err)
	gate := must(access.New(access.Config{Policy: p.write("policy.yaml", accessPolicy), Tokens: p.write("tokens", line),
		Room: "a"}))
	c := p.cluster()
	open := p.room(c, "open", nil, tag)
	guarded := p.room(c, "guarded", func(cfg *room.Config) { cfg.Access = gate }, tag)
	before := []*grpc.ClientConn{open.Conn}
	with := []*grpc.ClientConn{testcluster.Dial(p, guarded.Address,
		grpc.WithPerRPCCredentials(api.TokenFile(p.write("token", token))))}
	bearer := "Authorization: Bearer " + token + "\r\n"
	plain := p.requests("POST", open.HTTP, httpNext, "")
	p.measure(p.rounds,
		&row{what: "HTTP next with a token and a policy vs without", unit: "/s", goal: 0.9, yard: plain,
			march: p.requests("POST", guarded.HTTP, httpNext, bearer)},
		&row{what: "HTTP next with a header as long, which is ignored, vs without", unit: "/s", yard: plain,
			march: p.requests("POST", open.HTTP, httpNext, bearer)},
		&row{what: "gRPC Next with a token and a policy vs without", unit: "/s", yard: p.calls(load.Unary(before, tag)),
			march: p.calls(load.Unary(with, tag))},
		&row{what: "Stream with a token and a policy vs without", unit: "/s",
			yard: p.streams(load.Streams(before, tag)), march: p.streams(load.Streams(with, tag))})
}

// mtls is a room with TLS, client certificates and a policy. The certificate of the room is that
// of its clients, too.
type mtls struct {
	*testcluster.Room
	cluster *testcluster.Cluster
	files   *tlsfiles.Files
	ca      *testcerts.CA
}

var ownLeaf = certs.Leaf{Hosts: []string{"127.0.0.1", "bench.example"}}

// renew replaces the certificate, and has the room and its clients read it at once.
func (m *mtls) renew() error {
	_, err := m.ca.CA.Write(m.ca.Dir, "own", ownLeaf)
	return errors.Join(err, m.files.Reload())
}

func (m *mtls) dial() (*grpc.ClientConn, error) {
	return api.Dial(m.Address, api.Credentials{TLS: m.files}.Options()...)
}

func (p *part) mtls() (m *mtls, conns []*grpc.ClientConn) {
	m = &mtls{ca: testcerts.New(p), cluster: p.cluster()}
	own := m.ca.Write("own", ownLeaf)
	m.files = testcerts.Open(p, tlsfiles.Config{Flags: "tls", CA: m.ca.Root, ClientCA: m.ca.Root, RequireClient: true,
		Cert: own.Cert, Key: own.Key})
	gate := must(access.New(access.Config{Policy: p.write("policy.yaml", accessPolicy), Room: "a"}))
	m.Room = p.room(m.cluster, "closed", func(cfg *room.Config) { cfg.Access, cfg.TLS = gate, m.files }, tag)
	conn := must(m.dial())
	p.Cleanup(func() { _ = conn.Close() })
	return m, []*grpc.ClientConn{conn}
}

// mtlsRows compares a room with TLS, client certificates and a policy to one without any.
func mtlsRows(p *part) {
	m, conns := p.mtls()
	open := []*grpc.ClientConn{p.room(m.cluster, "open", nil, tag).Conn}
	p.measure(p.rounds,
		&row{what: "gRPC Next with mTLS and a policy vs plaintext", unit: "/s", yard: p.calls(load.Unary(open, tag)),
			march: p.calls(load.Unary(conns, tag))},
		&row{what: "Stream with mTLS and a policy vs plaintext", unit: "/s", yard: p.streams(load.Streams(open, tag)),
			march: p.streams(load.Streams(conns, tag))})
}

const (
	// renewals is how often a certificate is renewed in a round.
	renewals = 10
	// callsOfConnection is how many calls a caller makes before it connects again, so that
	// handshakes come at all times.
	callsOfConnection = 1000
)

// renewalRows renews the certificate of a room and of its callers while they call. Half of the
// callers keep their connection, and the others connect again and again. Beside them are streams,
// each request of which is a call, so that the goal is reached on two processors.
func renewalRows(p *part) {
	m, conns := p.mtls()
	kept := load.Unary(conns, tag)
	during := 2 * renewals * p.unit / 5
	var calls, streamed load.Result
	p.measure(p.rounds,
		&row{what: fmt.Sprintf("Next and Stream with mTLS while certificates are renewed %d times", renewals),
			unit: "/s", goal: 20_000, march: func() float64 {
				again := &reconnecting{m: m, open: make([]*grpc.ClientConn, workers)}
				var work errgroup.Group
				work.Go(func() (err error) {
					mixed := func(i int) load.Caller {
						if i%2 == 0 {
							return kept(i)
						}
						return again.caller(i)
					}
					calls, err = load.Run(p.ctx, load.Config{Workers: workers, Duration: during, New: mixed})
					return err
				})
				work.Go(func() (err error) {
					streamed, err = load.Run(p.ctx, load.Config{Workers: workers / 4, Duration: during,
						NewStream: load.Streams(conns, tag)})
					return err
				})
				work.Go(func() (err error) {
					for range renewals {
						time.Sleep(during / (renewals + 1))
						err = errors.Join(err, m.renew())
					}
					return err
				})
				p.check(errors.Join(work.Wait(), again.close()))
				for _, r := range []load.Result{calls, streamed} {
					if r.Errors > 0 {
						p.Logf("%d calls failed, the first with: %v", r.Errors, r.FirstError)
					}
				}
				return calls.CallsPerSecond() + streamed.CallsPerSecond()
			}},
		&row{what: "of these, calls of Next", unit: "/s",
			march: func() float64 { return float64(calls.Calls) / calls.Elapsed.Seconds() }},
		&row{what: "of these calls, failed", atMost: true,
			march: func() float64 { return float64(calls.Errors + streamed.Errors) }})
}

// reconnecting are callers that connect again and again.
type reconnecting struct {
	m    *mtls
	mu   sync.Mutex
	open []*grpc.ClientConn // the last one of each caller
}

func (r *reconnecting) caller(place int) load.Caller {
	n, request := 0, &marchv1.NextRequest{Tag: tag}
	var client marchv1.IDServiceClient
	return func(ctx context.Context) (int64, error) {
		if n%callsOfConnection == 0 {
			conn, err := r.m.dial()
			if err != nil {
				return 0, err
			}
			client = marchv1.NewIDServiceClient(conn)
			if err := r.replace(place, conn); err != nil {
				return 0, err
			}
		}
		n++
		_, err := client.Next(ctx, request)
		return 1, err
	}
}

// replace closes a caller's connection for another one, nil for none.
func (r *reconnecting) replace(place int, with *grpc.ClientConn) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.open[place]
	r.open[place] = with
	if before == nil {
		return nil
	}
	return before.Close()
}

func (r *reconnecting) close() (err error) {
	for place := range r.open {
		err = errors.Join(err, r.replace(place, nil))
	}
	return err
}

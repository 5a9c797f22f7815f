package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/certs"
	"github.com/march-id/march/room"
)

const mtlsPolicy = `grants:
  - {subjects: ["dns:bench.example"], roles: issuer, tags: ["bench*", "*"],
     quotas: {ids_per_second: 1000000000, tags: 10}}
`

// mtls is a room with TLS, client certificates and a policy. The certificate of the room is that
// of its clients, too.
type mtls struct {
	cluster *cluster
	room    *served
	files   *tlsfiles.Files
	ca      *certs.CA
	dir     string
}

// renew replaces the certificate, and has the room and its clients read it at once.
func (m *mtls) renew() error {
	_, err := m.ca.Write(m.dir, "own", certs.Leaf{Hosts: []string{"127.0.0.1", "bench.example"}})
	return errors.Join(err, m.files.Reload())
}

func (m *mtls) dial() (*grpc.ClientConn, error) {
	return api.Dial(m.room.address, api.Credentials{TLS: m.files}.Options()...)
}

// withMTLS calls use with such a room.
func withMTLS(ctx context.Context, use func(*mtls) error) (err error) {
	m := &mtls{}
	if m.dir, err = os.MkdirTemp("", "march-bench"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(m.dir)) }()
	if m.ca, err = certs.New("bench", time.Hour); err != nil {
		return err
	}
	root, err := m.ca.WriteCA(m.dir, "ca")
	if err != nil {
		return err
	}
	own, err := m.ca.Write(m.dir, "own", certs.Leaf{Hosts: []string{"127.0.0.1", "bench.example"}})
	if err != nil {
		return err
	}
	if m.files, err = tlsfiles.Open(tlsfiles.Config{Flags: "tls", CA: root, ClientCA: root, RequireClient: true,
		Cert: own.Cert, Key: own.Key}); err != nil {
		return err
	}
	policy := filepath.Join(m.dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(mtlsPolicy), 0o600); err != nil {
		return err
	}
	gate, err := access.New(access.Config{Policy: policy, Room: "a"})
	if err != nil {
		return err
	}
	if m.cluster, err = startCluster(ctx); err != nil {
		return err
	}
	defer m.cluster.close()
	if m.room, err = m.cluster.serveWith(ctx, "closed", true, func(cfg *room.Config) {
		cfg.Access, cfg.TLS = gate, m.files
	}, tag); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.room.stop()) }()
	return use(m)
}

// mtlsRows compares a room with TLS, client certificates and a policy to one without any.
func mtlsRows(ctx context.Context, b *bench) error {
	return withMTLS(ctx, func(m *mtls) (err error) {
		open, err := m.cluster.serve(ctx, "open", true, tag)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, open.stop()) }()
		conn, err := m.dial()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()

		unary := b.add(row{what: "gRPC Next with mTLS and a policy vs plaintext", unit: "/s"})
		stream := b.add(row{what: "Stream with mTLS and a policy vs plaintext", unit: "/s"})
		for range b.rounds {
			for _, of := range []struct {
				conns         []*grpc.ClientConn
				unary, stream *[]float64
			}{
				{open.room[:1], &unary.yard, &stream.yard},
				{[]*grpc.ClientConn{conn}, &unary.measured, &stream.measured},
			} {
				r, err := measure(ctx, load.Config{Duration: 2 * b.unit, New: load.Unary(of.conns, tag)})
				if err != nil {
					return err
				}
				*of.unary = append(*of.unary, r.CallsPerSecond())
				if r, err = measure(ctx, load.Config{Duration: 2 * b.unit,
					NewStream: load.Streams(of.conns, tag)}); err != nil {
					return err
				}
				*of.stream = append(*of.stream, r.IDsPerSecond())
			}
		}
		return nil
	})
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
func renewalRows(ctx context.Context, b *bench) error {
	return withMTLS(ctx, func(m *mtls) (err error) {
		conn, err := m.dial()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		rate := b.add(row{what: fmt.Sprintf("Next and Stream with mTLS while certificates are renewed %d times",
			renewals), unit: "/s", goal: 20_000})
		unary := b.add(row{what: "of these, calls of Next", unit: "/s"})
		failed := b.add(row{what: "of these calls, failed", atMost: true})
		kept := load.Unary([]*grpc.ClientConn{conn}, tag)
		for range b.rounds {
			again := &reconnecting{m: m}
			calls := load.Config{Workers: workers, Duration: 2 * renewals * b.unit / 5, New: func(i int) load.Caller {
				if i%2 == 0 {
					return kept(i)
				}
				return again.caller()
			}}
			streams := load.Config{Workers: workers / 4, Duration: calls.Duration,
				NewStream: load.Streams([]*grpc.ClientConn{conn}, tag)}
			results, err := m.underLoad(ctx, calls, streams)
			if err := errors.Join(err, again.close()); err != nil {
				return err
			}
			perSecond, errs := 0.0, int64(0)
			for _, r := range results {
				if r.Errors > 0 {
					b.progress("%d calls failed, the first with: %v", r.Errors, r.FirstError)
				}
				perSecond, errs = perSecond+r.CallsPerSecond(), errs+r.Errors
			}
			rate.measured = append(rate.measured, perSecond)
			unary.measured = append(unary.measured, results[0].CallsPerSecond())
			failed.measured = append(failed.measured, float64(errs))
		}
		return nil
	})
}

// underLoad makes loads of the same duration, and renews the certificate meanwhile.
func (m *mtls) underLoad(ctx context.Context, loads ...load.Config) ([]load.Result, error) {
	var work sync.WaitGroup
	results, errs := make([]load.Result, len(loads)), make([]error, len(loads)+1)
	for i, cfg := range loads {
		work.Go(func() { results[i], errs[i] = load.Run(ctx, cfg) })
	}
	tick := time.NewTicker(loads[0].Duration / (renewals + 1))
	defer tick.Stop()
	for range renewals {
		<-tick.C
		errs[len(loads)] = errors.Join(errs[len(loads)], m.renew())
	}
	work.Wait()
	return results, errors.Join(errs...)
}

// reconnecting are callers that connect again and again.
type reconnecting struct {
	m  *mtls
	mu struct {
		sync.Mutex
		open []*grpc.ClientConn // the last one of each caller
	}
}

func (r *reconnecting) caller() load.Caller {
	r.mu.Lock()
	defer r.mu.Unlock()
	place := len(r.mu.open)
	r.mu.open = append(r.mu.open, nil)
	n := 0
	var client marchv1.IDServiceClient
	request := &marchv1.NextRequest{Tag: tag}
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

// replace closes a caller's connection for another one.
func (r *reconnecting) replace(place int, with *grpc.ClientConn) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.mu.open[place]
	r.mu.open[place] = with
	if before == nil {
		return nil
	}
	return before.Close()
}

func (r *reconnecting) close() (err error) {
	for place := range r.mu.open {
		if r.mu.open[place] != nil {
			err = errors.Join(err, r.mu.open[place].Close())
		}
	}
	return err
}

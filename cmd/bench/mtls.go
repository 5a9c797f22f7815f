package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/api"
	"github.com/march-id/march/api/tlsfiles"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/devca"
	"github.com/march-id/march/room"
)

const mtlsPolicy = `grants:
  - {subjects: ["dns:bench.example"], roles: issuer, tags: ["bench*", "*"], quotas: {ids_per_second: 1000000000, tags: 10}}
`

// mtlsFiles makes a certificate that serves as the server's and as the client's.
func mtlsFiles(dir string) (*tlsfiles.Files, error) {
	ca, err := devca.New("bench", time.Hour)
	if err != nil {
		return nil, err
	}
	root, err := ca.WriteCA(dir, "ca")
	if err != nil {
		return nil, err
	}
	own, err := ca.Write(dir, "own", devca.Leaf{Hosts: []string{"127.0.0.1", "bench.example"}})
	if err != nil {
		return nil, err
	}
	return tlsfiles.Open(tlsfiles.Config{Flags: "tls", CA: root, ClientCA: root, RequireClient: true, Cert: own.Cert, Key: own.Key})
}

// mtlsRows compares a room with TLS, client certificates and a policy to one without any.
func mtlsRows(ctx context.Context, b *bench) (err error) {
	dir, err := os.MkdirTemp("", "march-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	files, err := mtlsFiles(dir)
	if err != nil {
		return err
	}
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(mtlsPolicy), 0o600); err != nil {
		return err
	}
	gate, err := access.New(access.Config{Policy: policy, Room: "a"})
	if err != nil {
		return err
	}
	c, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	open, err := c.serve(ctx, "open", true, tag)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, open.stop()) }()
	closed, err := c.serveWith(ctx, "closed", true, func(cfg *room.Config) { cfg.Access, cfg.TLS = gate, files }, tag)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed.stop()) }()
	conn, err := api.Dial(closed.address, api.Credentials{TLS: files}.Options()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	unary := b.add(row{what: "gRPC Next with mTLS and a policy vs plaintext", unit: "/s"})
	stream := b.add(row{what: "Stream with mTLS and a policy vs plaintext", unit: "/s"})
	for range b.rounds {
		for _, m := range []struct {
			conns         []*grpc.ClientConn
			unary, stream *[]float64
		}{
			{open.room[:1], &unary.yard, &stream.yard},
			{[]*grpc.ClientConn{conn}, &unary.measured, &stream.measured},
		} {
			r, err := measure(ctx, load.Config{Duration: 2 * b.unit, New: load.Unary(m.conns, tag)})
			if err != nil {
				return err
			}
			*m.unary = append(*m.unary, r.CallsPerSecond())
			if r, err = measure(ctx, load.Config{Duration: 2 * b.unit, NewStream: load.Streams(m.conns, tag)}); err != nil {
				return err
			}
			*m.stream = append(*m.stream, r.IDsPerSecond())
		}
	}
	return nil
}

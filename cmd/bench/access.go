package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/march-id/march/api"
	"github.com/march-id/march/cmd/internal/load"
	"github.com/march-id/march/internal/access"
)

// accessPolicy has a quota that no run reaches, so that the room counts calls for it.
const accessPolicy = `grants:
  - {subjects: ["token:other"], roles: viewer}
  - {subjects: ["token:bench"], roles: issuer, tags: ["a*", "b*", "bench*", "*"], quotas: {ids_per_second: 1000000000, tags: 10}}
`

// accessRows compares a room with a policy and callers with tokens to a room without.
func accessRows(ctx context.Context, b *bench) (err error) {
	dir, err := os.MkdirTemp("", "march-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	token, line, err := access.NewToken("bench", time.Time{})
	if err != nil {
		return err
	}
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		err = errors.Join(err, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	cfg := access.Config{Policy: write("policy.yaml", accessPolicy), Tokens: write("tokens", line), Room: "a"}
	tokenFile := write("token", token)
	if err != nil {
		return err
	}
	gate, err := access.New(cfg)
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
	guarded, err := c.serveWith(ctx, "guarded", true, gate, tag)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, guarded.stop()) }()
	conn, err := grpc.NewClient(guarded.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(api.TokenFile(tokenFile)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	http := b.add(row{what: "HTTP next with a token and a policy vs without", unit: "/s", goal: 0.9})
	unary := b.add(row{what: "gRPC Next with a token and a policy vs without", unit: "/s"})
	stream := b.add(row{what: "Stream with a token and a policy vs without", unit: "/s"})
	path := "/v1/tags/" + tag + "/next"
	for range b.rounds {
		for _, m := range []struct {
			posts  *posts
			conns  []*grpc.ClientConn
			http   *[]float64
			unary  *[]float64
			stream *[]float64
		}{
			{&posts{method: "POST", address: open.roomHTTP, path: path}, open.room[:1], &http.yard, &unary.yard, &stream.yard},
			{&posts{method: "POST", address: guarded.roomHTTP, path: path, header: "Authorization: Bearer " + token + "\r\n"}, []*grpc.ClientConn{conn}, &http.measured, &unary.measured, &stream.measured},
		} {
			r, err := measure(ctx, load.Config{Duration: 2 * b.unit, New: m.posts.caller})
			m.posts.close()
			if err != nil {
				return err
			}
			*m.http = append(*m.http, r.CallsPerSecond())
			if r, err = measure(ctx, load.Config{Duration: 2 * b.unit, New: load.Unary(m.conns, tag)}); err != nil {
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
